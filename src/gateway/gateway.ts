import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Check } from '../admin/application.ts';
import { authenticate } from '../auth/authenticate.ts';
import { authorise } from '../auth/authorise.ts';
import { forwardAuthorization } from '../auth/authorization-header.ts';
import type { Config } from '../config/schema.ts';
import type { Desk } from '../idempotency/doubt/desk.ts';
import { idempotency } from '../idempotency/http/middleware.ts';
import { contextOf } from '../kernel/context.ts';
import { isProblem, problem, sendProblem } from '../kernel/problem.ts';
import { observeHandled } from '../observability/events.ts';
import type { Metrics } from '../observability/metrics.ts';
import { identify, takeWholeBody } from '../operations/identify.ts';
import { forwardedHeaders } from '../upstream/headers.ts';
import { createPassthrough, type Passthrough } from '../upstream/passthrough.ts';
import { admit, Lifecycle } from './admit.ts';
import { type App, createApp } from './app.ts';
import { Forward } from './forward.ts';
import { checkHead } from './head.ts';
import { createHttpServer, refuseOnSocket } from './http-server.ts';
import { type GatewayTools, openParts, type Parts, readiness, startWarnings } from './parts.ts';
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
    this.metrics.track(this.metrics.streams, () => this.#passthrough.open);
    this.#upgrades = new Upgrades(this.#passthrough, (req, end) => this.#openSession(req, end));
    const { slots, executor, metrics } = parts;
    const forward = new Forward({
      ...{ limits: config.limits, slots, executor, metrics },
      ...{ passthrough: this.#passthrough, upgrades: this.#upgrades },
      headersOf: (req, options) => this.#headersFor(req, options),
    });
    const app = this.#createApp(forward);
    const { server, endConnectionsAfterAnswers } = createHttpServer({
      ...config.limits,
      onMalformed: ({ code }) => {
        this.metrics.requests.inc({ operation: 'none', outcome: code });
        tools.logger.info({ outcome: code }, 'malformed request');
      },
      onConnectionRefused: () => this.metrics.connectionsRefused.inc(),
      app,
      onUpgrade: (req, socket, head) => this.#upgrades.handle(app, req, socket as Socket, head),
    });
    this.server = server;
    // Not before it listens, so that a check of the configuration looks nothing up.
    server.once('listening', () => void this.#parts.doubts.passThrough(config.lock.leaseMs * PAST_LEASE));
    this.#endConnectionsAfterAnswers = endConnectionsAfterAnswers;
  }

  #createApp(forward: Forward): App {
    const { limits, auth, idempotency: options } = this.#config;
    const { access, authenticator, operations, engine } = this.#parts;
    return createApp({
      admit: admit({
        begin: access.begin.bind(access),
        open: () => access.open,
        maxInFlight: limits.inFlight,
        lifecycle: this.#lifecycle,
      }),
      checkHead,
      authenticate: authenticate(authenticator),
      identify: identify(operations, limits),
      authorise: authorise(auth),
      protect: idempotency({
        engine,
        headers: options.headers,
        takeBody: (req, res) => takeWholeBody(req, res, limits),
        send: (req, maySend) => forward.send(req, maySend),
        unprotected: (operation) => this.metrics.unprotected.inc({ operation }),
        handled: (operation, result) => observeHandled(this.metrics, operation, result.kind),
      }),
      forward: (req, res, next) => forward.handle(req, res, next),
      answerRefusal: (refusal, req, res) => this.#answerRefusal(refusal, req, res),
    });
  }

  /** An upgraded connection is ended when its secret key is revoked. */
  #openSession(req: IncomingMessage, end: () => void): () => void {
    const { authenticator, sessions } = this.#parts;
    const authentication = authenticator.authenticate(req.rawHeaders);
    if (authentication.kind === 'merchant') return sessions.add(authentication.key, end);
    end();
    return () => {};
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

  /** The one place where a refusal, or a failure of the gateway, becomes an answer. */
  #answerRefusal(refusal: unknown, req: IncomingMessage, res: ServerResponse): void {
    const context = contextOf(req);
    const answer = isProblem(refusal)
      ? refusal
      : problem('internal_error', 'The gateway failed while it answered.');
    context.outcome = answer.code;
    if (answer !== refusal)
      this.#tools.logger.error(
        { requestId: context.requestId, err: refusal },
        'a request failed within the gateway',
      );
    // A truncated answer must not look complete.
    if (res.headersSent) res.destroy();
    else sendProblem(res, answer, context.requestId);
  }

  /** What readiness hangs on. */
  async checks(): Promise<Check[]> {
    return await readiness(this.#config, {
      store: this.#parts.store,
      keys: this.#parts.keys,
      lifecycle: this.#lifecycle,
    });
  }

  /** What an operator ought to know at start, a line each. */
  async warnings(): Promise<string[]> {
    return await startWarnings(this.#config, this.#parts, this.#tools.clock.wallMs());
  }

  /** Reads the secret keys at once. */
  async reloadKeys(): Promise<void> {
    await this.#parts.keys.reload();
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
