import type { IncomingMessage, ServerResponse } from 'node:http';
import { recordIdOf } from '../ledger/record-id.ts';
import {
  contextOf,
  type Middleware,
  type OperationIdempotency,
  type RequestContext,
  setDone,
} from '../lib/context.ts';
import type { Exchange } from '../lib/exchange.ts';
import { type Problem, problem } from '../lib/problem.ts';
import type { Spans } from '../lib/trace.ts';
import { addHop } from '../requests/hops.ts';
import type { Emit, Told } from '../telemetry/emit.ts';
import { answerOf, sendAnswer } from './answer.ts';
import type { Call, Result } from './call.ts';
import type { Engine } from './engine.ts';
import { fingerprintOf } from './fingerprint.ts';
import { readKey, unquoteKey, waitOf } from './key.ts';
import type { ObservedCall } from './observation.ts';

export interface ProtectOptions {
  engine: Engine;
  /** See the option `layer`. */
  layer: string;
  /** This layer and its store: see {@link hopOf}. */
  hop(): string | undefined;
  /** Header names in lower case, see {@link readKey}. */
  headers: readonly string[];
  /** The header lines that may carry the key, names and values in turn. Default: all lines, as they were sent. */
  keyFields?(req: IncomingMessage): readonly string[];
  /** Reads the whole body into the request's context. `gone`: the merchant disconnected before that. */
  takeBody(req: IncomingMessage, res: ServerResponse): Promise<'read' | 'gone' | Problem>;
  /**
   * Sends a request with a key to the backend, once; never throws.
   *
   * @param maySend see {@link Call.run}
   * @param next runs the middleware behind this one
   */
  send(
    req: IncomingMessage,
    maySend: () => boolean,
    res: ServerResponse,
    next: (refusal?: unknown) => void,
    call: Call,
  ): Promise<Exchange>;
  /** See {@link Call.settle}. */
  settle?: ((req: IncomingMessage, exchange: Exchange) => Promise<Result>) | undefined;
  /** Answers the merchant. Default: {@link sendAnswer}. */
  respond?: typeof sendAnswer;
  emit: Emit;
}

/** The results that are counted as conflicts, and their labels. */
const CONFLICTS: Partial<Record<Result['kind'], Told<'conflicts'>['kind']>> = {
  in_flight: 'in_flight',
  mismatch: 'mismatch',
  in_doubt: 'in_doubt',
  tombstone: 'not_stored',
};

const GONE = 'the merchant has left';

/** Runs a protected request with a key through the engine. Passes every other request to the next middleware. */
export function protect(options: ProtectOptions): Middleware {
  return (req, res, next) => {
    const context = contextOf(req);
    const { identity } = context;
    if (!identity) throw new Error('the request has no operation: identify must come before protect');
    if (!identity.isProtected && !identity.keyRequired) return next();
    const fields = options.keyFields ? options.keyFields(req) : req.rawHeaders;
    const reading = readKey(fields, options.headers);
    if (reading.kind === 'invalid') return next(problem('idempotency_key_invalid', reading.reason));
    if (reading.kind === 'key') {
      const loop = addHop(req, options.hop());
      if (loop) return next(loop);
      // Quotes are a part of the key in other headers, and in one that does not carry keys.
      const isRead = options.headers.includes('idempotency-key');
      if (isRead && identity.operation.idempotency.inDoubt !== 'hold' && !unquoteKey(req, reading.key)) {
        // No code that advises a new key: the payout may have been made under this one, while the policy was `hold`.
        const detail =
          'Without its quotes, which this operation does not send, the key would be another one.';
        return next(problem('invalid_request', detail));
      }
      context.ignoredKeyHeaders = reading.ignored;
      void execute(options, req, res, reading.key, next);
      return;
    }
    if (identity.keyRequired) {
      const detail = `The operation ${identity.operation.name} requires an idempotency key.`;
      return next(problem('idempotency_key_required', detail));
    }
    if (identity.isDeclared) options.emit('unprotected', { operation: identity.operation.name });
    next();
  };
}

/** Executes the request. From here on that continues even if the merchant disconnects. Never throws. */
async function execute(
  options: ProtectOptions,
  req: IncomingMessage,
  res: ServerResponse,
  key: string,
  next: (refusal?: unknown) => void,
): Promise<void> {
  const context = contextOf(req);
  try {
    if (!context.body) {
      const taken = await options.takeBody(req, res);
      if (taken === 'gone') return;
      if (taken !== 'read') return next(taken);
    }
    context.done = false;
    const call = new MerchantCall(options, req, res, next, context, key);
    const result = await options.engine.handle(call);
    const { emit, respond = sendAnswer } = options;
    const { operation } = call;
    const kind = CONFLICTS[result.kind];
    if (result.kind === 'replayed') emit('hits', { operation });
    if (kind) emit('conflicts', { operation, kind });
    respond(res, context, answerOf(result), next);
  } catch (error) {
    // The engine returns its failures as results. Other errors do not change the state of the key.
    next(error);
  } finally {
    setDone(context);
  }
}

/** A request with a key, as the store sees it. Its body must have been read. */
export class KeyedRequest implements ObservedCall {
  readonly recordId: Call['recordId'];
  readonly fingerprint: Call['fingerprint'];
  readonly merchant: string;
  readonly operation: string;
  readonly key: string;
  readonly requestId: string;
  readonly statuses: OperationIdempotency;
  inDoubt: Call['inDoubt'];

  constructor(req: IncomingMessage, context: RequestContext, layer: string, key: string) {
    const { merchant, identity, body } = context;
    if (!merchant || !identity || !body) throw new Error('the context is incomplete');
    const { name, idempotency: policy } = identity.operation;
    this.recordId = recordIdOf(layer, merchant.code, key);
    context.recordId = this.recordId;
    const { 'content-type': contentType, 'content-encoding': contentEncoding } = req.headers;
    this.fingerprint = fingerprintOf(req.method ?? '', targetOf(req), body, { contentType, contentEncoding });
    this.merchant = merchant.code;
    this.operation = name;
    this.key = key;
    this.requestId = context.requestId;
    this.statuses = policy;
    this.inDoubt = policy.inDoubt;
  }
}

/** A request with a key, as the engine sees it. */
class MerchantCall extends KeyedRequest implements Call {
  readonly waitMs: number;
  readonly traceId: string | undefined;
  readonly spans: Spans | undefined;
  readonly #options: ProtectOptions;
  readonly #req: IncomingMessage;
  readonly #res: ServerResponse;
  readonly #next: (refusal?: unknown) => void;
  readonly #context: RequestContext;
  #gone: AbortSignal | undefined;
  readonly settle: Call['settle'];

  constructor(
    options: ProtectOptions,
    req: IncomingMessage,
    res: ServerResponse,
    next: (refusal?: unknown) => void,
    context: RequestContext,
    key: string,
  ) {
    super(req, context, options.layer, key);
    context.key = key;
    this.waitMs = waitOf(String(req.headers.prefer ?? ''), this.statuses.waitMs);
    this.traceId = context.traceId;
    this.spans = context.spans;
    // A backend that reads the other header would take a second request for a new one.
    if (this.inDoubt === 'retry' && context.ignoredKeyHeaders) this.inDoubt = 'hold';
    this.#options = options;
    this.#req = req;
    this.#res = res;
    this.#next = next;
    this.#context = context;
    const { settle } = options;
    this.settle = settle && ((exchange) => settle(req, exchange));
  }

  /** Created on first use, because most requests never wait. */
  get gone(): AbortSignal {
    this.#gone ??= disconnectSignalOf(this.#res);
    return this.#gone;
  }

  waited(ms: number): void {
    this.#context.waitMs += ms;
  }

  run(maySend: () => boolean): Promise<Exchange> {
    return this.#options.send(this.#req, maySend, this.#res, this.#next, this);
  }
}

/** The request target as received. Express changes `url` where an application or a router is mounted. */
export const targetOf = (req: IncomingMessage & { originalUrl?: string }): string =>
  req.originalUrl ?? req.url ?? '';

/** Aborted when the merchant disconnects, or at once if it has disconnected already. */
export function disconnectSignalOf(res: ServerResponse): AbortSignal {
  const left = new AbortController();
  // After a complete response there is nothing to abort. `abort` without a reason would create a costly exception.
  const leave = () => res.writableFinished || left.abort(GONE);
  if (res.closed) leave();
  else res.once('close', leave);
  return left.signal;
}
