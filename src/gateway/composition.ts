import type { Socket } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import { Executor } from '../backend/executor.ts';
import { lookUp } from '../backend/lookup.ts';
import { createPassthrough } from '../backend/passthrough.ts';
import { Slots } from '../backend/slots.ts';
import type { Config } from '../config/schema.ts';
import { Desk } from '../doubts/desk.ts';
import { LOOKUPS_AT_ONCE, type Lookup, Lookups } from '../doubts/lookups.ts';
import { Engine } from '../idempotency/engine.ts';
import { hopOf } from '../idempotency/hops.ts';
import { Observation } from '../idempotency/observation.ts';
import { Authenticator } from '../keys/authenticate.ts';
import { countExpiringMerchants, firstMerchantEndMs } from '../keys/key-source.ts';
import { Access } from '../telemetry/access.ts';
import type { Tracing } from '../telemetry/tracing.ts';
import { Lifecycle } from './admission.ts';
import { AppVersions } from './app.ts';
import { findClient, trustOf } from './client-address.ts';
import { configInfoOf } from './config-metrics.ts';
import { DoubtGauges } from './doubt-gauges.ts';
import { backendHeaders } from './forward.ts';
import { createHttpServer } from './http-server.ts';
import { type GatewayTools, openResources } from './resources.ts';
import { Upgrades } from './upgrades.ts';

/** The parts that `Gateway` needs for readiness and shutdown. */
export type Parts = Awaited<ReturnType<typeof openParts>>;

/**
 * Opens and connects everything that one gateway is made of. The server does not listen yet.
 *
 * @throws {Error} with a message for the operator if the store or the keys cannot be opened
 */
export async function openParts(config: Config, tools: GatewayTools) {
  const { clock, logger } = tools;
  const opened = await openResources(config, tools);
  const { observer, listenerTls, probeExecutor, storeId, ...resources } = opened;
  const { metrics, keys, store, upstreamTls } = resources;

  // The engine, and how it reaches the backend.
  const { maxStoredBytes, mode, layer } = config.idempotency;
  const executor = new Executor(config.upstream, maxStoredBytes, clock, upstreamTls);
  // Lookups use other connections, because they have to work while every slot is taken.
  const lookupConnections = { ...config.upstream, maxConnections: LOOKUPS_AT_ONCE };
  const lookupExecutor = new Executor(lookupConnections, maxStoredBytes, clock, upstreamTls);
  const asking = { executor: lookupExecutor, tracing: resources.tracing };
  const slots = new Slots(config.upstream, clock);
  const { countDoubtsEveryMs: everyMs } = config.idempotency;
  const doubtGauges = new DoubtGauges({ store, metrics, clock, logger, everyMs });
  observer.onResolved = () => doubtGauges.resolved();
  const lookups = new Lookups(store, layer, lookupsOf(config, asking), observer, clock);
  const options = { ...config.idempotency, leaseMs: config.lock.leaseMs };
  const engine = new Engine(store, slots, options, observer, clock, lookups);
  // If there is one, no request goes through the engine.
  const mostOpen = config.upstream.maxConnections + OBSERVED_LATER;
  const observation =
    mode === 'observe' ? new Observation(store, { ...options, mostOpen }, observer, clock) : undefined;
  const desk = new Desk(store, { ...options, clock }, (recordId, resolution) =>
    observer.resolved(recordId, resolution),
  );

  // Requests that the engine does not execute.
  const lifecycle = new Lifecycle();
  const headersOf = backendHeaders(config);
  const passthrough = createPassthrough({
    upstream: config.upstream,
    tls: upstreamTls,
    headersOf,
    draining: () => lifecycle.draining,
  });
  const authenticator = new Authenticator(keys, config.auth, clock);
  const upgrades = new Upgrades(passthrough, authenticator, keys, clock);

  // The path of a request, and the server that requests arrive at.
  const trust = trustOf(config.listen.trustedProxies);
  const access = new Access({
    ...{ clock, logger, metrics, tracing: resources.tracing },
    clientOf: (req) => findClient(req, trust),
  });
  const versions = new AppVersions(config, {
    ...{ access, lifecycle, authenticator, engine, observation, observer, metrics, logger },
    hop: () => hopOf(layer, storeId()),
    ...{ slots, executor, passthrough, upgrades, headersOf, rateLimiter: resources.rateLimiter },
  });
  const { app } = versions;
  // Of later responses than those that `endKeepAlive` finds open, `admit` makes that they close their connections.
  const { server, endKeepAlive, limit } = createHttpServer({
    limits: config.limits,
    tls: listenerTls,
    app,
    onMalformed: ({ code }) => {
      metrics.requests.inc({ operation: 'none', outcome: code });
      logger.info({ outcome: code }, 'malformed request');
    },
    onConnectionRefused: () => metrics.connectionsRefused.inc(),
    onUpgrade: (req, socket, head) => upgrades.handle(app, req, socket as Socket, head),
  });
  const declare = ({ operations, metrics: { merchants } }: Config) => {
    metrics.nameMerchants(merchants);
    const names = [...operations.map(({ name }) => name), 'other', 'undeclared'];
    metrics.declareOperations(names);
    // A gateway that protects has the series too, of one operation, so that the dashboard finds them.
    metrics.declareObserved(observation ? names : ['undeclared']);
  };
  /** Puts `operations`, `limits`, `log` and `metrics` in force for requests that begin from now on. Changes nothing if it throws. */
  const reload = (changed: Config) => {
    const putInForce = versions.prepare(changed);
    const changedLookups = lookupsOf(changed, asking, lookups.byOperation);
    // From here on nothing waits and nothing throws, so that no request meets half of the new configuration.
    declare(changed);
    logger.level = changed.log.level;
    limit(changed.limits);
    lookups.replace(changedLookups);
    putInForce();
  };

  declare(config);

  // What the metrics show of the configuration, and of what the parts do at the moment.
  metrics.configInfo.set(configInfoOf(config), 1);
  metrics.track(metrics.observing, () => Number(observation !== undefined));
  metrics.track(metrics.inDoubtPageAfter, () => config.idempotency.inDoubtPageAfterMs / 1000);
  metrics.track(metrics.executing, () => engine.executing);
  metrics.track(metrics.waiting, () => engine.waiting);
  metrics.track(metrics.pendingWrites, () => engine.pendingWrites);
  metrics.track(metrics.storeRefuses, () => Number(engine.storeRefuses));
  metrics.track(metrics.slots, () => config.upstream.maxConnections);
  metrics.track(metrics.slotsInUse, () => slots.inUse);
  metrics.track(metrics.slotsQueued, () => slots.queued);
  metrics.track(metrics.streams, () => passthrough.open);
  metrics.track(metrics.keys, () => keys.health().keys);
  metrics.track(metrics.keyExpires, () => {
    const endMs = firstMerchantEndMs(keys.entries() ?? [], clock.wallMs());
    return endMs && endMs / 1000;
  });
  metrics.track(metrics.merchantsExpiring, () =>
    countExpiringMerchants(keys.entries() ?? [], clock.wallMs()),
  );
  return {
    ...resources,
    ...{ app, server, endKeepAlive, lifecycle, access, engine, observation, lookups, doubtGauges, desk },
    ...{ upgrades, passthrough, reload },
    // Shutdown destroys them.
    executors: [executor, lookupExecutor, ...(probeExecutor ? [probeExecutor] : [])],
  };
}

/** More requests may be observed than sent at once, because the store answers some of them later. */
const OBSERVED_LATER = 1000;

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
