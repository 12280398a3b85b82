import type { IncomingMessage } from 'node:http';

/** Who calls, as authentication found it. */
export interface Merchant {
  /** Public merchant code, as in the interface's `data.merchant_code`. */
  readonly code: string;
  /** The id of the secret key in use: safe to log, unlike the key. */
  readonly keyId: string;
  /** Operation names that the key may call; `*` is all of them. */
  readonly scopes: readonly string[];
}

/** What an operation wants done with an idempotency key. */
export interface OperationIdempotency {
  readonly key: 'none' | 'optional' | 'required';
  readonly inDoubt: 'hold' | 'retry' | 'lookup';
  /** How long a duplicate waits for the first one's result. */
  readonly waitMs: number;
  /** Statuses by which the backend says that it did not execute: the key is released. */
  readonly release: readonly number[];
  /** Statuses after which it is unknown whether the backend executed: the key is in doubt. */
  readonly unknown: readonly number[];
}

/** A named API call declared in the configuration, or the built-in `other`. */
export interface Operation {
  readonly name: string;
  readonly idempotency: OperationIdempotency;
}

/** What the gateway knows of one request on its way; each step adds what it found. */
export interface RequestContext {
  readonly requestId: string;
  /** Monotonic milliseconds at which the request's head had arrived. */
  readonly startedAtMs: number;
  merchant?: Merchant;
  /** Unset for what is passed through, and until it is known. */
  operation?: Operation;
  /** How far the pass-through has come; before `connected` no byte was sent. An upgraded connection takes no answer any more. */
  passedThrough?: 'connecting' | 'connected' | 'upgraded';
  /** The whole body, where the executor sends it. */
  body?: Buffer;
  /** How it ended: a problem's code, or executed, released, replayed, forwarded, passed_through. One word of a bounded set. */
  outcome?: string;
  /** Scope of the idempotency key, where there is one. */
  scope?: string;
  /** Time in which the backend was at work. */
  upstreamMs: number;
  /** Time spent waiting for another request with the same key. */
  waitMs: number;
  /** False while an execution goes on whose merchant may have left. */
  done: boolean;
  /** Called when `done` turns true after the merchant had left. */
  onDone?: () => void;
}

const key = Symbol('oncegate.context');

export function attachContext(req: IncomingMessage, context: RequestContext): void {
  (req as IncomingMessage & { [key]?: RequestContext })[key] = context;
}

/** The context of a request. Throws where none was attached: that is a mistake in the composition. */
export function contextOf(req: IncomingMessage): RequestContext {
  const context = (req as IncomingMessage & { [key]?: RequestContext })[key];
  if (!context) throw new Error('the request has no context: requestContext() must be the first middleware');
  return context;
}
