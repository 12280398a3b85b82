import { type Call, type Result, resultOf } from '../../idempotency/call.ts';
import { type Claim, type Commits, isRefusal } from '../../ledger/commits.ts';
import type { Store } from '../../ledger/ledger.ts';
import { newExecution } from '../../ledger/record-id.ts';
import type { Clock } from '../../lib/clock.ts';
import type { BackendResponse, Completion } from '../../lib/exchange.ts';
import type { Random } from '../../lib/random.ts';
import type { SqlClient } from '../../store/register.ts';
import { type Execution, StoreUnavailable } from '../../store/types.ts';
import type { Emit } from '../../telemetry/emit.ts';
import type { Recording } from '../recording.ts';
import { partsOf, type TransactionAnswer } from '../respond.ts';
import { poll } from './poll.ts';

export interface TransactionKeyOptions {
  commits: Commits;
  store: Store;
  recording: Pick<Recording, 'responseOf'>;
  call: Call;
  emit: Emit;
  /** The merchant has been answered that the handler is late. */
  isTold(): boolean;
  completeRetryMs: number;
  maxStoredBytes: number;
  clock: Clock;
  random: Random;
}

/** A record that a transaction has inserted. */
export interface Inserted extends Claim {
  /** Its transaction has surely ended. */
  isOver: boolean;
  /** What completes it. */
  response?: BackendResponse;
}

/** `record` is unknown if the claim failed, and the application may have committed it all the same. */
type MaybeInserted = Omit<Inserted, 'record'> &
  Partial<Inserted> & {
    /** The claim before this one, which the application may have committed instead. */
    before?: MaybeInserted | undefined;
  };

/** The key of a request that a transaction executes: the record that the transaction has inserted, and what became of it. */
export class TransactionKey {
  readonly #options: TransactionKeyOptions;
  /** The last one. */
  claim: MaybeInserted | undefined;
  #isCommitting = false;
  #late: (() => void) | undefined;

  constructor(options: TransactionKeyOptions) {
    this.#options = options;
  }

  /** @throws {StoreUnavailable} the store may have forgotten the key */
  requireStore(): void {
    const { refusing } = this.#options.store;
    if (refusing !== undefined) throw new StoreUnavailable(refusing, { maybeWritten: false });
  }

  /** Under a token of its own, as each transaction needs. */
  newExecution(): Execution {
    const { call, random } = this.#options;
    return newExecution(call, random.token());
  }

  /**
   * Inserts the record in the transaction of the client.
   *
   * @returns undefined if a record is there
   * @throws as {@link Commits.claim}
   */
  async claimIn(client: SqlClient): Promise<Inserted | undefined> {
    this.requireStore();
    const execution = this.newExecution();
    try {
      const claim = await this.#options.commits.claim(client, execution);
      if (!claim) return undefined;
      // Even a rollback does not end it surely: a COMMIT that a function has sent itself may still wait for a standby.
      const inserted: Inserted = { ...claim, isOver: false };
      this.claim = inserted;
      return inserted;
    } catch (error) {
      // The application may go on with its transaction, which may have the record all the same.
      if (!isRefusal(error)) this.claim = { execution, isOver: false, before: this.claim };
      throw error;
    }
  }

  /**
   * Completes the record in the transaction of the client.
   *
   * @throws {TypeError} the answer cannot be sent
   * @throws as {@link Commits.complete}
   */
  async completeIn(client: SqlClient, claim: Inserted, answer: TransactionAnswer): Promise<BackendResponse> {
    const { commits, isTold } = this.#options;
    const response = this.responseOf(answer);
    this.#isCommitting = true;
    try {
      await commits.complete(client, claim, this.completionOf(response), isTold());
    } catch (error) {
      this.notCommitting();
      throw error;
    }
    claim.response = response;
    return response;
  }

  /** @throws {TypeError} it cannot be sent */
  responseOf(answer: TransactionAnswer): BackendResponse {
    const { status, fields, body } = partsOf(answer);
    return this.#options.recording.responseOf(status, fields, body);
  }

  completionOf(response: BackendResponse): Completion {
    const { headers, body, status } = response;
    const bytes = headers.reduce((sum, text) => sum + text.length, body.length);
    const isTooLarge = bytes > this.#options.maxStoredBytes;
    return isTooLarge ? { kind: 'tombstone', status } : { kind: 'response', response };
  }

  /** Calls `tell` at once, unless the transaction is being committed: what the record says of the merchant must not become wrong. */
  whenLate(tell: () => void): void {
    if (this.#isCommitting) this.#late = tell;
    else tell();
  }

  /** The transaction that was about to be committed was not. */
  notCommitting(): void {
    this.#isCommitting = false;
    this.#late?.();
    this.#late = undefined;
  }

  /** The COMMIT has no answer, or standbys may not have it. */
  async afterLostCommit(claim: MaybeInserted, cause: unknown): Promise<Result> {
    claim.isOver = false;
    const outcome = await this.outcomeOf(claim);
    if (outcome === 'committed') return executed(claim.response as BackendResponse);
    return outcome === 'free' ? { kind: 'store_unavailable', cause } : { kind: 'in_flight' };
  }

  /** @returns undefined if it cannot be known within the time for a complete */
  outcomeOf(claim: MaybeInserted) {
    const { commits, clock, completeRetryMs } = this.#options;
    // It fails if the transaction has not ended, or the store does not answer.
    return poll(clock, completeRetryMs, () => commits.outcomeOf(claim, claim.isOver).catch(() => undefined));
  }

  /** The result of another request that has the key. It may not have ended. */
  async resultOfOther(): Promise<Result> {
    const { store, call, clock } = this.#options;
    const ask = async () => {
      const result = resultOf(await store.peek(call));
      return result.kind === 'in_flight' ? undefined : result;
    };
    try {
      return (await poll(clock, call.waitMs, ask, call.gone)) ?? { kind: 'in_flight' };
    } catch (cause) {
      return { kind: 'store_unavailable', cause };
    }
  }

  /** The application has committed the transaction without the completion. */
  async leaveInDoubt({ execution }: MaybeInserted): Promise<Result> {
    const { store, emit, call } = this.#options;
    const reason = 'the transaction was committed without completing the key';
    emit('in_doubt', { ...call, cause: 'status', reason });
    // A failed write is not repeated: once the lease lapses, the key is in doubt.
    await store.leaveInDoubt(execution, reason).catch(() => {});
    const exchange = { kind: 'unknown', reason, timedOut: false } as const;
    return { kind: 'executed', exchange, decision: 'in_doubt', stored: false };
  }
}

/** The result of a transaction that was committed. */
export const executed = (response: BackendResponse): Result => ({
  kind: 'executed',
  exchange: { kind: 'complete', response },
  decision: 'complete',
  stored: true,
});
