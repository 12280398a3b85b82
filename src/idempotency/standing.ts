import type { Fingerprint, Token } from '../kernel/brands.ts';
import type { IdempotencyRecord } from './record.ts';
import type { Claim } from './store.ts';

/**
 * What a record that already stands means for a new claim. `owned` leaves one question to the store:
 * is the owner still alive?
 */
export function standing(record: IdempotencyRecord, fingerprint: Fingerprint): Claim | { kind: 'owned' } {
  if (!record.fingerprint.equals(fingerprint)) return { kind: 'mismatch' };
  if (record.state === 'in_doubt') return { kind: 'in_doubt', sinceMs: record.changedAtMs };
  if (record.settlement) return { kind: 'settled', settlement: record.settlement };
  return { kind: 'owned' };
}

/** Why a record may not be resolved, as far as its head tells; `doubtful` leaves it to the store whether its owner lives. */
export function resolvable(
  record: IdempotencyRecord | undefined,
  seen: Token,
): 'changed' | 'alive' | 'doubtful' {
  if (!record?.token.equals(seen) || record.state === 'settled') return 'changed';
  // A claim that never began needs nobody: the next request takes it over.
  return record.state === 'claimed' ? 'alive' : 'doubtful';
}
