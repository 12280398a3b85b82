import { IncomingMessage, ServerResponse } from 'node:http';
import express, { type Express, type Request, type Response } from 'express';
import type { Config } from '../config/schema.ts';
import type { Engine } from '../idempotency/engine.ts';
import { operationIdempotencyOptions } from '../idempotency/idempotency-options.ts';
import type { Observation } from '../idempotency/observation.ts';
import { observe } from '../idempotency/observe.ts';
import { protect } from '../idempotency/protect.ts';
import { type Authenticator, authenticate } from '../keys/authenticate.ts';
import { authorise } from '../keys/authorise.ts';
import { contextOf, type Middleware } from '../lib/context.ts';
import { isProblem, problem, problemDocument, sendProblemOrCut } from '../lib/problem.ts';
import {
  BodyBudget,
  type BodyLimits,
  defaultBudgetBytes,
  takeBody,
  takeWholeBody,
} from '../requests/body.ts';
import { identify, type Operations, OperationsHistory } from '../requests/operations.ts';
import { PublicPaths } from '../requests/public-paths.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { RequestLog } from '../telemetry/request-log.ts';
import { admit, checkHead, type Lifecycle } from './admission.ts';
import { Forwarder, type ForwarderOptions } from './forwarder.ts';
import type { Application } from './http-server.ts';
import { MerchantLimits } from './merchant-limits.ts';
import { forwardPublic, PublicShare } from './public-requests.ts';
import type { RateLimiter } from './rate-limiter.ts';

/** What all versions of the application share. */
export interface AppParts extends Omit<ForwarderOptions, 'limits'> {
  requestLog: RequestLog;
  lifecycle: Lifecycle;
  authenticator: Authenticator;
  engine: Engine;
  hop(): string | undefined;
  observation: Observation | undefined;
  emit: Emit;
}

/** One application for each version of the configuration: a request keeps the options with which it began. */
export class AppVersions {
  /** Always leads to the version in force. */
  readonly app: Application;
  readonly #config: Config;
  readonly #parts: AppParts;
  readonly #history: OperationsHistory;
  /** Made for the first version that limits merchants, and kept: it counts the requests that are in flight. */
  #merchantLimits: MerchantLimits | undefined;
  readonly #publicShare: PublicShare;
  readonly #bodyBudget: BodyBudget;
  /** The part for public requests, so that merchants have the rest. */
  readonly #publicBudget: BodyBudget;
  #inForce: Application;

  /** @param rateLimiter needed if a merchant has a limit */
  constructor(config: Config, parts: AppParts, rateLimiter: RateLimiter | undefined) {
    this.#config = config;
    this.#parts = parts;
    this.#history = new OperationsHistory({
      idempotency: operationIdempotencyOptions.parse({}),
      undeclared: config.idempotency.undeclared,
    });
    this.#publicShare = new PublicShare(config.upstream.maxStreams);
    this.#bodyBudget = new BodyBudget(budgetBytesOf(config));
    this.#publicBudget = new BodyBudget(publicBytesOf(config), this.#bodyBudget);
    const { metrics } = parts;
    metrics.track(metrics.bufferedBytes, () => this.#bodyBudget.bytes);
    this.#inForce = this.#build(config, rateLimiter);
    const { Request, Response } = this.#inForce;
    this.app = { Request, Response, handle: (req, res) => this.#inForce.handle(req, res) };
  }

  /** Builds the application of a changed configuration. The function that it returns puts it in force, and does not throw. */
  prepare(changed: Config, rateLimiter: RateLimiter | undefined): () => void {
    const next = this.#build(changed, rateLimiter, this.app);
    const { perMerchant } = changed.limits;
    return () => {
      if (perMerchant && rateLimiter) this.#merchantLimits?.change(perMerchant, rateLimiter);
      this.#bodyBudget.maxBytes = budgetBytesOf(changed);
      this.#publicBudget.maxBytes = publicBytesOf(changed);
      this.#inForce = next;
    };
  }

  #build(
    config: Config,
    rateLimiter: RateLimiter | undefined,
    classes?: Pick<Application, 'Request' | 'Response'>,
  ): Application {
    const { operations: declared } = config;
    const limits = { ...config.limits, budget: this.#bodyBudget };
    const { requestLog, lifecycle, authenticator, emit, metrics } = this.#parts;
    const { perMerchant } = limits;
    if (perMerchant && rateLimiter)
      this.#merchantLimits ??= new MerchantLimits(perMerchant, rateLimiter, metrics);
    const merchantLimits = perMerchant && this.#merchantLimits;
    const { auth } = this.#config;
    const operations = this.#history.next(declared);
    const forward = new Forwarder({ ...this.#parts, limits });
    // The middleware of every request and of every WebSocket handshake.
    return createApp(
      [
        // Begins the request id, the clock and the log line. Refuses the request if too many are in flight.
        admit(requestLog, limits.inFlight, lifecycle),
        // Refuses malformed heads and ambiguous targets.
        checkHead,
        // Sends a request on a public path straight to the backend.
        ...this.#publicForwarder(limits, operations, forward, merchantLimits),
        // Finds the merchant of the secret key, or refuses with 401.
        authenticate(authenticator),
        // Refuses a request of a merchant who sends too many.
        ...(merchantLimits ? [merchantLimits.check] : []),
        // Finds the operation. Reads the body if the operation depends on it.
        identify(operations, limits),
        // Refuses with 403 if the secret key may not call the operation.
        authorise(auth),
        // Sends a protected request with a key through the engine to the backend.
        this.#protect(limits, forward),
        // Sends every other request to the backend.
        forward.handle.bind(forward),
      ],
      refusalAnswerer(emit),
      classes,
    );
  }

  /** The middleware for public paths, if there are any. */
  #publicForwarder(
    limits: BodyLimits,
    operations: Operations,
    forwarder: Forwarder,
    merchantLimits: MerchantLimits | undefined,
  ): Middleware[] {
    const { auth, idempotency } = this.#config;
    if (auth.public.length === 0) return [];
    const forward = forwardPublic({
      paths: new PublicPaths(auth.public, operations),
      keyHeaders: idempotency.headers,
      refusalOf: (req) => this.#publicShare.enter(req) ?? merchantLimits?.refusalOfPublic(req),
      limits: { ...limits, budget: this.#publicBudget },
      forward: (req, res, next) => forwarder.handle(req, res, next),
    });
    return [forward];
  }

  #protect(limits: BodyLimits, forward: Forwarder): Middleware {
    const { engine, hop, observation, emit } = this.#parts;
    const { headers, layer } = this.#config.idempotency;
    if (observation)
      return observe({
        observation,
        layer,
        headers,
        takeBody: (req, res) => takeBody(req, res, limits),
        emit,
      });
    return protect({
      engine,
      layer,
      hop,
      headers,
      takeBody: (req, res) => takeWholeBody(req, res, limits),
      send: forward.send.bind(forward),
      emit,
    });
  }
}

const budgetBytesOf = ({ limits: { bufferedBytes, bodyBytes } }: Config): number =>
  bufferedBytes ?? Math.max(bodyBytes, defaultBudgetBytes());

/** The public requests' part of the budget: a quarter, or one body if that is more. */
const publicBytesOf = (config: Config): number =>
  Math.max(config.limits.bodyBytes, Math.floor(budgetBytesOf(config) / 4));

/**
 * Builds the Express application.
 *
 * @param chain its middleware, in order. Targets without a path go through the first two only
 * @param answerRefusal answers the refusals and errors of all of them
 * @param classes those of an earlier application whose HTTP server this one shall take over
 */
export function createApp(
  chain: readonly [admit: Middleware, checkHead: Middleware, ...others: Middleware[]],
  answerRefusal: (refusal: unknown, req: IncomingMessage, res: ServerResponse) => void,
  classes?: Pick<Application, 'Request' | 'Response'>,
): Application {
  const app = express();
  // Express must not change the backend's responses: they are sent byte for byte.
  app.disable('x-powered-by').disable('etag');
  // Express must not parse the query: only `identify` reads it.
  app.set('query parser', false);
  app.use(inOneLayer(chain));
  const [admit, checkHead] = chain;
  const { Request, Response } = classes ?? classesOf(app);
  // Express reads these two as prototypes; its types say that they are whole requests and responses.
  app.request = Request.prototype as unknown as Express['request'];
  app.response = Response.prototype as unknown as Express['response'];
  return {
    Request,
    Response,
    handle(req, res) {
      // Express calls this with an error, with a refusal, or with nothing if no middleware has answered. It calls in a later turn of
      // the event loop. By then a body that came in the same packet has been read, and the connection can be kept.
      const end = (refusal: unknown = new Error('no middleware has answered')) =>
        answerRefusal(refusal, req, res);
      // Express runs no middleware for a target that has no path, such as a://. It is admitted, and `checkHead` refuses it.
      if (!req.url?.startsWith('/'))
        void admit(req, res, (refusal) =>
          refusal === undefined ? void checkHead(req, res, end) : end(refusal),
        );
      else app(req as Request, res as Response, end);
    },
  };
}

/**
 * One layer of Express that runs all middleware in turn. For each layer Express compares the path, sets properties of the request and makes
 * four calls: nine layers took 2 % of a balance read. As in Express, the first refusal (passed to `next`, thrown or rejected) skips the rest.
 */
function inOneLayer(chain: readonly Middleware[]): Middleware {
  return (req, res, done) => {
    let index = 0;
    const next = (refusal?: unknown): void => {
      const middleware = refusal === undefined ? chain[index++] : undefined;
      if (!middleware) {
        // A later call of `next` must not run the middleware that was skipped.
        index = chain.length;
        done(refusal);
        return;
      }
      try {
        // Not `instanceof Promise`: the application around this one may have replaced the global.
        const promise = middleware(req, res, next);
        if (promise) promise.catch((error: unknown) => next(refusalFrom(error)));
      } catch (error) {
        next(refusalFrom(error));
      }
    };
    next();
  };
}

/** `next(undefined)` means success, so `throw undefined` becomes an error. */
const refusalFrom = (error: unknown): unknown => error ?? new Error('a middleware failed without a reason');

/**
 * Express calls `setPrototypeOf` on each request and response, which makes every later access to them slower. Objects of
 * these classes already have Express's prototypes, so the call changes nothing.
 */
function classesOf(app: Express): Pick<Application, 'Request' | 'Response'> {
  class Request extends IncomingMessage {}
  class Response extends ServerResponse {}
  Object.setPrototypeOf(Request.prototype, app.request);
  Object.setPrototypeOf(Response.prototype, app.response);
  return { Request, Response: Response as typeof ServerResponse };
}

/** Returns the only function that answers refusals and errors of the gateway. */
function refusalAnswerer(emit: Emit) {
  return (refusal: unknown, req: IncomingMessage, res: ServerResponse): void => {
    const context = contextOf(req);
    const { requestId, traceId } = context;
    const answer = isProblem(refusal)
      ? refusal
      : problem('internal_error', 'The gateway failed to answer the request.');
    context.outcome = answer.code;
    if (answer !== refusal) emit('request_failed', { requestId, traceId, err: refusal });
    sendProblemOrCut(res, problemDocument(answer, requestId));
  };
}
