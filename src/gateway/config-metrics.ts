import type { Config } from '../config/schema.ts';
import type { WarnedAbout } from '../telemetry/catalogue.ts';
import type { Metrics } from '../telemetry/metrics.ts';

/** The labels of `oncegate_config_info`: what an operator compares between gateways. */
export function configInfoOf(config: Pick<Config, 'idempotency' | 'store' | 'auth'>) {
  const { store } = config;
  return {
    mode: config.idempotency.mode,
    undeclared: config.idempotency.undeclared,
    store: store.kind === 'sqlite' ? 'sqlite' : redisOf(store),
    keys: config.auth.keys.source,
  };
}

const redisOf = ({ sentinels, cluster }: { sentinels?: unknown; cluster?: unknown }) =>
  sentinels ? 'redis_sentinels' : cluster ? 'redis_cluster' : 'redis';

/** Warnings for the operator, by what they are about. */
export type Warnings = Record<Exclude<WarnedAbout, 'configuration'>, readonly string[]>;

/** Younger counts are not renewed, because the check of the store writes a probe record. */
const RENEW_AFTER_MS = 30_000;

/**
 * Fills `oncegate_config_warnings`. The warnings are counted when somebody asks for them, and again when the metrics are read and
 * the counts are old: then the next reading has the new counts. A gateway that nobody watches does nothing.
 */
export class WarningCounts {
  readonly #metrics: Metrics;
  #countedAtMs = Number.NEGATIVE_INFINITY;

  constructor(metrics: Metrics, monotonicMs: () => number, find: () => Promise<Warnings>) {
    this.#metrics = metrics;
    metrics.beforeReading(() => {
      if (monotonicMs() - this.#countedAtMs < RENEW_AFTER_MS) return;
      this.#countedAtMs = monotonicMs();
      // If the checks fail, the counts stay.
      find().then(
        (found) => this.set(found),
        () => {},
      );
    });
  }

  /** Kinds that are left out keep their counts. */
  set(found: Partial<Warnings>): void {
    for (const [about, warnings] of Object.entries(found))
      this.#metrics.configWarnings.set({ about }, warnings.length);
  }
}
