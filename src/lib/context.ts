import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Exchange, ResponseClass } from './exchange.ts';
import type { Spans, TraceContext } from './trace.ts';

/** A merchant code, or the id of a secret key. Codes become header values and parts of records; ids appear in the log. */
export const NAME_PATTERN = /^[\x21-\x7e]{1,64}$/;

/** The caller, as authentication identified it. */
export interface Merchant {
  /** Public merchant code, the `data.merchant_code` of the payment API. */
  readonly code: string;
  /** The id of the secret key in use: safe to log, unlike the key. */
  readonly keyId: string;
  /** Names of the operations that the key may call. `*`: all of them. */
  readonly scopes: readonly string[];
}

/** How an operation treats idempotency keys. */
export interface OperationIdempotency {
  readonly key: 'none' | 'optional' | 'required';
  readonly inDoubt: 'hold' | 'retry' | 'lookup';
  /** How long a duplicate waits for the result of the first request. */
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

/** Which operation a request is, and how the gateway therefore treats it. */
export interface Identity {
  readonly operation: Operation;
  /** Why two parsers could read the request as different operations. */
  readonly unclear?: string;
  /** A secret key with restricted scopes must have all of these. */
  readonly scopes: readonly string[];
  readonly isDeclared: boolean;
  /** If the request carries an idempotency key, the engine executes it at most once. */
  readonly isProtected: boolean;
  /** Without an idempotency key the request is refused. */
  readonly keyRequired: boolean;
  /** The request is undeclared, under `undeclared: refuse`. */
  readonly isRefused?: boolean;
  /** The declared path, as the configuration spells it. The log shows this and not the path of the request. */
  readonly route?: string;
}

/** Where a request came from. */
export interface Client {
  /** Address of the client, without a port. */
  readonly address: string;
  /** The trusted proxies that it passed, in order: the last one is the peer of the connection. */
  readonly proxies: readonly string[];
  /** The peer is a trusted proxy, so its X-Forwarded fields can be believed. */
  readonly isPeerTrusted?: boolean;
}

/** What the gateway knows about one request. Each middleware adds what it found. */
export interface RequestContext {
  readonly requestId: string;
  /** Monotonic time at which the head of the request had arrived. */
  readonly startedAtMs: number;
  readonly client: Client;
  /** The trace that the request belongs to, if it came with a valid `traceparent` or one was begun. 32 hexadecimal digits. */
  traceId?: string | undefined;
  /** The request keeps the trace that it came with, which is not sampled, as its flag says. */
  isUnsampled?: boolean;
  /** Replaces the trace context that came, which is otherwise passed on. */
  traceContext?: TraceContext | undefined;
  /** The spans of a sampled request. Without `tracing.endpoint` no request has them. */
  spans?: Spans | undefined;
  merchant?: Merchant;
  identity?: Identity;
  /** Progress of the pass-through. Before `connected` no byte was sent. After `upgraded` no HTTP response can be sent. */
  passedThrough?: 'connecting' | 'connected' | 'upgraded';
  /** The request is an upgrade that was accepted and passed to the backend. */
  isUpgrade?: boolean;
  /** `100 Continue` was sent. */
  isInvited?: boolean;
  /** The whole body, if the gateway has read it. Otherwise the body is still unread and can be streamed. */
  body?: Buffer;
  /** The body is too large to be read into memory. */
  isTooLarge?: boolean;
  /** How the request ended: a problem code, or a word such as executed, replayed or passed_through. A label of metrics. */
  outcome?: string;
  /** The idempotency key, if the request is protected by one. Never logged. */
  key?: string;
  /** Headers that hold another key, which the gateway did not use. */
  ignoredKeyHeaders?: string | undefined;
  /** The id of that key’s record. */
  recordId?: string;
  /** Under `mode: observe`: what `mode: protect` would have done, if the request has a key and the store answered. */
  would?: string;
  /** Under `mode: observe`: call it right before the request is sent, and call what it returns with how that ended. */
  observe?: () => (exchange: Exchange) => void;
  /** What came of sending the request to the backend, if that has ended. */
  sent?: ResponseClass | undefined;
  /** Time that the backend took. */
  upstreamMs: number;
  /** Time spent waiting for another request with the same key. */
  waitMs: number;
  /** False while the request executes. Then its log line waits, also after the merchant has disconnected. */
  done: boolean;
  /** Called when the execution ends after the merchant has disconnected. */
  onDone?: (() => void) | undefined;
  /** The functions that {@link onEnd} has collected. */
  ends?: (() => void)[];
}

/** Notes that the execution of a request has ended, or that its log line need not wait for that. A second call does nothing. */
export function setDone(context: RequestContext): void {
  const { onDone } = context;
  context.done = true;
  context.onDone = undefined;
  onDone?.();
}

/** Calls `end` once, when the response is closed and the execution, if there was one, has ended. */
export function onEnd(context: RequestContext, end: () => void): void {
  // Not one closure around the last: minor collections would keep each of them alive, with its request.
  context.ends ??= [];
  context.ends.push(end);
}

/** The trace id for exemplars, if the trace is sampled. Otherwise an exemplar would lead nowhere. */
export const exemplarIdOf = ({ traceId, traceContext, isUnsampled }: RequestContext): string | undefined =>
  isUnsampled || traceContext?.isSampled === false ? undefined : traceId;

const key = Symbol('oncegate.context');

export function attachContext(req: IncomingMessage, context: RequestContext): void {
  (req as IncomingMessage & { [key]?: RequestContext })[key] = context;
}

/** Finds the context of a request that a middleware of oncegate has seen. */
export function findContext(req: IncomingMessage): RequestContext | undefined {
  return (req as IncomingMessage & { [key]?: RequestContext })[key];
}

/** @throws {Error} if the request has no context, which is a mistake in the composition */
export function contextOf(req: IncomingMessage): RequestContext {
  const context = (req as IncomingMessage & { [key]?: RequestContext })[key];
  if (!context) throw new Error('the request has no context: admit() must be the first middleware');
  return context;
}

/**
 * A middleware as Express runs it: it answers, or calls `next`. If `next` gets an argument (a `Problem`, or an error),
 * Express skips the remaining middleware, and the error handler answers with that argument.
 */
export type Middleware = (
  req: IncomingMessage,
  res: ServerResponse,
  next: (refusal?: unknown) => void,
) => void | Promise<void>;

/** Whether the request has a body, according to its head. */
export function hasBody(req: IncomingMessage): boolean {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = req.headers;
  return coding !== undefined || Number(length) > 0;
}
