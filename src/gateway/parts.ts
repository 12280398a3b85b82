import type { Check } from '../admin/application.ts';
import { Authenticator } from '../auth/authenticate.ts';
import { FileKeySource } from '../auth/file-key-source.ts';
import type { KeySource } from '../auth/key-source.ts';
import { keyWarnings } from '../auth/key-warnings.ts';
import { OpenSessions } from '../auth/open-sessions.ts';
import type { Config } from '../config/schema.ts';
import { Desk } from '../idempotency/doubt/desk.ts';
import { Doubts, LOOKUPS_AT_ONCE, type Lookup } from '../idempotency/doubt/lookups.ts';
import { Engine } from '../idempotency/engine.ts';
import { measured } from '../idempotency/measured-store.ts';
import { operationIdempotencyOptions, policyWarnings } from '../idempotency/options.ts';
import type { Store } from '../idempotency/store.ts';
import { openStore } from '../idempotency/stores/open-store.ts';
import type { Clock } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/context.ts';
import { Access } from '../observability/access.ts';
import {
  countReload,
  doubtObserver,
  engineObserver,
  logReload,
  observeResolution,
} from '../observability/events.ts';
import type { Logger } from '../observability/logger.ts';
import { Metrics } from '../observability/metrics.ts';
import { Operations } from '../operations/operations.ts';
import { Executor } from '../upstream/executor.ts';
import { lookUp, reachable } from '../upstream/lookup.ts';
import { Slots } from '../upstream/slots.ts';
import type { Lifecycle } from './admit.ts';

export interface GatewayTools {
  clock: Clock;
  logger: Logger;
  /** Called for each reading of the key file, instead of a line in the log. */
  onReload?: (reload: KeyReload) => void;
}

/** What a gateway is put together from. */
export interface Parts {
  metrics: Metrics;
  access: Access;
  keys: KeySource;
  authenticator: Authenticator;
  sessions: OpenSessions;
  operations: Operations;
  /** Sends requests; callers take a slot first. */
  executor: Executor;
  /** All executors, to be ended at shutdown. */
  executors: readonly Executor[];
  slots: Slots;
  store: Store;
  engine: Engine;
  doubts: Doubts;
  desk: Desk;
}

/** @throws with a message for the operator where the store or the keys cannot be had */
export async function openParts(config: Config, tools: GatewayTools): Promise<Parts> {
  const metrics = new Metrics();
  const keys = await FileKeySource.open({
    path: config.auth.keys.path,
    pepper: config.auth.pepper,
    clock: tools.clock,
    onReload: (reload) => {
      countReload(metrics, reload);
      if (tools.onReload) tools.onReload(reload);
      else logReload(tools.logger, reload);
    },
  });
  try {
    const unreplicated = () => metrics.unreplicated.inc();
    const clockStepped = (stepMs: number) => {
      metrics.clockSteps.inc();
      tools.logger.error({ stepMs }, 'the clock of Redis’ host was stepped: records expire early or late');
    };
    const writerReplaced = (error: Error) =>
      tools.logger.error({ err: error }, 'the store’s writer thread died and was replaced');
    const store = await openStore(config, tools.clock, { unreplicated, clockStepped, writerReplaced });
    return put(config, tools, metrics, keys, store);
  } catch (error) {
    keys.close();
    throw error;
  }
}

function put(config: Config, tools: GatewayTools, metrics: Metrics, keys: KeySource, opened: Store): Parts {
  const { clock, logger } = tools;
  const store = measured(opened, clock, (command, result, ms) =>
    metrics.storeSeconds.observe({ command, result }, ms / 1000),
  );
  const options = { ...config.idempotency, leaseMs: config.lock.leaseMs };
  const { maxStoredBytes } = config.idempotency;
  const executor = new Executor(config.upstream, maxStoredBytes, clock);
  // Lookups have connections of their own, because they have to work while every slot is taken.
  const asking = new Executor({ ...config.upstream, maxConnections: LOOKUPS_AT_ONCE }, maxStoredBytes, clock);
  const slots = new Slots(config.upstream);
  const doubts = new Doubts(store, lookupsOf(config, asking), doubtObserver(metrics, logger), clock);
  const engine = new Engine(store, slots, options, engineObserver(metrics, logger), clock, doubts);
  metrics.declareOperations([...config.operations.map(({ name }) => name), 'other', 'undeclared']);
  metrics.track(metrics.executing, () => engine.executing);
  metrics.track(metrics.waiting, () => engine.waiting);
  metrics.track(metrics.pendingWrites, () => engine.pendingWrites);
  metrics.track(metrics.storeRefuses, () => Number(engine.storeRefuses));
  metrics.track(metrics.slotsInUse, () => slots.inUse);
  metrics.track(metrics.slotsQueued, () => slots.queued);
  metrics.track(metrics.keys, () => keys.health().keys);
  return {
    ...{ metrics, keys, executors: [executor, asking], executor, slots, store, engine, doubts },
    access: new Access({ ...tools, metrics }),
    authenticator: new Authenticator(keys, config.auth, clock),
    sessions: new OpenSessions(keys, clock),
    operations: new Operations(config.operations, {
      idempotency: operationIdempotencyOptions.parse({}),
      undeclared: config.idempotency.undeclared,
    }),
    desk: new Desk(store, options, (scope, resolution) =>
      observeResolution(metrics, logger, 'operator', { scope, ...resolution }),
    ),
  };
}

/** How each operation that says so finds out what became of its keys in doubt. */
export function lookupsOf({ operations }: Config, executor: Executor): Map<string, Lookup> {
  const lookups = new Map<string, Lookup>();
  for (const { name, idempotency } of operations) {
    const { lookup } = idempotency;
    if (lookup) lookups.set(name, { ...lookup, ask: (transaction) => lookUp(executor, lookup, transaction) });
  }
  return lookups;
}

/** What an operator ought to know at start, a line each. It names keys, so /readyz does not show all of it. */
export async function startWarnings(
  config: Pick<Config, 'operations' | 'idempotency'>,
  { store, keys }: { store?: Store; keys: KeySource },
  nowMs: number,
): Promise<string[]> {
  const names = config.operations.map(({ name }) => name);
  const found = {
    store: (await store?.health())?.warnings ?? [],
    operations: policyWarnings(config),
    keys: keyWarnings(keys.entries(), names, nowMs),
  };
  return Object.entries(found).flatMap(([about, texts]) => texts.map((text) => `${about}: ${text}`));
}

/** What readiness hangs on. */
export async function readiness(
  config: Config,
  { store, keys, lifecycle: { draining } }: { store: Store; keys: KeySource; lifecycle: Lifecycle },
): Promise<Check[]> {
  const { url, connectTimeoutMs } = config.upstream;
  const [stored, upstream] = await Promise.all([store.health(), reachable(url, connectTimeoutMs)]);
  const { ok, detail } = keys.health();
  const warnings = policyWarnings(config);
  const policies: Check = { name: 'operations', ok: true, detail: 'declared', warnings };
  return [
    { name: 'store', ...stored },
    { name: 'upstream', ...upstream },
    { name: 'keys', ok, detail },
    ...(warnings.length > 0 ? [policies] : []),
    { name: 'draining', ok: !draining, detail: draining ? 'shutting down' : 'serving' },
  ];
}
