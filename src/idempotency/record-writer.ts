import { createHash } from 'node:crypto';
import type { Store } from '../ledger/ledger.ts';
import type { Scope } from '../lib/brands.ts';
import { type Clock, within } from '../lib/clock.ts';
import type { Completion, Exchange } from '../lib/exchange.ts';
import type { Execution, Fenced, IdempotencyRecord, Owner } from '../store/contract.ts';
import type { Call, EngineObserver } from './call.ts';
import { PendingWrites } from './pending-writes.ts';

export interface RecordWriterOptions {
  /** Writes are repeated for this long at most: the record has expired by then. */
  inDoubtRetentionMs: number;
  /** How long a merchant waits for the response while the store does not acknowledge it. */
  completeRetryMs: number;
}

/** Writes what became of an execution, under its owner's token. No method throws; important writes are repeated. */
export class RecordWriter {
  readonly #store: Store;
  readonly #options: RecordWriterOptions;
  readonly #observer: EngineObserver;
  readonly #pending: PendingWrites;

  constructor(store: Store, options: RecordWriterOptions, observer: EngineObserver, clock: Clock) {
    this.#store = store;
    this.#options = options;
    this.#observer = observer;
    this.#pending = new PendingWrites(clock);
  }

  /** Writes that the store has not answered. */
  get pendingWrites(): number {
    return this.#pending.count;
  }

  /**
   * The store has answered a complete, or the write was given up.
   *
   * @param ended called in either case
   */
  completed(call: Call, completion: Completion, answer: Fenced | undefined, ended: () => void): void {
    ended();
    if (answer === undefined) this.#observer.completeGivenUp(call);
    if (answer === 'stale') void this.#refused(call, completion);
  }

  /**
   * Stores what the exchange ended with. A merchant that was told `outcome_unknown` may retry for `inDoubtRetentionMs`, so the
   * record is then kept for as long as one that was in doubt.
   */
  complete(execution: Execution, completion: Completion, exchange: Exchange): Promise<Fenced> {
    const wasTold = 'isLate' in exchange && exchange.isLate === true;
    return this.#store.complete(execution, completion, wasTold);
  }

  /**
   * Stores a response after a first attempt has failed. `late`: the store did not answer within `completeRetryMs`; the write is
   * repeated in the background.
   *
   * @param write repeats {@link complete}
   * @param ended called when the store has answered, or the write is given up
   */
  async repeatComplete(
    call: Call,
    completion: Completion,
    write: () => Promise<Fenced>,
    ended: () => void,
    cause: unknown,
  ): Promise<Fenced | 'late'> {
    const repeated = this.#pending.add(write, this.#options.inDoubtRetentionMs);
    void repeated.then((answer) => this.completed(call, completion, answer, ended));
    const answer = await within(repeated, this.#options.completeRetryMs);
    if (answer !== undefined) return answer;
    this.#observer.completeLate(call, cause);
    return 'late';
  }

  /** The backend surely did not execute. */
  async release(call: Call, owner: Owner): Promise<void> {
    try {
      const answer = await this.#store.release(owner);
      if (answer === 'stale') this.#observer.stale('release', call);
    } catch {
      this.#repeat(() => this.#store.release(owner));
    }
  }

  /** Whether the backend executed is unknown. A failed write is not repeated: once the lease lapses, the key is in doubt. */
  async markInDoubt(call: Call, owner: Owner, cause: string): Promise<void> {
    const answer = await this.#store.markInDoubt(owner, cause).catch(() => 'ok');
    if (answer === 'stale') this.#observer.stale('in_doubt', call);
  }

  /** A `start` or `restart` had no answer, and nothing was sent under it. */
  takeBack(owner: Owner): void {
    this.#repeat(() => this.#store.takeBack(owner));
  }

  /** Waits for pending writes, at most `ms`. Gives up the writes that are pending then. */
  async close(ms: number): Promise<void> {
    await this.#pending.close(ms);
  }

  #repeat(write: () => Promise<Fenced>): void {
    void this.#pending.add(write, this.#options.inDoubtRetentionMs);
  }

  async #refused(call: Call, completion: Completion): Promise<void> {
    this.#observer.stale('complete', call);
    const stored = await digestOfStored(this.#store, call.scope);
    this.#observer.lateAnswer(call, digestOf(completion), stored);
  }
}

/** A result for the log: enough to distinguish two results, and nothing of their content. */
export interface AnswerDigest {
  state: IdempotencyRecord['state'] | 'absent' | 'unreadable';
  status?: number;
  bodyBytes?: number;
  /** The first 16 hexadecimal digits of the digest. */
  bodySha256?: string;
}

export function digestOf(completion: Completion): AnswerDigest {
  if (completion.kind === 'tombstone') return { state: 'completed', status: completion.status };
  const { status, body } = completion.response;
  const bodySha256 = createHash('sha256').update(body).digest('hex').slice(0, 16);
  return { state: 'completed', status, bodyBytes: body.length, bodySha256 };
}

/** What the store holds for a scope at this moment. Never throws. */
async function digestOfStored(store: Store, scope: Scope): Promise<AnswerDigest> {
  try {
    const record = await store.get(scope);
    if (!record) return { state: 'absent' };
    return record.completion ? digestOf(record.completion) : { state: record.state };
  } catch {
    return { state: 'unreadable' };
  }
}
