import type { Fingerprint, Scope } from '../kernel/brands.ts';
import type { AnswerDigest } from './digest.ts';
import type { Decision, Exchange } from './outcome.ts';
import type { StoredResponse } from './record.ts';

/** What a retry does about a key in doubt, see the option of the same name. */
export type InDoubtPolicy = 'hold' | 'retry' | 'lookup';

/** One request with an idempotency key. */
export interface Call {
  scope: Scope;
  fingerprint: Fingerprint;
  merchant: string;
  operation: string;
  key: string;
  /** How long to wait for another request with this key. 0: not at all. */
  waitMs: number;
  /** Statuses by which the backend says that it did not execute. */
  releaseStatuses: readonly number[];
  inDoubt: InDoubtPolicy;
  /** Aborted when the merchant leaves. Ends waiting; never an execution. */
  gone?: AbortSignal;
  /** Told after each wait for another request with this key. */
  waited?(ms: number): void;
  /**
   * Sends the request to the backend, once. Called at most once, and only after a durable begin.
   *
   * @param mayStart to be asked right before the first byte is written. Once it says no, nothing may be sent any more:
   *   the lease has lapsed, and somebody may have taken the key over
   */
  run(mayStart: () => boolean): Promise<Exchange>;
}

/** What the merchant is to be told. */
export type Result =
  /** This request was executed: `decision` says what became of the key. */
  | { kind: 'executed'; exchange: Exchange; decision: Decision }
  | { kind: 'replayed'; response: StoredResponse }
  | { kind: 'tombstone' }
  | { kind: 'in_flight' }
  | { kind: 'mismatch' }
  | { kind: 'in_doubt'; sinceMs: number }
  /** Nothing was sent. */
  | { kind: 'store_unavailable'; cause: unknown }
  /** The engine is closing, or closed; nothing was sent. */
  | { kind: 'closing' };

/** What the engine tells those who watch. Labels are operation names and the words below, nothing else. */
export interface EngineObserver {
  inDoubt(call: Call, exchange: Extract<Exchange, { kind: 'unknown' }>): void;
  stale(write: 'begin' | 'renew' | 'settle' | 'release' | 'in_doubt', call: Call): void;
  /** A result came for a key that another one has been settled for meanwhile, or that is absent. */
  lateAnswer(call: Call, late: AnswerDigest, stands: AnswerDigest): void;
  tookOver(call: Call): void;
  /** Under `inDoubt: retry`: the request goes to the backend once more. */
  sendsAgain(call: Call): void;
  leaseLost(call: Call): void;
  /** The store did not take a settlement in time; the merchant got the answer, and settling goes on. */
  settleLate(call: Call, cause: unknown): void;
  /** It did not until this process ended: the key is in doubt, whatever its merchant was told, unless a write arrives yet. */
  settleGivenUp(call: Call): void;
}
