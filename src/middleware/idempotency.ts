import type { IncomingMessage, ServerResponse } from 'node:http';
import { Slots } from '../backend/slots.ts';
import { Lookups } from '../doubts/lookups.ts';
import { admit, Lifecycle } from '../gateway/admission.ts';
import type { MerchantAnswer } from '../idempotency/answer.ts';
import type { Call } from '../idempotency/call.ts';
import { Engine } from '../idempotency/engine.ts';
import { idempotencyOptions } from '../idempotency/idempotency-options.ts';
import { protect } from '../idempotency/protect.ts';
import { systemClock, within } from '../lib/clock.ts';
import { contextOf, exemplarIdOf, setDone } from '../lib/context.ts';
import { classOf, type Exchange } from '../lib/exchange.ts';
import { isProblem, type Problem, problemDocument, sendProblem, streamOrCut } from '../lib/problem.ts';
import { findClientInExpress } from '../requests/client-address.ts';
import { hasField } from '../requests/fields.ts';
import { hopOf } from '../requests/hops.ts';
import { isSafe } from '../requests/target.ts';
import { type Emit, Events } from '../telemetry/emit.ts';
import { createLogger } from '../telemetry/logger.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';
import { RequestLog } from '../telemetry/request-log.ts';
import {
  checkLifetimes,
  claimOperation,
  handlerLookups,
  type IdempotencyMiddleware,
  type IdempotencyOptions,
  type Policy,
  parsePolicy,
} from './handler-options.ts';
import {
  executions,
  fieldsNow,
  type HandlerRequest,
  handlerView,
  type Idempotency,
} from './handler-request.ts';
import { bodyOf, type ParsedRequest } from './parsed-body.ts';
import { Recording } from './recording.ts';
import { errorOf, handlerLate, problemBefore, unauthenticated } from './refusals.ts';
import { setHead, writeResponse } from './respond.ts';
import { openedMetrics, shareStoreMetrics } from './shared-metrics.ts';
import { OpenedStore } from './stores.ts';
import { type HandlerTransactions, transactionsOf } from './transactions/transactions.ts';

type Request = ParsedRequest & {
  idempotency?: Idempotency;
  merchant?: { code: string; keyId?: string; scopes?: readonly string[] };
};
type Next = (error?: unknown) => void;

const MERCHANT = /^[\x20-\x7e]{1,255}$/;
const CLOSE_MS = 30_000;

/**
 * Express middleware that executes the handler behind it at most once for each merchant and idempotency key, and gives every
 * request with that key the response of that execution. It protects requests that carry a key and whose method is not GET,
 * HEAD, OPTIONS or TRACE. For Express 4 and 5, over HTTP/1.1.
 *
 * The response is held back until it is stored. If the merchant disconnects, the handler goes on. If the process dies in the
 * handler, the key is in doubt.
 *
 * @param options `store` is needed, and `merchant` unless {@link bearerAuth} is in front
 * @returns the middleware. A handler behind it gets {@link Idempotency} as `req.idempotency`
 * @throws {TypeError} if an option is invalid
 */
export function idempotency(options: IdempotencyOptions): IdempotencyMiddleware {
  return new Handlers(options).middleware();
}

/** One `idempotency` middleware: its engine, and the recordings of the handlers behind it. */
class Handlers {
  readonly #options: IdempotencyOptions;
  readonly #policy: Policy;
  readonly #hop: () => string | undefined;
  readonly #metrics: AllMetrics;
  readonly #requestLog: RequestLog;
  readonly #lifecycle = new Lifecycle();
  readonly #engine: Engine;
  readonly #lookups: Lookups;
  readonly #unclaim: () => void;
  readonly #emit: Emit;
  readonly #doubtGauges: ReturnType<typeof shareStoreMetrics>;
  readonly #recordings = new WeakMap<ServerResponse, Recording>();
  readonly #rawBodies = new WeakMap<IncomingMessage, Buffer>();
  readonly #transactions: HandlerTransactions | undefined;
  #hasWarned = false;

  constructor(options: IdempotencyOptions) {
    const { store } = options;
    if (!(store instanceof OpenedStore))
      throw new TypeError(
        'idempotency: store: must be the result of sqliteStore, redisStore or postgresStore',
      );
    this.#options = options;
    const policy = parsePolicy(options);
    this.#policy = policy;
    this.#hop = () => hopOf(policy.layer, store.storeId());
    checkLifetimes(policy, store);
    this.#metrics = openedMetrics(options.metrics, policy, store.lifetimes);
    const { logger = createLogger('warn') } = options;
    this.#requestLog = new RequestLog({
      clock: systemClock,
      logger,
      metrics: this.#metrics,
      clientOf: findClientInExpress,
    });
    const events = new Events(logger, this.#metrics);
    const { emit } = events;
    this.#emit = emit;
    const { executing, queued, queueTimeoutMs } = policy.limits;
    const slots = new Slots({ maxConnections: executing, maxQueued: queued, queueTimeoutMs }, systemClock);
    const records = store.measured(emit);
    const lookups = handlerLookups(options, policy, store);
    this.#unclaim = claimOperation(options, policy, store);
    this.#lookups = new Lookups(records, policy.layer, lookups, emit, systemClock);
    void this.#lookups.lookUpAbandoned(store.lifetimes.leaseMs);
    const engineOptions = { ...policy, ...store.lifetimes };
    this.#engine = new Engine(records, slots, engineOptions, emit, systemClock, this.#lookups);
    this.#transactions = transactionsOf(policy, store, records, emit);
    this.#declareMetrics();
    this.#doubtGauges = shareStoreMetrics(store, { metrics: this.#metrics, clock: systemClock, emit });
    events.on('resolved', () => this.#doubtGauges.resolved());
  }

  middleware(): IdempotencyMiddleware {
    const { limits, headers, layer } = this.#policy;
    const admitted = admit(this.#requestLog, limits.inFlight, this.#lifecycle);
    const protectedBy = protect({
      engine: this.#engine,
      layer,
      hop: this.#hop,
      headers,
      keyFields: (req) => fieldsNow(req).fields,
      takeBody: (req, res) => this.#takeBody(req, res).catch((thrown) => Promise.reject(errorOf(thrown))),
      send: (req, maySend, res, next, call) => this.#run(req, maySend, res, next, call),
      settle: this.#transactions?.settle,
      respond: (res, _context, answer, next) => this.#respond(res, answer, next),
      emit: this.#emit,
    });
    const middleware = (req: Request, res: ServerResponse, next: Next): void => {
      // Not by `req.idempotency`: a middleware of the application may use that name too.
      if (executions.has(req)) {
        // An outer `idempotency` protects this request already.
        next();
        return;
      }
      const refuse = (refusal: unknown) => {
        if (isProblem(refusal)) this.#refuse(res, refusal);
        else next(refusal);
      };
      // A response of an AWS Lambda adapter is never closed. Node takes its socket off the others first, and closes them itself.
      res.once('finish', () => res.socket && res.emit('close'));
      void admitted(req, res, (refusal) => {
        if (refusal !== undefined) return refuse(refusal);
        let stranger: Problem | undefined;
        try {
          stranger = this.#identify(req, res);
        } catch (error) {
          return next(errorOf(error));
        }
        if (stranger) return refuse(stranger);
        void protectedBy(req, res, (error) => {
          if (error !== undefined) return refuse(error);
          contextOf(req).outcome ??= 'passed_through';
          next();
        });
      });
    };
    const close = (ms = CLOSE_MS) => this.#close(ms);
    return Object.assign(middleware, { metrics: this.#metrics, close });
  }

  async #close(ms: number): Promise<void> {
    this.#lifecycle.close();
    const endMs = systemClock.monotonicMs() + ms;
    const leftMs = () => Math.max(0, endMs - systemClock.monotonicMs());
    await this.#engine.drain(ms);
    await within(systemClock, this.#lookups.close(), leftMs());
    this.#unclaim();
    this.#doubtGauges.close();
    await this.#engine.close(leftMs());
  }

  /** @returns the refusal of a request with a key whose merchant the application does not know */
  #identify(req: Request, res: ServerResponse): Problem | undefined {
    const { operation: name, key, inDoubt, waitMs, release, unknown } = this.#policy;
    const context = contextOf(req);
    const { merchant = (of: HandlerRequest) => of.merchant?.code } = this.#options;
    const isProtected = key !== 'none' && !isSafe(req.method);
    context.identity = {
      operation: { name, idempotency: { key, inDoubt, waitMs, release, unknown } },
      scopes: [],
      isDeclared: true,
      isProtected,
      keyRequired: isProtected && key === 'required',
    };
    const fields = isProtected ? fieldsNow(req).fields : [];
    const hasKey = this.#policy.headers.some((header) => hasField(fields, header));
    const code = hasKey ? merchant(req as HandlerRequest) : undefined;
    if (hasKey && code === undefined) return unauthenticated(res);
    if (hasKey && (typeof code !== 'string' || !MERCHANT.test(code)))
      throw new TypeError(
        'idempotency: merchant: must return 1 to 255 printable ASCII characters for every request with a key, or undefined',
      );
    context.merchant = { code: code ?? '', keyId: req.merchant?.keyId ?? '', scopes: ['*'] };
    return undefined;
  }

  async #takeBody(req: ParsedRequest, res: ServerResponse): Promise<'read' | 'gone' | Problem> {
    if (res.headersSent)
      throw new Error('another middleware has sent the head of the response before idempotency()');
    const context = contextOf(req);
    const { body } = this.#options;
    if (body) {
      const compared = body(req as HandlerRequest);
      if (typeof compared !== 'string' && !(compared instanceof Uint8Array))
        throw new TypeError('idempotency: body: must return a string or a Buffer');
      context.body = Buffer.from(compared as string);
      return 'read';
    }
    const found = await bodyOf(req, this.#policy.limits);
    if (found === 'gone' || isProblem(found)) return found;
    context.body = found.bytes;
    if (found.isRaw) this.#rawBodies.set(req, found.bytes);
    return 'read';
  }

  /** Calls the handler, and resolves with its recorded response. */
  #run(req: Request, maySend: () => boolean, res: ServerResponse, next: Next, call: Call): Promise<Exchange> {
    return new Promise((resolve) => {
      // The body was put back into the request, and has gone with it: the handler could not read it.
      if (req.destroyed && !req.readableEnded)
        return resolve({ kind: 'not_sent', reason: 'the merchant disconnected before the handler ran' });
      if (!maySend())
        return resolve({ kind: 'not_sent', reason: 'the lease had lapsed before the handler ran' });
      const context = contextOf(req);
      // What the merchant was told must not become wrong: after that, the execution must not begin to have effects.
      let isTold = false;
      const mayStillSend = () => !isTold && maySend();
      const startedMs = systemClock.monotonicMs();
      const { maxStoredBytes: maxBytes, timeoutMs, abandonAfterMs, operation } = this.#policy;
      const done = (exchange: Exchange) => {
        const elapsedMs = systemClock.monotonicMs() - startedMs;
        context.sent = classOf(exchange);
        context.upstreamMs = elapsedMs;
        const labels = { operation, result: exchange.kind };
        this.#metrics.upstreamSeconds.observe(labels, elapsedMs / 1000, exemplarIdOf(context));
        resolve(isTold ? Object.assign(exchange, { isLate: true }) : exchange);
        isTold = true;
      };
      const tellLate = () => {
        isTold = true;
        context.sent = 'unknown';
        context.upstreamMs = systemClock.monotonicMs() - startedMs;
        context.outcome = handlerLate().code;
        recording.redirected.answerFirst(() => this.#refuse(res, handlerLate()));
        // A handler may end hours later, or never: operators see the answer now.
        setDone(context);
      };
      const onTimeLimit = () => (transaction ? transaction.whenLate(tellLate) : tellLate());
      const onProxy = () => this.#warnOfProxy();
      const limits = { maxBytes, timeoutMs, abandonAfterMs };
      const recording = new Recording(res, { ...limits, onProxy, onTimeLimit }, done);
      this.#recordings.set(res, recording);
      const transaction = this.#transactions?.of(req, { call, recording, isTold: () => isTold });
      req.idempotency = handlerView(req, recording, mayStillSend, transaction);
      const rawBody = this.#rawBodies.get(req);
      executions.set(req, {
        keyHeaders: this.#policy.headers,
        maySend: mayStillSend,
        sends: () => recording.sends(),
        rawBody,
        isTransactional: transaction !== undefined,
        conclude: (exchange) => recording.conclude(exchange),
      });
      next();
    });
  }

  #respond(res: ServerResponse, answer: MerchantAnswer, next: (refusal: Problem) => void): void {
    const context = contextOf(res.req);
    const recording = this.#recordings.get(res);
    if (recording?.redirected.isAnswered) {
      if ('stream' in answer) answer.stream.body.destroy();
      recording.discard();
      return;
    }
    context.outcome = answer.outcome;
    if ('stream' in answer) {
      const { status, headers, body } = answer.stream;
      const writeHead = () => {
        clear(res);
        setHead(res, status, headers);
        res.setHeader('X-Request-Id', context.requestId);
      };
      if (recording?.isOversize(body)) recording.stream(writeHead);
      else {
        recording?.restore();
        if (!res.destroyed) writeHead();
        streamOrCut(body, res);
      }
      return;
    }
    recording?.restore();
    const isOfBackend = recording && !this.#transactions;
    if ('problem' in answer) next(isOfBackend ? answer.problem : problemBefore(answer.problem));
    else {
      // The response of the handler has the fields that were set before it ran, unless it removed them.
      if (recording && answer.originalRequestId === undefined) clear(res);
      writeResponse(res, answer.response, context.requestId, answer.originalRequestId);
    }
    recording?.ignoreHandler();
  }

  #refuse(res: ServerResponse, refusal: Problem): void {
    const context = contextOf(res.req);
    context.outcome = refusal.code;
    sendProblem(res, problemDocument(refusal, context.requestId));
  }

  #warnOfProxy(): void {
    if (this.#hasWarned) return;
    this.#hasWarned = true;
    this.#emit('handler_pipes', { operation: this.#policy.operation });
  }

  #declareMetrics(): void {
    const metrics = this.#metrics;
    metrics.declareOperations([this.#policy.operation]);
    metrics.track(metrics.executing, () => this.#engine.executing);
    metrics.track(metrics.waiting, () => this.#engine.waiting);
    metrics.track(metrics.pendingWrites, () => this.#engine.pendingWrites);
    metrics.track(metrics.storeRefuses, () => Number(this.#engine.storeRefuses));
    // The gateway's default: the alerts compare the age of the oldest key in doubt with this gauge.
    const { inDoubtPageAfterMs } = idempotencyOptions.shape;
    metrics.inDoubtPageAfter.set(inDoubtPageAfterMs.parse(undefined) / 1000);
  }
}

/** Removes all header fields that are set on a response. */
function clear(res: ServerResponse): void {
  for (const name of res.getHeaderNames()) res.removeHeader(name);
}
