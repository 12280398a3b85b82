import type { IncomingMessage, ServerResponse } from 'node:http';
import { DoubtGauges, type DoubtGaugesOptions } from '../doubts/doubt-gauges.ts';
import { idempotencyOptions } from '../idempotency/idempotency-options.ts';
import { AllMetrics } from '../telemetry/metrics.ts';
import type { OpenedStore } from './stores.ts';

/** Metrics of one `idempotency`, or of several. docs/metrics.md describes each of them. */
export interface Metrics {
  /** All metrics, in Prometheus' text format. */
  text(): Promise<string>;
}

/** Metrics that several `idempotency` share. Pass them as their option `metrics`. */
export function createMetrics(): Metrics {
  return new AllMetrics();
}

/**
 * New metrics have buckets around the time limits of one `idempotency`.
 *
 * @throws {TypeError} unless `createMetrics` or an `idempotency` has made them
 */
export function openedMetrics(
  metrics: Metrics | undefined,
  { timeoutMs, waitMs }: { timeoutMs: number; waitMs: number },
  { leaseMs }: { leaseMs: number },
): AllMetrics {
  if (!metrics) return new AllMetrics([timeoutMs, waitMs, leaseMs]);
  if (metrics instanceof AllMetrics) return metrics;
  throw new TypeError('idempotency: metrics: must be the result of createMetrics');
}

/**
 * A handler that answers with metrics in Prometheus' text format: `app.get('/metrics', metricsMiddleware(protect.metrics))`.
 *
 * @param metrics those of an `idempotency`, or those that {@link createMetrics} has made
 * @returns the handler. If the metrics cannot be read, it passes the error on
 */
export function metricsMiddleware(
  metrics: Metrics,
): (req: IncomingMessage, res: ServerResponse, next: (error?: unknown) => void) => void {
  return (_req, res, next) => {
    metrics.text().then((text) => {
      res.setHeader('Content-Type', 'text/plain; version=0.0.4; charset=utf-8');
      res.end(text);
    }, next);
  };
}

interface Shared {
  gauges: DoubtGauges;
  users: number;
}

const shared = new WeakMap<AllMetrics, WeakMap<OpenedStore, Shared>>();

export type StoreMetricsOptions = Omit<DoubtGaugesOptions, 'everyMs' | 'store'>;

/**
 * Shows what is known of a store: its keys in doubt, what it uses, and what it reports. Several `idempotency` on one store with the
 * same metrics share this, so that everything is counted once. (Metrics of several stores show the keys of the store that was
 * counted last.) The gauges stay after the last `idempotency` was closed: new ones would add all resolutions of the store to the same
 * counters again.
 */
export function shareStoreMetrics(
  store: OpenedStore,
  options: StoreMetricsOptions,
): Pick<DoubtGauges, 'resolved' | 'close'> {
  const { metrics } = options;
  const ofMetrics = shared.get(metrics) ?? new WeakMap<OpenedStore, Shared>();
  shared.set(metrics, ofMetrics);
  const one = ofMetrics.get(store) ?? made(store, options);
  ofMetrics.set(store, one);
  const { gauges } = one;
  if (one.users++ === 0) gauges.begin();
  let isOpen = true;
  const close = () => {
    if (isOpen && --one.users === 0) gauges.close();
    isOpen = false;
  };
  return { resolved: () => gauges.resolved(), close };
}

function made(opened: OpenedStore, options: StoreMetricsOptions): Shared {
  const { store, emits } = opened;
  emits.add(options.emit);
  if (store.usage) options.metrics.trackUsage(() => store.usage);
  options.metrics.trackStore(opened.storeId);
  options.metrics.track(options.metrics.storeForgot, () => Number(opened.watch?.isForgotten ?? false));
  countWarnings(opened, options);
  const everyMs = idempotencyOptions.shape.countDoubtsEveryMs.parse(undefined);
  const gauges = new DoubtGauges({ ...options, store, everyMs });
  return { gauges, users: 0 };
}

/** A younger count is not renewed, because the check of the store writes a probe record. */
const RENEW_AFTER_MS = 30_000;

/** Counts the warnings of the store whenever the metrics are read. The next reading has the new count. */
function countWarnings(opened: OpenedStore, { metrics, clock }: StoreMetricsOptions): void {
  let countedAtMs = Number.NEGATIVE_INFINITY;
  metrics.beforeReading(() => {
    if (clock.monotonicMs() - countedAtMs < RENEW_AFTER_MS) return;
    countedAtMs = clock.monotonicMs();
    const count = ({ warnings }: { warnings: readonly string[] }) =>
      metrics.configWarnings.set({ about: 'store' }, warnings.length);
    // If the check fails, the count stays.
    opened.health().then(count, () => {});
  });
}
