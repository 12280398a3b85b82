import type { IncomingMessage, ServerResponse } from 'node:http';
import { isDeepStrictEqual } from 'node:util';
import { type Authenticator, authenticate } from '../auth/authenticate.ts';
import { authorise } from '../auth/authorise.ts';
import { limitsOf } from '../config/merchant-limits.ts';
import type { Config } from '../config/schema.ts';
import type { Engine } from '../idempotency/engine.ts';
import { idempotency } from '../idempotency/http/middleware.ts';
import { observe } from '../idempotency/http/observe.ts';
import type { Observation } from '../idempotency/observation.ts';
import { operationIdempotencyOptions } from '../idempotency/options.ts';
import { contextOf, type Middleware } from '../kernel/context.ts';
import { isProblem, problem, sendProblem } from '../kernel/problem.ts';
import type { Access } from '../observability/access.ts';
import type { Logger } from '../observability/logger.ts';
import type { Observer } from '../observability/observer.ts';
import { takeBody, takeWholeBody } from '../operations/body.ts';
import { OperationsHistory } from '../operations/history.ts';
import { identify, type Operations } from '../operations/operations.ts';
import { PublicPaths } from '../operations/public-paths.ts';
import { admit, checkHead, type Lifecycle } from './admission.ts';
import { type App, createApp } from './app.ts';
import { Forwarder, type ForwarderOptions } from './forward.ts';
import { MerchantLimits } from './merchant-limits.ts';
import { forwardPublic } from './public-requests.ts';
import type { RateLimiter } from './rate-limiter.ts';

/** What all versions of the application share. */
export interface AppParts extends Omit<ForwarderOptions, 'limits'> {
  access: Access;
  lifecycle: Lifecycle;
  authenticator: Authenticator;
  engine: Engine;
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
  readonly #merchantLimits: MerchantLimits | undefined;
  #perMerchant: Config['limits']['perMerchant'];
  #inForce: App;

  /** @param earlier configurations that were in force before: what they protected stays protected */
  constructor(config: Config, earlier: readonly Config[], parts: AppParts) {
    this.#config = config;
    this.#parts = parts;
    this.#history = new OperationsHistory({
      idempotency: operationIdempotencyOptions.parse({}),
      undeclared: config.idempotency.undeclared,
    });
    for (const { operations } of earlier) this.#history.next(operations);
    this.#merchantLimits = merchantLimitsOf(config, parts);
    this.#perMerchant = config.limits.perMerchant;
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
      this.#inForce = next;
    };
  }

  #build({ operations: declared, limits }: Config, classes?: Pick<App, 'Request' | 'Response'>): App {
    const { access, lifecycle, authenticator, logger } = this.#parts;
    const { auth } = this.#config;
    const operations = this.#history.next(declared);
    const forward = new Forwarder({ ...this.#parts, limits });
    return createApp(
      {
        admit: admit({
          begin: access.begin.bind(access),
          open: () => access.open,
          maxInFlight: limits.inFlight,
          lifecycle,
        }),
        checkHead,
        forwardPublic: publicForwarder(this.#config, operations, forward, this.#merchantLimits),
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

  #protect(limits: Config['limits'], forward: Forwarder): Middleware {
    const { engine, observation, observer, metrics } = this.#parts;
    const { headers } = this.#config.idempotency;
    const unprotected = (operation: string) => metrics.unprotected.inc({ operation });
    if (observation)
      return observe({
        observation,
        headers,
        takeBody: (req, res) => takeBody(req, res, limits),
        unprotected,
        observed: (operation, would) => observer.observed(operation, would),
      });
    return idempotency({
      engine,
      headers,
      takeBody: (req, res) => takeWholeBody(req, res, limits),
      send: (req, maySend) => forward.send(req, maySend),
      unprotected,
      handled: (operation, result) => observer.handled(operation, result.kind),
    });
  }
}

/** Undefined: merchants may send any number of requests. */
function merchantLimitsOf(
  { limits: { perMerchant } }: Config,
  { rateLimiter, metrics }: AppParts,
): MerchantLimits | undefined {
  if (!perMerchant || !rateLimiter) return undefined;
  return new MerchantLimits({
    limitOf: limitsOf(perMerchant),
    take: (merchant, rate) => rateLimiter.take(merchant, rate),
    refused: (reason) => metrics.rateLimited.inc({ reason }),
  });
}

/** Undefined: every request needs a secret key. */
function publicForwarder(
  { auth, idempotency }: Config,
  operations: Operations,
  forwarder: Forwarder,
  limits: MerchantLimits | undefined,
): Middleware | undefined {
  if (auth.public.length === 0) return undefined;
  return forwardPublic({
    paths: new PublicPaths(auth.public, operations),
    keyHeaders: idempotency.headers,
    refusalOf: (req) => limits?.refusalOfPublic(req),
    forward: (req, res, next) => forwarder.handle(req, res, next),
  });
}

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
    else sendProblem(res, answer, requestId);
  };
}
