import type { IncomingMessage } from 'node:http';
// biome-ignore lint/suspicious/noTsIgnore: @ts-expect-error is itself an error wherever @types/express is installed, as it is here.
/** @ts-ignore: an application may have no @types/express. Then `ExpressRequest` is `any`, and the package's types still compile. */
import type { Request as ExpressRequest } from 'express';
import { contextOf, type Merchant } from '../lib/context.ts';
import type { Exchange } from '../lib/exchange.ts';
import type { Recording } from './recording.ts';

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
export function handlerView(req: IncomingMessage, recording: Recording, maySend: () => boolean): Idempotency {
  const { requestId, merchant, identity, key = '' } = contextOf(req);
  return {
    key,
    merchant: merchant?.code ?? '',
    operation: identity?.operation.name ?? '',
    requestId,
    maySend,
    release: () => recording.say('not_executed'),
    unknown: () => recording.say('unknown'),
  };
}

/** A handler that executes a request with a key. */
export interface HandlerExecution {
  /** Headers that may carry the key. */
  readonly keyHeaders: readonly string[];
  maySend(): boolean;
  /** The bytes of the request's body, unless a parser has read them and only its result is there. */
  readonly rawBody: Buffer | undefined;
  /** Ends the execution with the result of a handler that writes no response. */
  conclude(exchange: Exchange): void;
}

/** The execution that a request belongs to, for `forward`. */
export const executions = new WeakMap<IncomingMessage, HandlerExecution>();
export const executionOf = (req: IncomingMessage): HandlerExecution | undefined => executions.get(req);
