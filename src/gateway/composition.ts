import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { Authenticator, authenticate } from '../auth/authenticate.ts';
import { authorise } from '../auth/authorise.ts';
import { forwardAuthorization } from '../auth/authorization-header.ts';
import { FileKeySource } from '../auth/file-key-source.ts';
import { countExpiringMerchants, type KeySource } from '../auth/key-source.ts';
import { OpenSessions } from '../auth/open-sessions.ts';
import type { Config } from '../config/schema.ts';
import { Desk } from '../idempotency/doubt/desk.ts';
import { Doubts, LOOKUPS_AT_ONCE, type Lookup } from '../idempotency/doubt/lookups.ts';
import { Engine } from '../idempotency/engine.ts';
import { idempotency } from '../idempotency/http/middleware.ts';
import { measured } from '../idempotency/measured-store.ts';
import { operationIdempotencyOptions } from '../idempotency/options.ts';
import type { Store } from '../idempotency/store.ts';
import { openStore } from '../idempotency/stores/open-store.ts';
import type { Clock } from '../kernel/clock.ts';
import { contextOf, type KeyReload } from '../kernel/context.ts';
import { isProblem, problem, sendProblem } from '../kernel/problem.ts';
import { Access } from '../observability/access.ts';
import type { Logger } from '../observability/logger.ts';
import { Metrics } from '../observability/metrics.ts';
import { logReload, Observer } from '../observability/observer.ts';
import { takeWholeBody } from '../operations/body.ts';
import { identify, Operations } from '../operations/operations.ts';
import { Executor } from '../upstream/executor.ts';
import { forwardedHeaders } from '../upstream/headers.ts';
import { lookUp } from '../upstream/lookup.ts';
import { createPassthrough, type Passthrough } from '../upstream/passthrough.ts';
import { Slots } from '../upstream/slots.ts';
import { admit, checkHead, Lifecycle } from './admission.ts';
import { type App, createApp } from './app.ts';
import { Forwarder } from './forward.ts';
import { createHttpServer, refuseOnSocket } from './http-server.ts';
import { Upgrades } from './upgrades.ts';

export interface GatewayTools {
  clock: Clock;
  logger: Logger;
  /** Called each time the key file was read. Default: writes a log line. */
  onReload?: (reload: KeyReload) => void;
}

/** The parts that `Gateway` needs for readiness and shutdown. {@link openParts} makes them. */
export interface Parts {
  server: Server;
  /** Makes every open response close its connection. `admit` does the same for later ones. */
  endKeepAlive(): void;
  lifecycle: Lifecycle;
  metrics: Metrics;
  access: Access;
  keys: KeySource;
  store: Store;
  engine: Engine;
  doubts: Doubts;
  desk: Desk;
  upgrades: Upgrades;
  passthrough: Passthrough;
  /** Shutdown destroys them. */
  executors: readonly Executor[];
}

/**
 * Opens and connects everything that one gateway is made of. The server does not listen yet.
 *
 * @throws {Error} with a message for the operator if the store or the keys cannot be opened
 */
export async function openParts(config: Config, tools: GatewayTools): Promise<Parts> {
  const metrics = new Metrics();
  const observer = new Observer(metrics, tools.logger);
  const keys = await openKeys(config, tools, metrics);
  try {
    const store = await openMeasuredStore(config, tools.clock, metrics, observer);
    return connect(config, tools, { metrics, observer, keys, store });
  } catch (error) {
    keys.close();
    throw error;
  }
}

function openKeys({ auth }: Config, tools: GatewayTools, metrics: Metrics): Promise<KeySource> {
  const { onReload = (reload: KeyReload) => logReload(tools.logger, reload) } = tools;
  return FileKeySource.open({
    path: auth.keys.path,
    pepper: auth.pepper,
    clock: tools.clock,
    onReload: (reload) => {
      metrics.keyReloads.inc({ result: reload.ok ? 'ok' : 'refused' });
      onReload(reload);
    },
  });
}

async function openMeasuredStore(
  config: Config,
  clock: Clock,
  metrics: Metrics,
  observer: Observer,
): Promise<Store> {
  const store = await openStore(config, clock, {
    unreplicated: () => observer.unreplicated(),
    clockStepped: (stepMs) => observer.clockStepped(stepMs),
    writerReplaced: (error) => observer.writerReplaced(error),
  });
  return measured(store, clock, (command, result, ms) =>
    metrics.storeSeconds.observe({ command, result }, ms / 1000),
  );
}

function connect(
  config: Config,
  tools: GatewayTools,
  { metrics, observer, keys, store }: Pick<Parts, 'metrics' | 'keys' | 'store'> & { observer: Observer },
): Parts {
  const { clock, logger } = tools;
  const { limits } = config;

  // The engine, and how it reaches the backend.
  const { maxStoredBytes } = config.idempotency;
  const executor = new Executor(config.upstream, maxStoredBytes, clock);
  // Lookups use other connections, because they have to work while every slot is taken.
  const lookupExecutor = new Executor(
    { ...config.upstream, maxConnections: LOOKUPS_AT_ONCE },
    maxStoredBytes,
    clock,
  );
  const slots = new Slots(config.upstream);
  const doubts = new Doubts(store, lookupsOf(config, lookupExecutor), observer, clock);
  const options = { ...config.idempotency, leaseMs: config.lock.leaseMs };
  const engine = new Engine(store, slots, options, observer, clock, doubts);
  const desk = new Desk(store, options, (scope, resolution) =>
    observer.resolved(scope, resolution, 'operator'),
  );

  // Requests that the engine does not execute.
  const lifecycle = new Lifecycle();
  const headersOf = backendHeaders(config);
  const passthrough = createPassthrough({
    upstream: config.upstream,
    headersOf,
    draining: () => lifecycle.draining,
    refuseUpgrade: refuseOnSocket,
  });
  const authenticator = new Authenticator(keys, config.auth, clock);
  const upgrades = new Upgrades(passthrough, sessionOpener(authenticator, new OpenSessions(keys, clock)));
  const forward = new Forwarder({ limits, slots, executor, passthrough, upgrades, metrics, headersOf });

  // The path of a request, and the server that requests arrive at.
  const access = new Access({ clock, logger, metrics });
  const operations = new Operations(config.operations, {
    idempotency: operationIdempotencyOptions.parse({}),
    undeclared: config.idempotency.undeclared,
  });
  const app = createApp({
    admit: admit({
      begin: access.begin.bind(access),
      open: () => access.open,
      maxInFlight: limits.inFlight,
      lifecycle,
    }),
    checkHead,
    authenticate: authenticate(authenticator),
    identify: identify(operations, limits),
    authorise: authorise(config.auth),
    protect: idempotency({
      engine,
      headers: config.idempotency.headers,
      takeBody: (req, res) => takeWholeBody(req, res, limits),
      send: (req, maySend) => forward.send(req, maySend),
      unprotected: (operation) => metrics.unprotected.inc({ operation }),
      handled: (operation, result) => observer.handled(operation, result.kind),
    }),
    forward: (req, res, next) => forward.handle(req, res, next),
    answerRefusal: refusalAnswerer(logger),
  });
  const { server, endKeepAlive } = serverFor(app, config, { metrics, logger, upgrades });

  metrics.declareOperations([...config.operations.map(({ name }) => name), 'other', 'undeclared']);
  metrics.track(metrics.executing, () => engine.executing);
  metrics.track(metrics.waiting, () => engine.waiting);
  metrics.track(metrics.pendingWrites, () => engine.pendingWrites);
  metrics.track(metrics.storeRefuses, () => Number(engine.storeRefuses));
  metrics.track(metrics.slotsInUse, () => slots.inUse);
  metrics.track(metrics.slotsQueued, () => slots.queued);
  metrics.track(metrics.streams, () => passthrough.open);
  metrics.track(metrics.keys, () => keys.health().keys);
  metrics.track(metrics.merchantsExpiring, () => countExpiringMerchants(keys.entries(), clock.wallMs()));
  return {
    ...{ server, endKeepAlive, lifecycle, metrics, access, keys, store, engine, doubts, desk },
    ...{ upgrades, passthrough, executors: [executor, lookupExecutor] },
  };
}

/** The lookup of each operation with `inDoubt: lookup`, by operation name. */
function lookupsOf({ operations }: Config, executor: Executor): Map<string, Lookup> {
  const lookups = new Map<string, Lookup>();
  for (const { name, idempotency } of operations) {
    const { lookup } = idempotency;
    if (lookup) lookups.set(name, { ...lookup, ask: (transaction) => lookUp(executor, lookup, transaction) });
  }
  return lookups;
}

/** Returns a function that makes the header fields of a request to the backend. See {@link ForwarderOptions}. */
function backendHeaders({ auth, headers }: Config) {
  const authorization = forwardAuthorization(auth);
  return (req: IncomingMessage, { unencoded = false } = {}): string[] => {
    const { requestId, merchant } = contextOf(req);
    return forwardedHeaders(req.rawHeaders, {
      requestId,
      merchantCode: merchant?.code ?? '',
      clientAddress: req.socket.remoteAddress ?? '',
      authorization,
      keepUnderscore: headers.keepUnderscore,
      unencoded,
    });
  };
}

/** Returns a function that registers an upgraded connection: `end` is called when its secret key is revoked. */
function sessionOpener(authenticator: Authenticator, sessions: OpenSessions) {
  return (req: IncomingMessage, end: () => void): (() => void) => {
    const authentication = authenticator.authenticate(req.rawHeaders);
    if (authentication.kind === 'merchant') return sessions.add(authentication.key, end);
    end();
    return () => {};
  };
}

/** Returns the only function that answers refusals and errors of the gateway. */
function refusalAnswerer(logger: Logger) {
  return (refusal: unknown, req: IncomingMessage, res: ServerResponse): void => {
    const context = contextOf(req);
    const { requestId } = context;
    const answer = isProblem(refusal)
      ? refusal
      : problem('internal_error', 'The gateway failed to answer the request.');
    context.outcome = answer.code;
    if (answer !== refusal) logger.error({ requestId, err: refusal }, 'a request failed within the gateway');
    // A truncated response must not look complete, so the connection is closed.
    if (res.headersSent) res.destroy();
    else sendProblem(res, answer, requestId);
  };
}

function serverFor(
  app: App,
  config: Config,
  { metrics, logger, upgrades }: { metrics: Metrics; logger: Logger; upgrades: Upgrades },
) {
  return createHttpServer({
    ...config.limits,
    app,
    onMalformed: ({ code }) => {
      metrics.requests.inc({ operation: 'none', outcome: code });
      logger.info({ outcome: code }, 'malformed request');
    },
    onConnectionRefused: () => metrics.connectionsRefused.inc(),
    onUpgrade: (req, socket, head) => upgrades.handle(app, req, socket as Socket, head),
  });
}
