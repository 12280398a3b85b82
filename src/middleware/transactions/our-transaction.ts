import { type Result, resultOf } from '../../idempotency/call.ts';
import { isRepeatable } from '../../ledger/commits.ts';
import { within } from '../../lib/clock.ts';
import type { BackendResponse, Completion } from '../../lib/exchange.ts';
import { type Isolation, KeyLocked, type Transaction } from '../../store/register.ts';
import { StoreUnavailable } from '../../store/types.ts';
import { NOT_ASYNC } from '../refusals.ts';
import type { TransactionAnswer } from '../respond.ts';
import { poll } from './poll.ts';
import {
  executed,
  type Inserted,
  type TransactionKey,
  type TransactionKeyOptions,
} from './transaction-key.ts';

export type Work = (client: never) => TransactionAnswer | Promise<TransactionAnswer>;

export interface OurTransactionOptions extends TransactionKeyOptions {
  timeoutMs: number;
}

/** `taken`: the key has a record. `locked`: another transaction is about to write it. */
type Attempt = Result | { kind: 'taken' } | { kind: 'locked' } | { kind: 'repeat'; error: unknown };

const MOST_REPEATS = 10;
const LONGEST_PAUSE_MS = 50;

/** `transaction(work)`: we begin and commit the transaction. Another request may have the key; then this one waits for its result. */
export class OurTransaction {
  readonly #options: OurTransactionOptions;
  readonly #key: TransactionKey;
  readonly #work: Work;
  readonly #isolation: Isolation;
  #repeats = 0;

  constructor(options: OurTransactionOptions, key: TransactionKey, work: Work, isolation: Isolation) {
    this.#options = options;
    this.#key = key;
    this.#work = work;
    this.#isolation = isolation;
  }

  /** @throws what `work` throws */
  async run(): Promise<Result> {
    const { clock, call } = this.#options;
    return (await poll(clock, call.waitMs, () => this.#try(), call.gone)) ?? { kind: 'in_flight' };
  }

  /** @returns undefined if another request with the key has not ended */
  async #try(): Promise<Result | undefined> {
    const { store, call, clock, random } = this.#options;
    for (;;) {
      const attempt = await this.#attempt();
      if (attempt.kind === 'locked') return undefined;
      if (attempt.kind === 'repeat') {
        if (++this.#repeats > MOST_REPEATS) throw attempt.error;
        await within(clock, undefined, random.fraction() * LONGEST_PAUSE_MS);
      } else if (attempt.kind !== 'taken') return attempt;
      else {
        try {
          const found = await store.peek(call);
          if (found.kind === 'in_flight') return undefined;
          if (found.kind !== 'absent') return resultOf(found);
        } catch (cause) {
          return { kind: 'store_unavailable', cause };
        }
      }
    }
  }

  async #attempt(): Promise<Attempt> {
    const { commits, timeoutMs } = this.#options;
    if (commits.isSynchronous) return await this.#attemptAtOnce();
    const key = this.#key;
    let transaction: Transaction | undefined;
    let claim: Inserted | undefined;
    let isSent = false;
    try {
      key.requireStore();
      transaction = await commits.begin({ isolation: this.#isolation, idleMs: timeoutMs });
      // Requires the store again: it may have been connected meanwhile to a server that has forgotten the key.
      claim = await key.claimIn(transaction.client);
      if (!claim) return { kind: 'taken' };
      const answer = await this.#work(transaction.client as never);
      const response = await key.completeIn(transaction.client, claim, answer);
      isSent = true;
      await transaction.commit();
      return executed(response);
    } catch (error) {
      if (error instanceof KeyLocked) return { kind: 'locked' };
      if (!claim && !isRepeatable(error)) return { kind: 'store_unavailable', cause: error };
      if (claim && isSent && error instanceof StoreUnavailable)
        return await key.afterLostCommit(claim, error);
      key.notCommitting();
      if (isRepeatable(error)) return { kind: 'repeat', error };
      throw error;
    } finally {
      await transaction?.rollback();
    }
  }

  /** On the application's own connection: from the claim to the commit no other code runs. */
  async #attemptAtOnce(): Promise<Attempt> {
    const { commits, isTold } = this.#options;
    const key = this.#key;
    if (this.#work.constructor.name === 'AsyncFunction') throw new TypeError(NOT_ASYNC);
    let response: BackendResponse | undefined;
    let goesOn = false;
    const run = (client: unknown): Completion | undefined => {
      const answer = this.#work(client as never);
      // What it still does is in no transaction and cannot be known, so its claim is committed alone, which leaves the key in doubt.
      if (isPromise(answer)) {
        goesOn = true;
        return undefined;
      }
      response = key.responseOf(answer);
      return key.completionOf(response);
    };
    try {
      key.requireStore();
      const isCommitted = await commits.commitAtOnce(key.newExecution(), run, isTold, (claim) => {
        key.claim = { ...claim, isOver: true };
      });
      if (goesOn) throw new TypeError(NOT_ASYNC);
      return isCommitted && response ? executed(response) : { kind: 'taken' };
    } catch (error) {
      const { claim } = key;
      if (!(error instanceof StoreUnavailable)) throw error;
      if (!error.maybeWritten || !claim) return { kind: 'store_unavailable', cause: error };
      claim.response = response as BackendResponse;
      return await key.afterLostCommit(claim, error);
    }
  }
}

/** Libraries have promises of their own. */
const isPromise = (answer: unknown): answer is PromiseLike<unknown> =>
  typeof (answer as Partial<PromiseLike<unknown>> | null | undefined)?.then === 'function';
