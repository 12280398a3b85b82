import type { Passthrough } from '../backend/passthrough.ts';
import type { Slots } from '../backend/slots.ts';
import type { Config } from '../config/schema.ts';
import type { Engine } from '../idempotency/engine.ts';
import { countExpiringMerchants, firstMerchantEndMs, type KeySource } from '../keys/key-source.ts';
import type { StoreWatch } from '../ledger/store-watch.ts';
import type { Clock } from '../lib/clock.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';

/** What the metrics show of the configuration in force. */
export function showConfig(metrics: AllMetrics, config: Config): void {
  const { mode, undeclared, inDoubtPageAfterMs } = config.idempotency;
  const { store } = config;
  const kind = store.kind === 'redis' ? redisOf(store) : store.kind;
  metrics.configInfo.set({ mode, undeclared, store: kind, keys: config.auth.keys.source }, 1);
  metrics.inDoubtPageAfter.set(inDoubtPageAfterMs / 1000);
  metrics.observing.set(Number(mode === 'observe'));
  metrics.slots.set(config.upstream.maxConnections);
  metrics.nameMerchants(config.metrics.merchants);
  const names = [...config.operations.map(({ name }) => name), 'other', 'undeclared'];
  metrics.declareOperations(names);
  // A gateway that protects has the series too, of one operation, so that the dashboard finds them.
  metrics.declareObserved(mode === 'observe' ? names : ['undeclared']);
}

const redisOf = ({ sentinels, cluster }: { sentinels?: unknown; cluster?: unknown }) =>
  sentinels ? 'redis_sentinels' : cluster ? 'redis_cluster' : 'redis';

interface Shown {
  clock: Clock;
  engine: Engine;
  keys: KeySource;
  passthrough: Passthrough;
  slots: Slots;
  watch: StoreWatch | undefined;
}

/** Lets the metrics show what the parts do at the moment when they are read. */
export function showState(metrics: AllMetrics, parts: Shown): void {
  const { clock, engine, keys, passthrough, slots, watch } = parts;
  metrics.track(metrics.executing, () => engine.executing);
  metrics.track(metrics.waiting, () => engine.waiting);
  metrics.track(metrics.pendingWrites, () => engine.pendingWrites);
  metrics.track(metrics.storeRefuses, () => Number(engine.storeRefuses));
  metrics.track(metrics.storeForgot, () => Number(watch?.isForgotten ?? false));
  metrics.track(metrics.slotsInUse, () => slots.inUse);
  metrics.track(metrics.slotsHeldLong, () => slots.heldLong());
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
}
