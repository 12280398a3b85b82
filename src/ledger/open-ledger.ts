import { hostname } from 'node:os';
import type { Clock } from '../lib/clock.ts';
import { openRegister, type StoreEvents, type StoreSections } from '../store/open-register.ts';
import { type Encryption, ResponseCipher } from '../store/response-cipher.ts';
import { Ledger } from './ledger.ts';

export interface LedgerSections extends StoreSections {
  store: StoreSections['store'] & { encryption?: Encryption | undefined };
  lock: StoreSections['lock'] & { leaseMs: number };
  idempotency: { retentionMs: number; inDoubtRetentionMs: number };
}

/**
 * Opens the configured store, with a ledger on it.
 *
 * @throws {StoreUnavailable} with a message for the operator, if the store cannot be used
 */
export async function openLedger(
  sections: LedgerSections,
  clock: Clock,
  events?: StoreEvents,
): Promise<Ledger> {
  const { store, lock, idempotency } = sections;
  const { retentionMs, inDoubtRetentionMs } = idempotency;
  const lifetimes = { leaseMs: lock.leaseMs, retentionMs, inDoubtRetentionMs };
  const gatewayId = `${hostname()}:${process.pid}`;
  const cipher = new ResponseCipher(store.encryption);
  const register = await openRegister(sections, gatewayId, clock, events);
  return new Ledger(register, { gatewayId, lifetimes, clock, cipher });
}
