import type { IncomingMessage } from 'node:http';
import type { Result } from '../../idempotency/call.ts';
import type { Store } from '../../ledger/ledger.ts';
import { systemClock } from '../../lib/clock.ts';
import type { Exchange } from '../../lib/exchange.ts';
import { systemRandom } from '../../lib/random.ts';
import type { Emit } from '../../telemetry/emit.ts';
import type { Policy } from '../handler-options.ts';
import type { OpenedStore } from '../stores.ts';
import { HandlerTransaction, type HandlerTransactionOptions } from './handler-transaction.ts';

type OfRequest = Pick<HandlerTransactionOptions, 'call' | 'recording' | 'isTold'>;

/** The transactions of the requests of one `idempotency`. */
export class HandlerTransactions {
  readonly #options: Omit<HandlerTransactionOptions, keyof OfRequest>;
  readonly #ofRequests = new WeakMap<IncomingMessage, HandlerTransaction>();

  constructor(options: Omit<HandlerTransactionOptions, keyof OfRequest>) {
    this.#options = options;
  }

  /** The transaction for a handler that is about to be called. */
  of(req: IncomingMessage, parts: OfRequest): HandlerTransaction {
    const transaction = new HandlerTransaction({ ...this.#options, ...parts });
    this.#ofRequests.set(req, transaction);
    return transaction;
  }

  /** See {@link Call.settle}. */
  settle = async (req: IncomingMessage, exchange: Exchange): Promise<Result> => {
    // Without a transaction the handler was not called.
    const settled = this.#ofRequests.get(req)?.settle(exchange);
    return (await settled) ?? { kind: 'executed', exchange, decision: 'release', stored: false };
  };
}

/**
 * @returns undefined unless the handlers execute their requests in transactions
 * @throws {TypeError} the store is in another database, or the policy is one for keys in doubt
 */
export function transactionsOf(
  { transactional, inDoubt, timeoutMs, completeRetryMs, maxStoredBytes }: Policy,
  { commits }: OpenedStore,
  store: Store,
  emit: Emit,
): HandlerTransactions | undefined {
  if (!transactional) return undefined;
  if (!commits)
    throw new TypeError(
      'idempotency: transactional: needs the store of postgresStore, or of sqliteStore with the option database',
    );
  if (inDoubt !== 'hold')
    throw new TypeError(
      'idempotency: inDoubt: must be hold with transactional, which leaves no key in doubt',
    );
  const given = { commits, store, emit, clock: systemClock, random: systemRandom };
  return new HandlerTransactions({ ...given, timeoutMs, completeRetryMs, maxStoredBytes });
}
