import { type Call, type Result, resultOf } from '../idempotency/call.ts';
import { statusOf } from '../idempotency/outcome.ts';
import { type Claim, type Commits, isRepeatable } from '../ledger/commits.ts';
import type { Store } from '../ledger/ledger.ts';
import { newExecution } from '../ledger/record-id.ts';
import { systemClock, within } from '../lib/clock.ts';
import type { BackendResponse, Completion, Exchange } from '../lib/exchange.ts';
import { systemRandom } from '../lib/random.ts';
import { type Isolation, KeyLocked, type SqlClient, type Transaction } from '../store/register.ts';
import { type PeekAnswer, StoreUnavailable } from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Recording } from './recording.ts';
import { KeyTaken, NOT_ASYNC } from './refusals.ts';
import { partsOf, type TransactionAnswer } from './respond.ts';

/** Options of {@link Idempotency.transaction}. */
export interface TransactionOptions {
  /** Default `read committed`. */
  isolation?: Isolation;
}

export interface HandlerTransactionOptions {
  commits: Commits;
  store: Store;
  recording: Recording;
  call: Call;
  emit: Emit;
  /** The merchant has been answered that the handler is late. */
  isTold(): boolean;
  timeoutMs: number;
  completeRetryMs: number;
  maxStoredBytes: number;
}

type Work = (client: never) => TransactionAnswer | Promise<TransactionAnswer>;

type Attempt =
  | { kind: 'committed'; response: BackendResponse }
  | { kind: 'taken' | 'locked' | 'undecided' }
  | { kind: 'repeat'; error: unknown }
  | { kind: 'unavailable'; cause: unknown };

/** `isOver`: its transaction has surely ended. `response`: what completes it. */
type Inserted = Pick<Claim, 'execution'> & Partial<Claim> & { isOver: boolean; response?: BackendResponse };

const FIRST_POLL_MS = 25;
const LONGEST_POLL_MS = 250;
const MOST_REPEATS = 10;
const LONGEST_PAUSE_MS = 50;

/** The transaction in which a handler executes its request, and what became of it. */
export class HandlerTransaction {
  readonly #options: HandlerTransactionOptions;
  #isUsed = false;
  /** The last record that a transaction has inserted. */
  #claim: Inserted | undefined;
  /** A claim was refused: another request has the key. */
  #isTaken = false;
  #result: Result | undefined;
  #isCommitting = false;
  #late: (() => void) | undefined;
  /** Resolves when what was called last has ended. A handler can end its response before. */
  #ended: Promise<true> = Promise.resolve(true);
  /** It is decided what the merchant is answered. */
  #isSettled = false;

  constructor(options: HandlerTransactionOptions) {
    this.#options = options;
  }

  /** See {@link Idempotency.transaction}. */
  run(work: Work, { isolation = 'read committed' }: TransactionOptions = {}): Promise<boolean> {
    return this.#whileOpen(async () => {
      if (this.#isUsed || this.#claim)
        throw new TypeError('idempotency: a request has one transaction, by transaction or by startIn');
      this.#isUsed = true;
      return await this.#run(work, isolation);
    });
  }

  async #run(work: Work, isolation: Isolation): Promise<boolean> {
    const { store, call } = this.#options;
    const untilMs = systemClock.monotonicMs() + call.waitMs;
    let repeats = 0;
    for (let pollMs = FIRST_POLL_MS; ; pollMs = Math.min(pollMs * 1.5, LONGEST_POLL_MS)) {
      const attempt = await this.#attempt(work, isolation);
      if (attempt.kind === 'committed') return this.#end(executed(attempt.response), attempt.response);
      if (attempt.kind === 'unavailable')
        return this.#end({ kind: 'store_unavailable', cause: attempt.cause });
      if (attempt.kind === 'undecided') return this.#end({ kind: 'in_flight' });
      if (attempt.kind === 'repeat') {
        if (++repeats > MOST_REPEATS) throw attempt.error;
        await within(systemClock, undefined, systemRandom.fraction() * LONGEST_PAUSE_MS);
        continue;
      }
      let found: PeekAnswer = { kind: 'in_flight' };
      try {
        if (attempt.kind === 'taken') found = await store.peek(call);
      } catch (cause) {
        return this.#end({ kind: 'store_unavailable', cause });
      }
      if (found.kind === 'absent') continue;
      const leftMs = untilMs - systemClock.monotonicMs();
      if (found.kind !== 'in_flight' || leftMs <= 0 || call.gone?.aborted) return this.#end(resultOf(found));
      await within(systemClock, undefined, Math.min(pollMs, leftMs), call.gone);
    }
  }

  /** See {@link Idempotency.startIn}. */
  startIn(client: SqlClient): Promise<void> {
    return this.#whileOpen(() => this.#startIn(client));
  }

  async #startIn(client: SqlClient): Promise<void> {
    const { commits, call } = this.#options;
    if (this.#isUsed) throw new TypeError('idempotency: startIn does not go together with transaction');
    // The attempt before was not committed.
    this.#stopsCommitting();
    this.#requireStore();
    const execution = newExecution(call, systemRandom.token());
    try {
      const claim = await commits.claim(client, execution);
      if (claim) {
        this.#claim = { ...claim, isOver: false };
        return;
      }
    } catch (error) {
      // The application may go on with its transaction, which may have the record all the same.
      if (error instanceof TypeError) this.#claim ??= { execution, isOver: false };
      if (!(error instanceof KeyLocked)) throw error;
    }
    this.#isTaken = true;
    throw new KeyTaken();
  }

  /** See {@link Idempotency.completeIn}. */
  async completeIn(client: SqlClient, answer: TransactionAnswer): Promise<void> {
    const { commits, isTold } = this.#options;
    const claim = this.#claim;
    if (!isWhole(claim))
      throw new TypeError('idempotency: completeIn needs a startIn before it in the same transaction');
    const response = this.#responseOf(answer);
    this.#isCommitting = true;
    try {
      await commits.complete(client, claim, this.#completionOf(response), isTold());
    } catch (error) {
      this.#stopsCommitting();
      throw error;
    }
    claim.response = response;
  }

  /** Calls `tell` at once, unless the transaction is being committed: what the record says of the merchant must not become wrong. */
  whenLate(tell: () => void): void {
    if (this.#isCommitting) this.#late = tell;
    else tell();
  }

  #stopsCommitting(): void {
    this.#isCommitting = false;
    this.#late?.();
    this.#late = undefined;
  }

  /** @throws {TypeError} the merchant has an answer, which must not become wrong */
  async #whileOpen<T>(act: () => Promise<T>): Promise<T> {
    if (this.#isSettled)
      throw new TypeError('idempotency: no transaction begins after the response has ended');
    const { promise, resolve } = Promise.withResolvers<true>();
    this.#ended = promise;
    return await act().finally(() => resolve(true));
  }

  /** What became of the key, when the handler has ended. */
  async settle(exchange: Exchange): Promise<Result> {
    const { emit, call, completeRetryMs } = this.#options;
    const hasEnded = this.#result ?? (await within(systemClock, this.#ended, completeRetryMs));
    this.#isSettled = true;
    if (this.#result) return this.#result;
    // It may still be committed.
    if (!hasEnded) return { kind: 'in_flight' };
    const claim = this.#claim;
    if (claim) {
      const outcome = await this.#decide(claim);
      if (outcome === 'committed')
        return claim.response ? executed(claim.response) : await this.#waitForOther();
      if (outcome === 'incomplete') return await this.#leaveInDoubt(claim);
      if (outcome === undefined) return { kind: 'in_flight' };
    }
    if (this.#isTaken) return await this.#waitForOther();
    const nothing = { kind: 'executed', decision: 'release', stored: false } as const;
    if (exchange.kind === 'not_sent' || statusOf(exchange) >= 400) return { ...nothing, exchange };
    if (exchange.kind === 'oversize') exchange.body.destroy();
    if (exchange.kind !== 'unknown') emit('not_committed', { operation: call.operation });
    return { ...nothing, exchange: NOTHING_COMMITTED };
  }

  async #attempt(work: Work, isolation: Isolation): Promise<Attempt> {
    const { commits, call, isTold, timeoutMs } = this.#options;
    if (commits.isSynchronous) return await this.#attemptAtOnce(work);
    const execution = newExecution(call, systemRandom.token());
    let transaction: Transaction | undefined;
    let claim: (Inserted & Claim) | undefined;
    let isSent = false;
    try {
      this.#requireStore();
      transaction = await commits.begin({ isolation, idleMs: timeoutMs });
      // The store may have been connected again meanwhile, to a server that has forgotten the key.
      this.#requireStore();
      const claimed = await commits.claim(transaction.client, execution);
      if (!claimed) return { kind: 'taken' };
      // Even a rollback does not show it: a COMMIT that the function has sent itself may still wait for a standby.
      claim = { ...claimed, isOver: false };
      this.#claim = claim;
      const response = this.#responseOf(await work(transaction.client as never));
      this.#isCommitting = true;
      await commits.complete(transaction.client, claim, this.#completionOf(response), isTold());
      claim.response = response;
      isSent = true;
      await transaction.commit();
      return { kind: 'committed', response };
    } catch (error) {
      if (error instanceof KeyLocked) return { kind: 'locked' };
      if (!claim && !isRepeatable(error)) return { kind: 'unavailable', cause: error };
      // Otherwise the function has thrown it.
      const isOfStore = error instanceof StoreUnavailable && isSent;
      if (isOfStore && error.maybeWritten && claim) return await this.#afterLostCommit(claim, error);
      if (isOfStore) return { kind: 'unavailable', cause: error };
      this.#stopsCommitting();
      if (isRepeatable(error)) return { kind: 'repeat', error };
      throw error;
    } finally {
      this.#isCommitting = false;
      await transaction?.rollback();
    }
  }

  /** On the application's own connection: from the claim to the commit no other code runs. */
  async #attemptAtOnce(work: Work): Promise<Attempt> {
    const { commits, call, isTold } = this.#options;
    if (work.constructor.name === 'AsyncFunction') throw new TypeError(NOT_ASYNC);
    let response: BackendResponse | undefined;
    const run = (client: unknown): Completion => {
      const answer = work(client as never);
      if (answer instanceof Promise) throw new TypeError(NOT_ASYNC);
      response = this.#responseOf(answer);
      return this.#completionOf(response);
    };
    const execution = newExecution(call, systemRandom.token());
    try {
      this.#requireStore();
      const isCommitted = await commits.commitAtOnce(execution, run, isTold(), (claim) => {
        this.#claim = { ...claim, isOver: true };
      });
      return isCommitted && response ? { kind: 'committed', response } : { kind: 'taken' };
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error;
      if (!error.maybeWritten || !this.#claim) return { kind: 'unavailable', cause: error };
      this.#claim.response = response as BackendResponse;
      return await this.#afterLostCommit(this.#claim, error);
    }
  }

  /** The COMMIT has no answer, or standbys may not have it. */
  async #afterLostCommit(claim: Inserted, cause: unknown): Promise<Attempt> {
    claim.isOver = false;
    const outcome = await this.#decide(claim);
    if (outcome === 'committed') return { kind: 'committed', response: claim.response as BackendResponse };
    return outcome === 'free' ? { kind: 'unavailable', cause } : { kind: 'undecided' };
  }

  /** @returns undefined if it cannot be known within the time for a complete */
  async #decide(claim: Inserted) {
    const { commits, completeRetryMs } = this.#options;
    const untilMs = systemClock.monotonicMs() + completeRetryMs;
    for (let pollMs = FIRST_POLL_MS; ; pollMs = Math.min(pollMs * 1.5, LONGEST_POLL_MS)) {
      try {
        return await commits.outcomeOf(claim, claim.isOver);
      } catch {
        // The transaction has not ended, or the store does not answer.
      }
      if (systemClock.monotonicMs() >= untilMs) return undefined;
      await within(systemClock, undefined, pollMs);
    }
  }

  /** The application has committed the transaction without the completion. */
  async #leaveInDoubt({ execution }: Inserted): Promise<Result> {
    const { store, emit, call } = this.#options;
    const reason = 'the transaction was committed without completing the key';
    emit('in_doubt', { ...call, cause: 'status', reason });
    // A failed write is not repeated: once the lease lapses, the key is in doubt.
    await store.leaveInDoubt(execution, reason).catch(() => {});
    const exchange = { kind: 'unknown', reason, timedOut: false } as const;
    return { kind: 'executed', exchange, decision: 'in_doubt', stored: false };
  }

  /** The other request may not have ended. */
  async #waitForOther(): Promise<Result> {
    const { store, call } = this.#options;
    const untilMs = systemClock.monotonicMs() + call.waitMs;
    for (let pollMs = FIRST_POLL_MS; ; pollMs = Math.min(pollMs * 1.5, LONGEST_POLL_MS)) {
      try {
        const result = resultOf(await store.peek(call));
        const leftMs = untilMs - systemClock.monotonicMs();
        if (result.kind !== 'in_flight' || leftMs <= 0 || call.gone?.aborted) return result;
        await within(systemClock, undefined, Math.min(pollMs, leftMs), call.gone);
      } catch (cause) {
        return { kind: 'store_unavailable', cause };
      }
    }
  }

  /** Ends the recording. What the handler still writes is dropped. */
  #end(result: Result, response?: BackendResponse): boolean {
    this.#result = result;
    this.#options.recording.settle(response ? { kind: 'complete', response } : NOTHING_COMMITTED);
    return response !== undefined;
  }

  #requireStore(): void {
    const { refusing } = this.#options.store;
    if (refusing !== undefined) throw new StoreUnavailable(refusing, { maybeWritten: false });
  }

  /** @throws {TypeError} it cannot be sent */
  #responseOf(answer: TransactionAnswer): BackendResponse {
    const { status, fields, body } = partsOf(answer);
    return this.#options.recording.responseOf(status, fields, body);
  }

  #completionOf(response: BackendResponse): Completion {
    const { headers, body, status } = response;
    const bytes = headers.reduce((sum, text) => sum + text.length, body.length);
    const isTooLarge = bytes > this.#options.maxStoredBytes;
    return isTooLarge ? { kind: 'tombstone', status } : { kind: 'response', response };
  }
}

const NOTHING_COMMITTED: Exchange = { kind: 'not_sent', reason: 'the handler has committed nothing' };

const executed = (response: BackendResponse): Result => ({
  kind: 'executed',
  exchange: { kind: 'complete', response },
  decision: 'complete',
  stored: true,
});

const isWhole = (claim?: Inserted): claim is Inserted & Claim => claim?.record !== undefined;
