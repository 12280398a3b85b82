import { setTimeout as sleep } from 'node:timers/promises';
import type { DuplicateKey, LedgerFilter } from './audit.ts';
import type { Backend } from './backend.ts';
import { Ledger } from './ledger.ts';
import { type OpeningBalances, SANDBOX_MERCHANTS } from './merchants.ts';
import { toMajor } from './money.ts';
import { RequestLog } from './requests.ts';
import { endServer, listen, type RequestLogEntry, serverOf, trackSockets } from './server.ts';
import type { Transaction } from './transaction.ts';

export type { DuplicateKey, LedgerFilter, OpeningBalances, RequestLogEntry, Transaction };
export { SANDBOX_MERCHANTS };

export interface SandboxOptions {
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** Default 9000; 0 picks a free one. */
  readonly port?: number;
  /** The ledger's file; default `:memory:`. Several processes may share one file. */
  readonly databasePath?: string;
  /**
   * Opening balances in major units by merchant code. They count only when a ledger is opened for the first
   * time.
   */
  readonly balances?: OpeningBalances;
  /**
   * A connection is closed after exactly so many idle milliseconds, 0 = never; default is Node's 5 s and a
   * grace period.
   */
  readonly keepAliveTimeoutMs?: number;
  /** Whether X-Sandbox-Fault does anything; default true. */
  readonly faults?: boolean;
  /** Turns GET /v1/transactions?merchant=&key= on, for whoever shows this token. */
  readonly lookupToken?: string;
  /** Called once a request is over. */
  readonly log?: (entry: RequestLogEntry) => void;
}

export interface Sandbox {
  /** Without a slash at its end. */
  readonly url: string;
  readonly port: number;
  readonly ledger: LedgerWitness;
  readonly requests: Pick<RequestLog, 'total' | 'ofPath' | 'ofKey' | 'lastUpgrade'>;
  /** Ends every connection, whatever is going on in it, and closes the ledger. */
  close(): Promise<void>;
}

/** The ledger as a test asks it, in process. Not to be asked after close(). */
export interface LedgerWitness {
  payouts(filter?: LedgerFilter): number;
  checkouts(filter?: LedgerFilter): number;
  charges(filter?: LedgerFilter): number;
  /** All of them, oldest first. */
  transactions(filter?: LedgerFilter): Transaction[];
  duplicateKeys(filter?: LedgerFilter): DuplicateKey[];
  /** Major units. */
  balance(merchant: string): number;
  balanced(): boolean;
}

/**
 * Starts the reference backend: the payments service of the interface, with no idempotency of its own, and
 * the independent witness of how often something was executed. Throws an Error of one line, with its `code`,
 * when the port or the ledger's file cannot be had.
 */
export async function createSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const { host = '127.0.0.1', port = 9000, databasePath = ':memory:', balances, faults = true } = options;
  const ledger = new Ledger(databasePath, balances);
  const stopping = new AbortController();
  const backend: Backend = {
    ledger,
    requests: new RequestLog(),
    faultsEnabled: faults,
    lookupToken: options.lookupToken,
    pause: (milliseconds) => sleep(milliseconds, undefined, { signal: stopping.signal }),
  };
  const server = serverOf(backend, options);
  const sockets = trackSockets(server);
  const taken = await listen(server, host, port).catch((error: unknown) => {
    ledger.close();
    throw error;
  });
  const end = async (): Promise<void> => {
    stopping.abort();
    await endServer(server, sockets);
    ledger.close();
  };
  let ended: Promise<void> | undefined;
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${taken}`,
    port: taken,
    ledger: witnessOf(ledger),
    requests: backend.requests,
    close() {
      ended ??= end();
      return ended;
    },
  };
}

function witnessOf(ledger: Ledger): LedgerWitness {
  const { audit } = ledger;
  return {
    payouts: (filter) => audit.count('withdraw', filter),
    checkouts: (filter) => audit.count('checkout', filter),
    charges: (filter) => audit.count('charge', filter),
    transactions: (filter) => audit.transactions(filter),
    duplicateKeys: (filter) => audit.duplicateKeys(filter),
    balance: (merchant) => toMajor(ledger.wallet(merchant).balanceMinor),
    balanced: () => audit.balanced(),
  };
}
