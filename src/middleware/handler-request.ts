import type { IncomingMessage } from 'node:http';
// biome-ignore lint/suspicious/noTsIgnore: @ts-expect-error is itself an error wherever @types/express is installed, as it is here.
/** @ts-ignore: an application may have no @types/express. Then `ExpressRequest` is `any`, and the package's types still compile. */
import type { Request as ExpressRequest } from 'express';
import { contextOf, type Merchant } from '../lib/context.ts';
import type { Exchange } from '../lib/exchange.ts';
import { without } from '../requests/fields.ts';
import type { SqlClient } from '../store/register.ts';
import type { Recording } from './recording.ts';
import type { TransactionAnswer } from './respond.ts';
import type { HandlerTransaction, TransactionOptions } from './transactions/handler-transaction.ts';

/** What a handler learns of its execution, as `req.idempotency`. Undefined for a request that is not protected. */
export interface Idempotency {
  /** The idempotency key, as the merchant chose it. */
  readonly key: string;
  /** Whose key it is: what the option `merchant` returned. */
  readonly merchant: string;
  /** The name of the operation: the option `operation`. */
  readonly operation: string;
  /** The id of this request, in the log and in `X-Request-Id`. */
  readonly requestId: string;
  /**
   * Whether the execution may still begin to have effects. It must not once its lease may have lapsed. The middleware asks
   * right before it calls the handler. A handler that first does something that takes long should ask again right before its
   * first effect, and call `release()` if the answer is false.
   */
  maySend(): boolean;
  /**
   * Says that nothing was done: the response is sent, and the key is free again. Call it before the response ends.
   *
   * @throws {Error} if the response has ended
   */
  release(): void;
  /**
   * Says that it cannot be known whether anything was done: the response is sent, and the key is in doubt. Call it before the
   * response ends.
   *
   * @throws {Error} if the response has ended
   */
  unknown(): void;
  /**
   * Executes the request in a transaction of the database that holds the records, and commits the key's answer with it: no crash leaves
   * a doubt. Needs the option `transactional`. What `work` returns is sent when it is committed, and every retry gets it, whatever its
   * status. If `work` throws, the transaction is rolled back, the key is free, and this rejects with that error.
   *
   * **`work` may run twice**: after a serialization failure or a deadlock (SQLSTATE 40001, 40P01) its transaction is rolled back, and it
   * is called again. So it must only run statements of its client. A call to a bank in it is not covered: it would be repeated, and
   * not taken back. Use `idempotency` without `transactional` for that.
   *
   * With `sqliteStore` and its option `database`, `work` gets that database, runs once, and must be synchronous: statements of other requests
   * would get into the transaction.
   *
   * @param work gets a client of `pg` in the transaction, without its `release`. Await every statement, and do not end the transaction
   * @returns true if this request was committed. False: the merchant gets another answer, such as that of an earlier request with the
   *   key, and the handler has nothing more to do
   * @throws what `work` throws
   */
  transaction(
    // biome-ignore lint/suspicious/noExplicitAny: an application names the type of its client, such as ClientBase of pg.
    work: (client: any) => TransactionAnswer | Promise<TransactionAnswer>,
    options?: TransactionOptions,
  ): Promise<boolean>;
  /**
   * Inserts the key's record in a transaction that the application has begun itself, so that other requests with the key wait for its
   * end. Call it first, and {@link completeIn} last. It may be called again for another attempt of the transaction.
   *
   * @param client runs a statement in that transaction, and in no savepoint
   * @throws {Error} with the name `KeyTaken`: another request has the key. Roll back and let the error pass: the merchant gets the answer of
   *   that request
   * @throws what the client throws
   */
  startIn(client: SqlClient): Promise<void>;
  /**
   * Stores the answer in the transaction of {@link startIn}. Then commit, and end the response, for example by `res.end()`. The merchant gets
   * this answer once it has been read on another connection, and if it is not there, what the handler has written.
   *
   * @throws {TypeError} it is not the same transaction, or in a savepoint
   */
  completeIn(client: SqlClient, answer: TransactionAnswer): Promise<void>;
}

declare global {
  namespace Express {
    interface Request {
      /** Set for a request that `idempotency` of oncegate protects. */
      idempotency?: Idempotency;
      /** Set by `bearerAuth` of oncegate. */
      merchant?: Merchant;
    }
  }
}

/**
 * The request that functions of the application get: Express's own, with what the application adds to its type. Without types of Express
 * that is `any`, which has every key.
 */
export type HandlerRequest = string extends keyof ExpressRequest
  ? IncomingMessage & Express.Request
  : ExpressRequest;

/** What the handler gets as `req.idempotency`. */
export function handlerView(
  req: IncomingMessage,
  recording: Recording,
  maySend: () => boolean,
  transaction: HandlerTransaction | undefined,
): Idempotency {
  const inTransaction = () => {
    if (!transaction) throw new TypeError('idempotency: transactional: must be true');
    return transaction;
  };
  const say = (said: 'not_executed' | 'unknown') => {
    if (transaction) throw new TypeError('idempotency: a transaction says itself whether it was committed');
    recording.say(said);
  };
  const { requestId, merchant, identity, key = '' } = contextOf(req);
  return {
    key,
    merchant: merchant?.code ?? '',
    operation: identity?.operation.name ?? '',
    requestId,
    maySend,
    release: () => say('not_executed'),
    unknown: () => say('unknown'),
    transaction: async (work, options) => await inTransaction().run(work, options),
    startIn: async (client) => await inTransaction().startIn(client),
    completeIn: async (client, answer) => await inTransaction().completeIn(client, answer),
  };
}

/** A handler that executes a request with a key. */
export interface HandlerExecution {
  /** Headers that may carry the key. */
  readonly keyHeaders: readonly string[];
  maySend(): boolean;
  /** The request is about to be sent: from here on only {@link conclude} tells what became of it. */
  sends(): void;
  /** The bytes of the request's body, unless a parser has read them and only its result is there. */
  readonly rawBody: Buffer | undefined;
  /** Only what a transaction commits counts: see the option `transactional`. */
  readonly isTransactional: boolean;
  /** Ends the execution with the result of a handler that writes no response. */
  conclude(exchange: Exchange): void;
}

/** The execution that a request belongs to, for `forward`. */
export const executions = new WeakMap<IncomingMessage, HandlerExecution>();
export const executionOf = (req: IncomingMessage): HandlerExecution | undefined => executions.get(req);

/**
 * The header fields of a request, as the middleware in front has left them. They come from `rawHeaders`, because Node joins repeated lines
 * in `req.headers`, and `readKey` must see each one. What another middleware has set or removed in `req.headers` counts.
 * Fields that Node joins otherwise or keeps once, such as a repeated Cookie, are among the changed ones too.
 *
 * @returns `fields`: names and values in turn. `changed`: names in lower case
 */
export function fieldsNow({ headers, rawHeaders }: IncomingMessage): {
  fields: readonly string[];
  changed: readonly string[];
} {
  const sent = new Map<string, string>();
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const name = (rawHeaders[i] as string).toLowerCase();
    const value = rawHeaders[i + 1] as string;
    sent.set(name, sent.has(name) ? `${sent.get(name)}, ${value}` : value);
  }
  const now = new Map<string, unknown>();
  for (const [name, value] of Object.entries(headers)) now.set(name.toLowerCase(), value);
  const names = new Set([...sent.keys(), ...now.keys()]);
  const changed = [...names].filter((name) => now.get(name) !== sent.get(name));
  if (changed.length === 0) return { fields: rawHeaders, changed };
  const kept = without(rawHeaders, changed);
  const added = changed.flatMap((name) =>
    [now.get(name) ?? []].flat().flatMap((value) => [name, String(value)]),
  );
  return { fields: [...kept, ...added], changed };
}
