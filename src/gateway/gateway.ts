import type { IncomingMessage, RequestListener, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Check } from '../admin/application.ts';
import { authenticate } from '../auth/authenticate.ts';
import { authorise } from '../auth/authorise.ts';
import { forwardAuthorization } from '../auth/authorization-header.ts';
import type { Config } from '../config/schema.ts';
import type { Desk } from '../idempotency/doubt/desk.ts';
import { idempotency } from '../idempotency/http/middleware.ts';
import { contextOf } from '../kernel/context.ts';
import { Lifecycle } from '../kernel/lifecycle.ts';
import { problem, sendProblem } from '../kernel/problem.ts';
import { releaseAfter } from '../kernel/slot.ts';
import { path, type Step } from '../kernel/step.ts';
import { observeHandled } from '../observability/engine-observer.ts';
import type { Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import { checkTarget, inviteBody, matchOperation } from '../operations/match.ts';
import { forwardedHeaders } from '../upstream/headers.ts';
import { createPassthrough, type Passthrough } from '../upstream/passthrough.ts';
import { admit } from './admit.ts';
import { createHttpServer, refuseOnSocket } from './http-server.ts';
import { type GatewayTools, openParts, type Parts } from './parts.ts';
import { readiness } from './readiness.ts';
import { Upgrades } from './upgrades.ts';

/** How often a gateway that waits for the store at its shutdown logs so. */
const LOG_EVERY_MS = 2000;

/** Some time beyond the lease, for the difference between two clocks. */
const PAST_LEASE = 1.1;

/** The longest that a graceful shutdown may take: the configured times, and the store's commands before and after. */
export const shutdownWithinMs = ({ shutdown, store }: Config): number =>
  shutdown.delayMs + shutdown.graceMs + shutdown.completeMs + 4 * store.timeoutMs + 5000;

/** One process of oncegate, from the merchants' socket to the backend's. */
export class Gateway {
  readonly server: Server;
  readonly metrics: Metrics;
  /** Where operators look at records, and resolve what is in doubt. */
  readonly desk: Desk;
  readonly #config: Config;
  readonly #tools: GatewayTools;
  readonly #parts: Parts;
  readonly #upgrades: Upgrades;
  readonly #lifecycle = new Lifecycle();
  readonly #passthrough: Passthrough;
  readonly #forwardAuthorization: (value: string) => string | undefined;
  readonly #endConnectionsAfterAnswers: () => void;

  /** @throws with a message for the operator where the store or the keys cannot be had */
  static async open(config: Config, tools: GatewayTools): Promise<Gateway> {
    return new Gateway(config, tools, await openParts(config, tools));
  }

  private constructor(config: Config, tools: GatewayTools, parts: Parts) {
    this.#config = config;
    this.#tools = tools;
    this.#parts = parts;
    this.metrics = parts.metrics;
    this.desk = parts.desk;
    this.#forwardAuthorization = forwardAuthorization(config.auth);
    this.#passthrough = createPassthrough({
      upstream: config.upstream,
      headersOf: (req) => this.#headersFor(req),
      draining: () => this.#lifecycle.draining,
      refuseUpgrade: refuseOnSocket,
    });
    this.#upgrades = new Upgrades({
      access: this.#parts.access,
      admission: this.#admission(),
      authenticator: this.#parts.authenticator,
      operations: this.#parts.operations,
      realm: config.auth.realm,
      passthrough: this.#passthrough,
    });
    const { server, endConnectionsAfterAnswers } = createHttpServer({
      ...config.limits,
      onMalformed: ({ code }) => {
        this.metrics.requests.inc({ operation: 'none', outcome: code });
        tools.logger.info({ outcome: code }, 'malformed request');
      },
      onRequest: this.#path(),
      onUpgrade: (req, socket, head) => this.#upgrades.take(req, socket as Socket, head),
    });
    this.server = server;
    // Not before it listens, so that a check of the configuration looks nothing up.
    server.once('listening', () => void this.#parts.doubts.passThrough(config.lock.leaseMs * PAST_LEASE));
    this.#endConnectionsAfterAnswers = endConnectionsAfterAnswers;
  }

  /** The request's path. */
  #path(): RequestListener {
    const { limits, auth, idempotency: options } = this.#config;
    const steps = [
      admit(this.#admission()),
      checkTarget,
      authenticate(this.#parts.authenticator),
      matchOperation(this.#parts.operations, limits),
      authorise(auth),
      this.#execute(options.headers),
      this.#passOn(),
    ];
    return path(steps, failed(this.#tools.logger));
  }

  #admission() {
    return {
      begin: this.#parts.access.begin.bind(this.#parts.access),
      open: () => this.#parts.access.open,
      maxInFlight: this.#config.limits.inFlight,
      lifecycle: this.#lifecycle,
    };
  }

  /** Runs what was matched; leaves the rest to the pass-through. */
  #execute(headers: readonly string[]): Step {
    const { metrics } = this;
    const run = idempotency({
      engine: this.#parts.engine,
      headers,
      send: (req, maySend) => this.#send(req, maySend),
      forward: (req, gone) => this.#forward(req, gone),
      unprotected: (operation) => metrics.unprotected.inc({ operation }),
      handled: (operation, result) => observeHandled(metrics, operation, result.kind),
      failed: (error, requestId) =>
        this.#tools.logger.error({ requestId, err: error }, 'a request failed within the gateway'),
    });
    return (req, res, next) => (contextOf(req).operation ? run(req, res) : next());
  }

  #passOn(): Step {
    return (req, res) => {
      const context = contextOf(req);
      context.outcome = 'passed_through';
      context.passedThrough = 'connecting';
      inviteBody(req, res);
      this.#passthrough.handle(req, res);
    };
  }

  /** A request without a key takes a slot as well, from the same number. */
  async #forward(req: IncomingMessage, gone: () => AbortSignal) {
    const { slots } = this.#parts;
    const slot = slots.tryTake() ?? (await slots.take(gone()));
    if (!slot) return undefined;
    const exchange = await this.#send(req);
    releaseAfter(slot, exchange);
    return exchange;
  }

  async #send(req: IncomingMessage, maySend?: () => boolean) {
    const context = contextOf(req);
    const request = {
      method: req.method ?? '',
      target: req.url ?? '',
      headers: this.#headersFor(req, { unencoded: true }),
      body: context.body ?? Buffer.alloc(0),
    };
    const result = await this.#parts.executor.send(request, maySend && { maySend });
    context.upstreamMs += result.elapsedMs;
    const labels = { operation: context.operation?.name ?? 'none', result: result.kind };
    this.metrics.upstreamSeconds.observe(labels, result.elapsedMs / 1000);
    return result;
  }

  #headersFor(req: IncomingMessage, { unencoded = false } = {}): string[] {
    const { requestId, merchant } = contextOf(req);
    return forwardedHeaders(req.rawHeaders, {
      requestId,
      merchantCode: merchant?.code ?? '',
      clientAddress: req.socket.remoteAddress ?? '',
      authorization: this.#forwardAuthorization,
      keepUnderscore: this.#config.headers.keepUnderscore,
      unencoded,
    });
  }

  /** What readiness hangs on. */
  async checks(): Promise<Check[]> {
    return await readiness(this.#config, {
      store: this.#parts.store,
      keys: this.#parts.keys,
      lifecycle: this.#lifecycle,
    });
  }

  /**
   * Stops accepting, waits `shutdown.graceMs` for running requests to be completed, then closes everything, the store last:
   * it has `shutdown.completeMs` to take what it has not answered yet.
   */
  async shutdown(): Promise<void> {
    const { delayMs, graceMs } = this.#config.shutdown;
    this.#lifecycle.drain();
    this.#endConnectionsAfterAnswers();
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    this.#lifecycle.close();
    this.server.close();
    this.#upgrades.end();
    const endMs = this.#tools.clock.monotonicMs() + graceMs;
    const grace = new Promise<void>((resolve) => setTimeout(resolve, graceMs).unref());
    await Promise.race([this.#parts.access.idle(), grace]);
    await this.#parts.engine.drain(Math.max(0, endMs - this.#tools.clock.monotonicMs()));
    await this.shutdownNow();
  }

  /** Closes everything but the store at once. Keys that still execute are marked in doubt. */
  async shutdownNow(): Promise<void> {
    this.server.close();
    this.server.closeAllConnections();
    this.#passthrough.close();
    await Promise.all(this.#parts.executors.map((executor) => executor.destroy()));
    // The executors are gone, so stop lookups.
    await this.#parts.doubts.close();
    await this.#untilStored();
    this.#parts.keys.close();
    await this.#parts.store.close();
  }

  /** Waits for pending writes: merchants may know results that the store has not taken. */
  async #untilStored(): Promise<void> {
    const { engine } = this.#parts;
    const { completeMs } = this.#config.shutdown;
    const log = () => {
      const writes = engine.pendingWrites;
      const message = 'waiting for the store to take the last writes before this process ends';
      if (writes > 0) this.#tools.logger.warn({ writes, completeMs }, message);
    };
    const timer = setInterval(log, LOG_EVERY_MS);
    await engine.close(completeMs);
    clearInterval(timer);
  }
}

/** Broken machinery: say so, and tell nobody what broke. */
function failed(logger: Logger) {
  return (error: unknown, req: IncomingMessage, res: ServerResponse): void => {
    const context = contextOf(req);
    const broken = problem('internal_error', 'The gateway failed while it answered.');
    context.outcome = broken.code;
    logger.error({ requestId: context.requestId, err: error }, 'a request failed within the gateway');
    // Half an answer must not look whole.
    if (res.headersSent) res.destroy();
    else sendProblem(res, broken, context.requestId);
  };
}
