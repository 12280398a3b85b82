import type { Socket } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import { Executor } from '../backend/executor.ts';
import { MAX_PROBE_BYTES, probeKey } from '../backend/key-probe.ts';
import { lookUp } from '../backend/lookup.ts';
import { createPassthrough } from '../backend/passthrough.ts';
import { Slots } from '../backend/slots.ts';
import type { Config } from '../config/schema.ts';
import { Desk } from '../doubts/desk.ts';
import { DoubtGauges } from '../doubts/doubt-gauges.ts';
import { LOOKUPS_AT_ONCE, type Lookup, Lookups } from '../doubts/lookups.ts';
import { Engine } from '../idempotency/engine.ts';
import { Observation } from '../idempotency/observation.ts';
import { Authenticator } from '../keys/authenticate.ts';
import { FileKeySource } from '../keys/file-key-source.ts';
import type { KeySource } from '../keys/key-source.ts';
import { UpstreamKeySource } from '../keys/upstream-key-source.ts';
import { measured } from '../ledger/measured.ts';
import { openLedger, openRedis } from '../ledger/open-store.ts';
import { Outages } from '../ledger/outages.ts';
import { StoreWatch, storeIdOf } from '../ledger/store-watch.ts';
import type { RecordId } from '../lib/brands.ts';
import { ClientTls } from '../lib/certificate.ts';
import type { Clock } from '../lib/clock.ts';
import { findClient, trustOf } from '../requests/client-address.ts';
import { hopOf } from '../requests/hops.ts';
import { type Emit, Events } from '../telemetry/emit.ts';
import type { Logger } from '../telemetry/logger.ts';
import { AllMetrics } from '../telemetry/metrics.ts';
import { RequestLog } from '../telemetry/request-log.ts';
import type { Tracing } from '../telemetry/tracing.ts';
import { Lifecycle } from './admission.ts';
import { AppVersions } from './app.ts';
import { Certificates } from './certificates.ts';
import { backendHeaders } from './forwarder.ts';
import { showConfig, showState } from './gauges.ts';
import { createHttpServer, type ListenerTls } from './http-server.ts';
import { Upgrades } from './upgrades.ts';

export interface GatewayTools {
  clock: Clock;
  logger: Logger;
  /** Where the store's identity is noted, see ledger/identity-file.ts. Default: the store is not watched. */
  identityFile?: string | undefined;
}

/** The parts that `RunningGateway` needs for readiness and shutdown. */
export type Parts = Awaited<ReturnType<typeof openParts>>;

/** More requests may be observed than sent at once, because the store answers some of them later. */
const OBSERVED_LATER = 1000;

/** How long a shutdown waits for the last observations. */
const OBSERVED_WITHIN_MS = 2000;

/** How often the log says that a shutdown waits for the store. */
const LOG_EVERY_MS = 2000;

/**
 * Opens and connects everything that one gateway is made of, from top to bottom. The server does not listen yet.
 *
 * @returns the parts. `closing` closes them in reverse order: it aborts running requests, whose keys are then in doubt, waits for
 *   pending writes up to `shutdown.completeMs`, and then closes the store
 * @throws {Error} with a message for the operator if the store or the keys cannot be opened
 */
export async function openParts(config: Config, tools: GatewayTools) {
  const closing = new AsyncDisposableStack();
  try {
    return { ...(await openInto(closing, config, tools)), closing };
  } catch (error) {
    await closing.disposeAsync();
    throw error;
  }
}

async function openInto(closing: AsyncDisposableStack, config: Config, tools: GatewayTools) {
  const { clock, logger } = tools;
  const { listen, upstream, idempotency } = config;
  const { maxStoredBytes, mode, layer, countDoubtsEveryMs: everyMs } = idempotency;
  const longestWaitMs = Math.max(...config.operations.map(({ idempotency: { waitMs } }) => waitMs));
  const metrics = new AllMetrics([upstream.responseTimeoutMs, config.lock.leaseMs, longestWaitMs]);
  const events = new Events(logger, metrics);
  const { emit } = events;

  // What may fail. Tracing is first, because it fails if the operator has not installed what it needs.
  const tracing = await openTracing(config, clock, emit);
  closing.defer(() => tracing?.close());
  const certificates = new Certificates({ clock, emit, metrics });
  closing.defer(() => certificates.close());
  const listenerTls: ListenerTls | undefined = listen.tls && {
    certificate: await certificates.open('listen.tls', listen.tls),
    minVersion: listen.tls.minVersion,
    handshakeTimeoutMs: config.limits.headerTimeoutMs,
  };
  const upstreamTls =
    upstream.tls &&
    new ClientTls(await certificates.open('upstream.tls', upstream.tls), upstream.tls.serverName);
  const ofBackend = { clock, tracing, upstreamTls };
  const keys = await openKeys(config, ofBackend, emit, closing);
  closing.defer(() => keys.close());
  const openCertificate: Certificates['open'] = (name, paths) => certificates.open(name, paths);
  const ledger = await openLedger(config, clock, { emit, openCertificate });
  let watch: StoreWatch | undefined;
  const outages = new Outages(ledger, clock, emit);
  const refusal = (recordId?: RecordId) => watch?.refusalOf(recordId);
  const store = measured(ledger, clock, emit, refusal, (startedMs) => outages.failed(startedMs));
  closing.defer(() => store.close());
  closing.defer(() => outages.close());
  if (ledger.usage) metrics.trackUsage(() => ledger.usage);
  const { identityFile: file } = tools;
  if (file !== undefined) watch = await StoreWatch.of(config, { file, store, clock, emit });
  closing.defer(() => watch?.close());
  const storeId = await storeIdOf(store, mode, watch);
  metrics.trackStore(storeId);
  let rateLimiter = await openRateLimiter(config, clock, emit, openCertificate);
  closing.defer(() => rateLimiter?.close());

  // The engine, and how it reaches the backend.
  const slots = new Slots(upstream, clock);
  const executor = new Executor(upstream, maxStoredBytes, clock, upstreamTls);
  // Lookups use other connections, because they have to work while every slot is taken.
  const lookupConnections = { ...upstream, maxConnections: LOOKUPS_AT_ONCE };
  const lookupExecutor = new Executor(lookupConnections, maxStoredBytes, clock, upstreamTls);
  const asking = { executor: lookupExecutor, tracing };
  const doubtGauges = new DoubtGauges({ store, metrics, clock, emit, everyMs });
  events.on('resolved', () => doubtGauges.resolved());
  const lookups = new Lookups(store, layer, lookupsOf(config, asking), emit, clock);
  const options = { ...idempotency, leaseMs: config.lock.leaseMs };
  const engine = new Engine(store, slots, options, emit, clock, lookups);
  // If there is one, no request goes through the engine.
  const mostOpen = upstream.maxConnections + OBSERVED_LATER;
  const observation =
    mode === 'observe' ? new Observation(store, { ...options, mostOpen }, emit, clock) : undefined;
  const desk = new Desk(store, { ...options, clock }, emit);
  closing.defer(() => untilStored(engine, observation, config, emit));
  closing.defer(() => doubtGauges.close());
  // The executors are gone by then, so that no lookup is still running.
  closing.defer(() => lookups.close());
  closing.defer(() => lookupExecutor.destroy());
  closing.defer(() => executor.destroy());

  // Requests that the engine does not execute.
  const lifecycle = new Lifecycle();
  const headersOf = backendHeaders(config);
  const draining = () => lifecycle.draining;
  const passthrough = createPassthrough({ upstream, tls: upstreamTls, headersOf, draining });
  closing.defer(() => passthrough.close());
  const authenticator = new Authenticator(keys, config.auth, clock);
  const upgrades = new Upgrades(passthrough, authenticator, keys, clock);

  // The path of a request, and the server that requests arrive at.
  const trust = trustOf(listen.trustedProxies);
  const clientOf: ConstructorParameters<typeof RequestLog>[0]['clientOf'] = (req) => findClient(req, trust);
  const requestLog = new RequestLog({ clock, logger, metrics, tracing, clientOf });
  const appParts = {
    ...{ requestLog, lifecycle, authenticator, engine, observation, emit, metrics },
    hop: () => hopOf(layer, storeId()),
    ...{ slots, executor, passthrough, upgrades, headersOf },
  };
  const versions = new AppVersions(config, appParts, rateLimiter);
  const { app } = versions;
  // `endKeepAlive` makes the responses that are open then close their connections. `admit` does so for later ones.
  const { server, endKeepAlive, closeAll, limit } = createHttpServer({
    limits: config.limits,
    tls: listenerTls,
    app,
    emit,
    onUpgrade: (req, socket, head) => upgrades.handle(app, req, socket as Socket, head),
  });
  closing.defer(closeAll);

  showConfig(metrics, config);
  showState(metrics, { clock, engine, keys, passthrough, slots, watch });

  let limitTimeoutMs = config.limits.perMerchant?.timeoutMs;
  /**
   * Puts `operations`, `limits`, `log` and `metrics` in force for requests that begin from now on. Changes nothing if it throws. Only one
   * at a time may run.
   *
   * @returns false if the gateway was closed meanwhile
   */
  const reload = async (changed: Config): Promise<boolean> => {
    const changedTimeoutMs = changed.limits.perMerchant?.timeoutMs;
    const changedLookups = lookupsOf(changed, asking, lookups.byOperation);
    const earlier = rateLimiter;
    const limiter =
      changedTimeoutMs === limitTimeoutMs
        ? earlier
        : await openRateLimiter(changed, clock, emit, openCertificate);
    if (closing.disposed) {
      limiter?.close();
      return false;
    }
    let putInForce: () => void;
    try {
      putInForce = versions.prepare(changed, limiter);
    } catch (error) {
      if (limiter !== earlier) limiter?.close();
      throw error;
    }
    // From here on nothing waits and nothing throws, so that no request meets half of the new configuration.
    showConfig(metrics, changed);
    logger.level = changed.log.level;
    limit(changed.limits);
    lookups.replace(changedLookups);
    putInForce();
    if (limiter !== earlier) earlier?.close();
    [rateLimiter, limitTimeoutMs] = [limiter, changedTimeoutMs];
    return true;
  };
  return {
    ...{ metrics, emit, certificates, keys, store, watch, upstreamTls },
    ...{ engine, lookups, doubtGauges, observation, desk },
    ...{ lifecycle, requestLog, upgrades, app, server, endKeepAlive, reload },
  };
}

/** Opens tracing, unless it is off. Loads OpenTelemetry only if spans are sent somewhere. */
async function openTracing(
  { tracing, upstream }: Config,
  clock: Clock,
  emit: Emit,
): Promise<Tracing | undefined> {
  const { endpoint, begin } = tracing;
  if (endpoint === undefined && !begin) return undefined;
  const { Tracing } = await import('../telemetry/tracing.ts');
  if (endpoint === undefined) return new Tracing(tracing);
  const { openRecorder } = await import('../telemetry/span-export.ts');
  const tools = { emit, clock, upstream: upstream.url };
  return new Tracing(tracing, await openRecorder({ ...tracing, endpoint }, tools));
}

/** Probes of secret keys have their own connections to the backend, because they have to work while every slot is taken. */
async function openKeys(
  { auth, upstream }: Config,
  {
    clock,
    tracing,
    upstreamTls,
  }: { clock: Clock; tracing?: Tracing | undefined; upstreamTls?: ClientTls | undefined },
  emit: Emit,
  closing: AsyncDisposableStack,
): Promise<KeySource> {
  const { keys: options, pepper } = auth;
  if (options.source === 'file') {
    const { path } = options;
    return await FileKeySource.open({ path, pepper, emit });
  }
  const connections = { ...upstream, maxConnections: options.maxProbes };
  const executor = new Executor(connections, MAX_PROBE_BYTES, clock, upstreamTls);
  closing.defer(() => executor.destroy());
  return new UpstreamKeySource({
    ...options,
    clock,
    probe: (secret) => probeKey(executor, options, secret, tracing?.beginOwn('key_probe', options.path)),
    emit,
  });
}

/** Opens the limiter, if a merchant has a limit. Otherwise the library, which takes time to load, is not loaded. */
async function openRateLimiter(
  { limits: { perMerchant }, store }: Config,
  clock: Clock,
  emit: Emit,
  openCertificate: Certificates['open'],
) {
  if (!perMerchant) return undefined;
  const { RateLimiter } = await import('./rate-limiter.ts');
  return new RateLimiter({
    clock,
    redis: await openRedis(store, perMerchant.timeoutMs, openCertificate),
    prefix: store.kind === 'redis' ? store.prefix : '',
    emit,
  });
}

/**
 * The lookup of each operation with `inDoubt: lookup`, by operation name.
 *
 * @param known earlier lookups. One whose options are unchanged stays the same object, so that its running questions count
 */
function lookupsOf(
  { operations }: Config,
  { executor, tracing }: { executor: Executor; tracing: Tracing | undefined },
  known: ReadonlyMap<string, Lookup> = new Map(),
): Map<string, Lookup> {
  const lookups = new Map<string, Lookup>();
  for (const { name, idempotency } of operations) {
    const { lookup } = idempotency;
    if (!lookup) continue;
    const { ask, ...options } = known.get(name) ?? {};
    const unchanged = isDeepStrictEqual(options, lookup) ? known.get(name) : undefined;
    const askOnce: Lookup['ask'] = (transaction) =>
      // The path is that of the configuration: filled in, it would contain the idempotency key.
      lookUp(executor, lookup, transaction, tracing?.beginOwn('lookup', lookup.path));
    const made = { ...lookup, ask: askOnce };
    lookups.set(name, unchanged ?? made);
  }
  return lookups;
}

/** Waits for pending writes: merchants may have responses that the store has not acknowledged. */
async function untilStored(
  engine: Engine,
  observation: Observation | undefined,
  { shutdown: { completeMs } }: Config,
  emit: Emit,
): Promise<void> {
  const log = () => {
    const writes = engine.pendingWrites;
    if (writes > 0) emit('writes_pending', { writes, completeMs });
  };
  const timer = setInterval(log, LOG_EVERY_MS);
  await engine.close(completeMs);
  await observation?.close(Math.min(completeMs, OBSERVED_WITHIN_MS));
  clearInterval(timer);
}
