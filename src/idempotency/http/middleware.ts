import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { contextOf, type RequestContext } from '../../kernel/context.ts';
import { type Problem, problem, sendProblem } from '../../kernel/problem.ts';
import type { Call, Result } from '../call.ts';
import type { Engine } from '../engine.ts';
import { fingerprintOf, scopeOf } from '../fingerprint.ts';
import type { Exchange } from '../outcome.ts';
import { type Answer, answerOf, answerOfExchange, overloaded, sendResponse, sendStream } from './answer.ts';
import { readKey, waitOf } from './key.ts';

export interface IdempotencyMiddlewareOptions {
  engine: Engine;
  /** Header names in lower case, see {@link readKey}. */
  headers: readonly string[];
  /** Sends a request with a key to the backend, once; never throws. `maySend`: see {@link Call.run}. */
  send(req: IncomingMessage, maySend: () => boolean): Promise<Exchange>;
  /** Sends a request without a key. Undefined: no connection became free in time, and nothing was sent. */
  forward(req: IncomingMessage, gone: () => AbortSignal): Promise<Exchange | undefined>;
  /** An operation that takes a key was called without one. */
  unprotected(operation: string): void;
  /** A request with a key has this result. */
  handled(operation: string, result: Result): void;
  /** The gateway itself failed; the merchant got 500. */
  failed(error: unknown, requestId: string): void;
}

const GONE = 'the merchant has left';

const SAFE_METHODS = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);

/**
 * Runs a matched operation: through the engine if the request has a key and the operation takes one, otherwise directly.
 * The context must hold merchant, operation and body.
 */
export function idempotency(options: IdempotencyMiddlewareOptions): RequestListener {
  return (req, res) => {
    const context = contextOf(req);
    context.done = false;
    void run(options, req, res, context);
  };
}

/** Never throws. */
async function run(
  options: IdempotencyMiddlewareOptions,
  req: IncomingMessage,
  res: ServerResponse,
  context: RequestContext,
): Promise<void> {
  try {
    const answer = await execute(options, req, res, context);
    context.outcome = answer.outcome;
    if ('problem' in answer) sendProblem(res, answer.problem, context.requestId);
    else if ('stream' in answer) sendStream(res, answer.stream);
    else sendResponse(res, answer.response, answer.replayed);
  } catch (error) {
    // The engine never throws, so the failure has not changed the state of the key.
    options.failed(error, context.requestId);
    const broken = problem('internal_error', 'The gateway failed while it answered.');
    context.outcome = broken.code;
    if (res.headersSent) res.destroy();
    else sendProblem(res, broken, context.requestId);
  } finally {
    context.done = true;
    context.onDone?.();
  }
}

async function execute(
  options: IdempotencyMiddlewareOptions,
  req: IncomingMessage,
  res: ServerResponse,
  context: RequestContext,
): Promise<Answer> {
  const { operation } = context;
  if (!operation) throw new Error('no operation was matched');
  const takesKey = operation.idempotency.key !== 'none' && !SAFE_METHODS.has(req.method ?? '');
  if (!takesKey) return await forward(options, req, res);
  const reading = readKey(req.rawHeaders, options.headers);
  if (reading.kind === 'invalid') return refused(problem('idempotency_key_invalid', reading.reason));
  if (reading.kind === 'key') {
    const result = await options.engine.handle(new MerchantCall(options, req, res, reading.key));
    options.handled(operation.name, result);
    return answerOf(result);
  }
  if (operation.idempotency.key === 'required') {
    return refused(
      problem('idempotency_key_required', `The operation ${operation.name} requires an idempotency key.`),
    );
  }
  options.unprotected(operation.name);
  return await forward(options, req, res);
}

async function forward(
  options: IdempotencyMiddlewareOptions,
  req: IncomingMessage,
  res: ServerResponse,
): Promise<Answer> {
  const exchange = await options.forward(req, () => departureOf(res));
  return exchange ? answerOfExchange(exchange, 'forwarded') : overloaded();
}

const refused = (p: Problem): Answer => ({ outcome: p.code, problem: p });

/** One request with a key, as the engine sees it. */
class MerchantCall implements Call {
  readonly scope: Call['scope'];
  readonly fingerprint: Call['fingerprint'];
  readonly merchant: string;
  readonly operation: string;
  readonly key: string;
  readonly waitMs: number;
  readonly requestId: string;
  readonly statuses: Call['statuses'];
  readonly inDoubt: Call['inDoubt'];
  readonly #options: IdempotencyMiddlewareOptions;
  readonly #req: IncomingMessage;
  readonly #res: ServerResponse;
  readonly #context: RequestContext;
  #gone: AbortSignal | undefined;

  constructor(options: IdempotencyMiddlewareOptions, req: IncomingMessage, res: ServerResponse, key: string) {
    const context = contextOf(req);
    const { merchant, operation, body } = context;
    if (!merchant || !operation || !body) throw new Error('the context is incomplete');
    const { waitMs, inDoubt } = operation.idempotency;
    this.scope = scopeOf(merchant.code, key);
    context.scope = this.scope;
    this.fingerprint = fingerprintOf(req.method ?? '', req.url ?? '', body);
    this.merchant = merchant.code;
    this.operation = operation.name;
    this.key = key;
    this.waitMs = waitOf(String(req.headers.prefer ?? ''), waitMs);
    this.requestId = context.requestId;
    this.statuses = operation.idempotency;
    this.inDoubt = inDoubt;
    this.#options = options;
    this.#req = req;
    this.#res = res;
    this.#context = context;
  }

  /** Created on first use, because most requests never wait. */
  get gone(): AbortSignal {
    this.#gone ??= departureOf(this.#res);
    return this.#gone;
  }

  waited(ms: number): void {
    this.#context.waitMs += ms;
  }

  run(maySend: () => boolean): Promise<Exchange> {
    return this.#options.send(this.#req, maySend);
  }
}

/** Aborted when the merchant leaves, or has left. */
function departureOf(res: ServerResponse): AbortSignal {
  const left = new AbortController();
  // After a complete answer there is nothing left to abort. A reason of our own avoids an exception with its stack trace.
  const leave = () => res.writableFinished || left.abort(GONE);
  if (res.closed) leave();
  else res.once('close', leave);
  return left.signal;
}
