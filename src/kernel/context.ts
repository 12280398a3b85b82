import type { IncomingMessage, ServerResponse } from 'node:http';

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

/** A named API call declared in the configuration, or one of the reserved ones: `other` and `undeclared`. */
export interface Operation {
  readonly name: string;
  readonly idempotency: OperationIdempotency;
}

/** Which operation a request is, and what follows from it. */
export interface Identity {
  readonly operation: Operation;
  /** Why two readers could take the request for different operations. Undefined: it is clear. */
  readonly unclear?: string;
  /** Operations that a restricted secret key must be allowed to call. */
  readonly scopes: readonly string[];
  /** The configuration declares the operation. */
  readonly isDeclared: boolean;
  /** An idempotency key protects it. */
  readonly isProtected: boolean;
  /** It is refused without an idempotency key. */
  readonly keyRequired: boolean;
  /** No operation declares it, and the configuration refuses such requests. */
  readonly isRefused?: boolean;
  /** The declared path, as the configuration spells it: what the log shows. */
  readonly route?: string;
}

/** What the gateway knows of one request on its way; each step adds what it found. */
export interface RequestContext {
  readonly requestId: string;
  /** Monotonic milliseconds at which the request's head had arrived. */
  readonly startedAtMs: number;
  merchant?: Merchant;
  /** Unset until it is known. */
  identity?: Identity;
  /** How far the pass-through has come; before `connected` no byte was sent. An upgraded connection takes no answer any more. */
  passedThrough?: 'connecting' | 'connected' | 'upgraded';
  /** Its connection was handed to the backend's. */
  isUpgrade?: boolean;
  /** `100 Continue` was sent. */
  isInvited?: boolean;
  /** The whole body, if it was read. Otherwise it is still to be streamed. */
  body?: Buffer;
  /** The body was found too large to be read into memory. */
  isTooLarge?: boolean;
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

/** The execution of a request has ended. */
export function markDone(context: RequestContext): void {
  context.done = true;
  context.onDone?.();
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

/**
 * One part of a request's path, as Express runs it: it answers, or calls `next`. With a {@link Problem} or an error as
 * argument, `next` ends the path with that.
 */
export type Middleware = (
  req: IncomingMessage,
  res: ServerResponse,
  next: (refusal?: unknown) => void,
) => void | Promise<void>;

/** Does a body follow the head? */
export function hasBody(req: IncomingMessage): boolean {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = req.headers;
  return coding !== undefined || Number(length) > 0;
}

/**
 * A key file was taken, or refused: then the old keys stay in force. `error` is safe to log. `version` is a digest of the
 * file's bytes, or why they cannot be read.
 */
export type KeyReload = ({ ok: true; keys: number } | { ok: false; error: string }) & { version: string };
