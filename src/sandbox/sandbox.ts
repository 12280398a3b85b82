import { setTimeout as sleep } from 'node:timers/promises';
import { type Backend, Delays } from './backend.ts';
import { NO_FAULTS, parseFaults } from './faults.ts';
import { type DuplicateKey, Ledger, type LedgerFilter } from './ledger.ts';
import { type OpeningBalances, SANDBOX_MERCHANTS } from './merchants.ts';
import { type Transaction, toMajor } from './orders.ts';
import { RequestLog } from './request.ts';
import { createHttpServer, endServer, listen, type RequestLogEntry, trackSockets } from './server.ts';

export type { DuplicateKey, LedgerFilter, OpeningBalances, RequestLogEntry, Transaction };
export { SANDBOX_MERCHANTS };

export interface SandboxOptions {
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** Default 9000; 0 selects a free port. */
  readonly port?: number;
  /** File of the ledger; default `:memory:`. Several processes may share a file. */
  readonly databasePath?: string;
  /** Opening balances in major units by merchant code. They apply only when the ledger is created. */
  readonly balances?: OpeningBalances;
  /**
   * How long a connection may be idle before the sandbox closes it, without the buffer that Node adds; 0: forever. Default:
   * Node's 5 s and its buffer.
   */
  readonly keepAliveTimeoutMs?: number;
  /** Whether X-Sandbox-Fault has an effect; default true. */
  readonly faults?: boolean;
  /** What X-Sandbox-Fault would say, for requests with an idempotency key and without that header; default: no faults. */
  readonly usualFaults?: string;
  /** Enables GET /v1/transactions?merchant=&key= for requests with this bearer token. */
  readonly lookupToken?: string;
  /** Called when a request has ended. */
  readonly log?: (entry: RequestLogEntry) => void;
}

export interface Sandbox {
  /** Without a trailing slash. */
  readonly url: string;
  readonly port: number;
  readonly ledger: LedgerReader;
  readonly requests: Pick<RequestLog, 'total' | 'ofPath' | 'ofKey' | 'lastUpgrade'>;
  /** From now on the fault `delay` does not hold back requests with this idempotency key. Those that wait are executed at once. */
  endDelays(key: string): void;
  /** Ends all connections, even those with a running request, and closes the ledger. */
  close(): Promise<void>;
}

/** Reads the ledger from the same process. Not usable after close(). */
export interface LedgerReader {
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
 * Starts the reference backend: a payments service without any idempotency. It imports nothing from the gateway, so its
 * ledger is independent evidence of how often something was executed.
 *
 * @throws {Error} with a message of one line, and with the operating system's `code`, if the port or the ledger's file
 * cannot be used, or if `usualFaults` is not a list of faults
 */
export async function createSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const { host = '127.0.0.1', port = 9000, databasePath = ':memory:', balances, faults = true } = options;
  const usual = options.usualFaults === undefined ? undefined : parseFaults(options.usualFaults);
  if (usual?.ok === false) throw new Error(usual.message);
  const ledger = new Ledger(databasePath, balances);
  const stopping = new AbortController();
  const backend: Backend = {
    ledger,
    requests: new RequestLog(),
    faultsEnabled: faults,
    usualFaults: usual?.faults ?? NO_FAULTS,
    lookupToken: options.lookupToken,
    pause: (milliseconds) => sleep(milliseconds, undefined, { signal: stopping.signal }),
    delays: new Delays(),
  };
  const server = createHttpServer(backend, options);
  const sockets = trackSockets(server);
  const boundPort = await listen(server, host, port).catch((error: unknown) => {
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
    url: `http://${host.includes(':') ? `[${host}]` : host}:${boundPort}`,
    port: boundPort,
    ledger: readerOf(ledger),
    requests: backend.requests,
    endDelays: (key) => backend.delays.end(key),
    close() {
      ended ??= end();
      return ended;
    },
  };
}

function readerOf(ledger: Ledger): LedgerReader {
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
