import type { Result } from '../../idempotency/call.ts';
import { statusOf } from '../../idempotency/outcome.ts';
import { within } from '../../lib/clock.ts';
import type { Exchange } from '../../lib/exchange.ts';
import type { Isolation, SqlClient } from '../../store/register.ts';
import type { Recording } from '../recording.ts';
import type { TransactionAnswer } from '../respond.ts';
import { LibraryTransaction } from './library-transaction.ts';
import { OurTransaction, type OurTransactionOptions, type Work } from './our-transaction.ts';
import { executed, TransactionKey } from './transaction-key.ts';

/** Options of {@link Idempotency.transaction}. */
export interface TransactionOptions {
  /** Default `read committed`. */
  isolation?: Isolation;
}

export interface HandlerTransactionOptions extends OurTransactionOptions {
  recording: Pick<Recording, 'responseOf' | 'endWith'>;
}

/**
 * The transaction in which a handler executes its request, and what became of it. It has one of two shapes: {@link OurTransaction} or
 * {@link LibraryTransaction}.
 */
export class HandlerTransaction {
  readonly #options: HandlerTransactionOptions;
  readonly #key: TransactionKey;
  readonly #ofLibrary: LibraryTransaction;
  #isOurs = false;
  /** That of our transaction. */
  #result: Result | undefined;
  /** Resolves when all that was called has ended. A handler can end its response before. */
  #ended: Promise<true> = Promise.resolve(true);
  /** It is decided what the merchant is answered. */
  #isSettled = false;

  constructor(options: HandlerTransactionOptions) {
    this.#options = options;
    this.#key = new TransactionKey(options);
    this.#ofLibrary = new LibraryTransaction(this.#key);
  }

  /** See {@link Idempotency.transaction}. */
  run(work: Work, { isolation = 'read committed' }: TransactionOptions = {}): Promise<boolean> {
    return this.#whileOpen(async () => {
      if (this.#isOurs || this.#key.claim)
        throw new TypeError('idempotency: a request has one transaction, by transaction or by startIn');
      this.#isOurs = true;
      const result = await new OurTransaction(this.#options, this.#key, work, isolation).run();
      this.#result = result;
      const isCommitted = result.kind === 'executed';
      // What the handler still writes is dropped.
      this.#options.recording.endWith(isCommitted ? result.exchange : NOTHING_COMMITTED);
      return isCommitted;
    });
  }

  /** See {@link Idempotency.startIn}. */
  startIn(client: SqlClient): Promise<void> {
    return this.#whileOpen(async () => {
      if (this.#isOurs) throw new TypeError('idempotency: startIn does not go together with transaction');
      await this.#ofLibrary.startIn(client);
    });
  }

  /** See {@link Idempotency.completeIn}. */
  completeIn(client: SqlClient, answer: TransactionAnswer): Promise<void> {
    return this.#ofLibrary.completeIn(client, answer);
  }

  /** See {@link TransactionKey.whenLate}. */
  whenLate(tell: () => void): void {
    this.#key.whenLate(tell);
  }

  /** @throws {TypeError} the merchant has an answer, which must not become wrong */
  async #whileOpen<T>(act: () => Promise<T>): Promise<T> {
    if (this.#isSettled)
      throw new TypeError('idempotency: no transaction begins after the response has ended');
    const { promise, resolve } = Promise.withResolvers<true>();
    // Not only the last call: one that is refused while another is under way ends at once.
    this.#ended = this.#ended.then(() => promise);
    return await act().finally(() => resolve(true));
  }

  /** What became of the key, when the handler has ended. */
  async settle(exchange: Exchange): Promise<Result> {
    const { emit, call, clock, completeRetryMs } = this.#options;
    const hasEnded = this.#result ?? (await within(clock, this.#ended, completeRetryMs));
    this.#isSettled = true;
    if (this.#result) return this.#result;
    // It may still be committed.
    if (!hasEnded) return { kind: 'in_flight' };
    const key = this.#key;
    for (let { claim } = key; claim; claim = claim.before) {
      const outcome = await key.outcomeOf(claim);
      if (outcome === 'committed')
        return claim.response ? executed(claim.response) : await key.resultOfOther();
      if (outcome === 'incomplete') return await key.leaveInDoubt(claim);
      if (outcome === undefined) return { kind: 'in_flight' };
    }
    if (this.#ofLibrary.isTaken) return await key.resultOfOther();
    const nothing = { kind: 'executed', decision: 'release', stored: false } as const;
    if (exchange.kind === 'not_sent' || statusOf(exchange) >= 400) return { ...nothing, exchange };
    if (exchange.kind === 'oversize') exchange.body.destroy();
    if (exchange.kind !== 'unknown') emit('not_committed', { operation: call.operation });
    return { ...nothing, exchange: NOTHING_COMMITTED };
  }
}

const NOTHING_COMMITTED: Exchange = { kind: 'not_sent', reason: 'the handler has committed nothing' };
