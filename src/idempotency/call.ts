import type { BackendResponse, Exchange } from '../lib/exchange.ts';
import type { Spans } from '../lib/trace.ts';
import type { Execution, PeekAnswer } from '../store/types.ts';
import type { Decision, StatusPolicy } from './outcome.ts';

export interface EngineOptions {
  /** How long the lease lives without being renewed. */
  leaseMs: number;
  /** Writes are repeated for this long at most: the record has expired by then. */
  inDoubtRetentionMs: number;
  /** How long a merchant waits for the response while the store does not acknowledge it. */
  completeRetryMs: number;
  /** How many duplicates may wait at once. One more is answered `in_flight`. */
  maxWaiters: number;
}

/** What happens when a merchant retries with a key in doubt; see the option `inDoubt`. */
export type InDoubtPolicy = 'hold' | 'retry' | 'lookup';

/** One request with an idempotency key. */
export interface Call extends Omit<Execution, 'token' | 'memory'> {
  /** How long to wait for another request with this key. Milliseconds; 0: not at all. */
  waitMs: number;
  /** The trace that the log names, if the request has one. */
  traceId?: string | undefined;
  /** The spans of a sampled request. */
  spans?: Spans | undefined;
  statuses: StatusPolicy;
  inDoubt: InDoubtPolicy;
  /** Aborted when the merchant disconnects. It ends a wait, and never an execution. */
  gone?: AbortSignal;
  /** Called after each wait for another request with this key. */
  waited?(ms: number): void;
  /**
   * Sends the request to the backend. Called at most once, and only after a durable start; with `settle`, without one.
   *
   * @param maySend must be called right before the first byte is written. If it answers false, nothing may be sent: the
   *   lease may have lapsed, and another request may own the key by now.
   */
  run(maySend: () => boolean): Promise<Exchange>;
  /**
   * Says what became of the key when `run` has ended. Only if the handler itself writes the record, in a transaction of its own
   * database. Then nothing is started before it runs.
   */
  settle?: ((exchange: Exchange) => Promise<Result>) | undefined;
}

/** What the merchant gets. `requestId`: that of the first request with this key. */
export type Result =
  /**
   * This request was sent, or could not be sent: `decision` says what became of the key. `stored`: the response is in the
   * store, so that retries get it.
   */
  | { kind: 'executed'; exchange: Exchange; decision: Decision; stored: boolean }
  | { kind: 'replayed'; response: BackendResponse; requestId: string }
  | { kind: 'tombstone'; requestId: string }
  | { kind: 'in_flight' }
  | { kind: 'mismatch' }
  | { kind: 'in_doubt'; sinceMs: number; requestId: string }
  /** The store did not answer. This request sent nothing. */
  | { kind: 'store_unavailable'; cause: unknown }
  /** No slot became free in time, or the queue for slots is full. This request sent nothing. */
  | { kind: 'overloaded' }
  /** The engine is closing or closed. This request sent nothing. */
  | { kind: 'closing' };

/** What is found of a request that has a key already, as the result of another one with it. */
export function resultOf(found: PeekAnswer): Result {
  if (found.kind === 'absent') return { kind: 'in_flight' };
  if (found.kind !== 'completed') return found;
  return { kind: 'replayed', response: found.response, requestId: found.requestId };
}
