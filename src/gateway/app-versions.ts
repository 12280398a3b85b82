import type { IncomingMessage, ServerResponse } from 'node:http';
import { isDeepStrictEqual } from 'node:util';
import { limitsOf } from '../config/merchant-limits.ts';
import type { Config } from '../config/schema.ts';
import type { Engine } from '../idempotency/engine.ts';
import { idempotency } from '../idempotency/middleware.ts';
import type { Observation } from '../idempotency/observation.ts';
import { observe } from '../idempotency/observe.ts';
import { operationIdempotencyOptions } from '../idempotency/options.ts';
import { type Authenticator, authenticate } from '../keys/authenticate.ts';
import { authorise } from '../keys/authorise.ts';
import { contextOf, type Middleware } from '../lib/context.ts';
import { isProblem, problem, problemDocument, sendProblem } from '../lib/problem.ts';
import {
  BodyBudget,
  type BodyLimits,
  defaultBudgetBytes,
  takeBody,
  takeWholeBody,
} from '../requests/body.ts';
import { OperationsHistory } from '../requests/history.ts';
import { identify, type Operations } from '../requests/operations.ts';
import { PublicPaths } from '../requests/public-paths.ts';
import type { Access } from '../telemetry/access.ts';
import type { Logger } from '../telemetry/logger.ts';
import type { Observer } from '../telemetry/observer.ts';
import { admit, checkHead, type Lifecycle } from './admission.ts';
import { type App, createApp } from './app.ts';
import { Forwarder, type ForwarderOptions } from './forward.ts';
import { MerchantLimits } from './merchant-limits.ts';
import { forwardPublic, PublicShare } from './public-requests.ts';
import type { RateLimiter } from './rate-limiter.ts';

/** What all versions of the application share. */
export interface AppParts extends Omit<ForwarderOptions, 'limits'> {
  access: Access;
  lifecycle: Lifecycle;
  authenticator: Authenticator;
  engine: Engine;
  hop(): string | undefined;
  observation: Observation | undefined;
  observer: Observer;
  logger: Logger;
  rateLimiter: RateLimiter | undefined;
}

/** One application for each version of the configuration: a request keeps the options with which it began. */
export class AppVersions {
  /** Always leads to the version in force. */
  readonly app: App;
  readonly #config: Config;
  readonly #parts: AppParts;
  readonly #history: OperationsHistory;
  /** Undefined: merchants may send any number of requests. */
  readonly #merchantLimits: MerchantLimits | undefined;
  readonly #publicShare: PublicShare;
  readonly #bodyBudget: BodyBudget;
  /** A part of it, so that merchants have the rest. */
  readonly #publicBudget: BodyBudget;
  #perMerchant: Config['limits']['perMerchant'];
  #inForce: App;

  constructor(config: Config, parts: AppParts) {
    this.#config = config;
    this.#parts = parts;
    this.#history = new OperationsHistory({
      idempotency: operationIdempotencyOptions.parse({}),
      undeclared: config.idempotency.undeclared,
    });
    const { perMerchant } = config.limits;
    const { rateLimiter, metrics } = parts;
    if (perMerchant && rateLimiter)
      this.#merchantLimits = new MerchantLimits({
        limitOf: limitsOf(perMerchant),
        take: (merchant, rate) => rateLimiter.take(merchant, rate),
        refused: (reason) => metrics.rateLimited.inc({ reason }),
      });
    this.#publicShare = new PublicShare(config.upstream.maxStreams);
    this.#bodyBudget = new BodyBudget(budgetBytesOf(config));
    this.#publicBudget = new BodyBudget(publicBytesOf(config), this.#bodyBudget);
    metrics.track(metrics.bufferedBytes, () => this.#bodyBudget.bytes);
    this.#perMerchant = perMerchant;
    this.#inForce = this.#build(config);
    const { Request, Response } = this.#inForce;
    this.app = { Request, Response, handle: (req, res) => this.#inForce.handle(req, res) };
  }

  /** Builds the application of a changed configuration. The function that it returns puts it in force, and does not throw. */
  prepare(changed: Config): () => void {
    const next = this.#build(changed, this.app);
    const { perMerchant } = changed.limits;
    // Other objects, even with equal values, would begin new windows.
    const isOther = perMerchant && !isDeepStrictEqual(perMerchant, this.#perMerchant);
    return () => {
      if (isOther) {
        this.#perMerchant = perMerchant;
        this.#merchantLimits?.change(limitsOf(perMerchant));
      }
      this.#bodyBudget.maxBytes = budgetBytesOf(changed);
      this.#publicBudget.maxBytes = publicBytesOf(changed);
      this.#inForce = next;
    };
  }

  #build(config: Config, classes?: Pick<App, 'Request' | 'Response'>): App {
    const { operations: declared } = config;
    const limits = { ...config.limits, budget: this.#bodyBudget };
    const { access, lifecycle, authenticator, logger } = this.#parts;
    const { auth } = this.#config;
    const operations = this.#history.next(declared);
    const forward = new Forwarder({ ...this.#parts, limits });
    return createApp(
      {
        admit: admit(access, limits.inFlight, lifecycle),
        checkHead,
        forwardPublic: this.#publicForwarder(limits, operations, forward),
        authenticate: authenticate(authenticator),
        limitMerchant: this.#merchantLimits?.check,
        identify: identify(operations, limits),
        authorise: authorise(auth),
        protect: this.#protect(limits, forward),
        forward: (req, res, next) => forward.handle(req, res, next),
        answerRefusal: refusalAnswerer(logger),
      },
      classes,
    );
  }

  /** Undefined: every request needs a secret key. */
  #publicForwarder(limits: BodyLimits, operations: Operations, forwarder: Forwarder): Middleware | undefined {
    const { auth, idempotency } = this.#config;
    if (auth.public.length === 0) return undefined;
    return forwardPublic({
      paths: new PublicPaths(auth.public, operations),
      keyHeaders: idempotency.headers,
      refusalOf: (req) => this.#publicShare.enter(req) ?? this.#merchantLimits?.refusalOfPublic(req),
      limits: { ...limits, budget: this.#publicBudget },
      forward: (req, res, next) => forwarder.handle(req, res, next),
    });
  }

  #protect(limits: BodyLimits, forward: Forwarder): Middleware {
    const { engine, hop, observation, observer, metrics } = this.#parts;
    const { headers, layer } = this.#config.idempotency;
    const unprotected = (operation: string) => metrics.unprotected.inc({ operation });
    if (observation)
      return observe({
        observation,
        layer,
        headers,
        takeBody: (req, res) => takeBody(req, res, limits),
        unprotected,
        observed: (operation, would) => observer.observed(operation, would),
      });
    return idempotency({
      engine,
      layer,
      hop,
      headers,
      takeBody: (req, res) => takeWholeBody(req, res, limits),
      send: (req, maySend) => forward.send(req, maySend),
      unprotected,
      handled: (operation, result) => observer.handled(operation, result.kind),
    });
  }
}

const budgetBytesOf = ({ limits: { bufferedBytes, bodyBytes } }: Config): number =>
  bufferedBytes ?? Math.max(bodyBytes, defaultBudgetBytes());

/** A quarter, or one body if that is more. */
const publicBytesOf = (config: Config): number =>
  Math.max(config.limits.bodyBytes, Math.floor(budgetBytesOf(config) / 4));

/** Returns the only function that answers refusals and errors of the gateway. */
function refusalAnswerer(logger: Logger) {
  return (refusal: unknown, req: IncomingMessage, res: ServerResponse): void => {
    const context = contextOf(req);
    const { requestId, traceId } = context;
    const answer = isProblem(refusal)
      ? refusal
      : problem('internal_error', 'The gateway failed to answer the request.');
    context.outcome = answer.code;
    if (answer !== refusal)
      logger.error({ requestId, traceId, err: refusal }, 'a request failed within the gateway');
    // A truncated response must not look complete, so the connection is closed.
    if (res.headersSent) res.destroy();
    else sendProblem(res, problemDocument(answer, requestId));
  };
}
