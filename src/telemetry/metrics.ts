import {
  collectDefaultMetrics,
  Gauge,
  type Metric,
  type OpenMetricsContentType,
  Registry,
} from 'prom-client';
import { thisBuild } from '../lib/program.ts';
import { CATALOGUE } from './catalogue.ts';
import type { ConfiguredSet, Definition, LabelValues } from './definition.ts';
import { OUTCOMES } from './label-values.ts';
import { boundsAround, Counter, Histogram } from './series.ts';

/** How metrics are written. Only OpenMetrics has exemplars. */
export type MetricsFormat = 'text' | 'openmetrics';

type Instrument<D> =
  D extends Definition<'counter', infer L>
    ? Counter<L>
    : D extends Definition<'gauge', infer L>
      ? Gauge<L>
      : D extends Definition<'histogram', infer L>
        ? Histogram<L>
        : never;

/** A field for each metric of the catalogue. */
type Instruments = { readonly [K in keyof typeof CATALOGUE]: Instrument<(typeof CATALOGUE)[K]> };

/** The default time limits of a response, a wait and a lease. */
const DEFAULT_LIMITS_MS = [30_000, 10_000];

/** Enough to tell stores apart. The hop field has as many. */
const STORE_DIGITS = 16;

class Catalogued {
  readonly registry = new Registry();

  constructor(limitsMs: readonly number[] = DEFAULT_LIMITS_MS) {
    for (const [field, definition] of Object.entries<Definition>(CATALOGUE))
      Object.assign(this, { [field]: this.#instrument(definition, limitsMs) });
  }

  #instrument(
    { type, name, help, labels, buckets: base = [], isLimited, isFine }: Definition,
    limitsMs: readonly number[],
  ): Counter<string> | Gauge | Histogram<string> {
    const labelNames = Object.keys(labels);
    const buckets = isLimited ? boundsAround(base, limitsMs) : base;
    if (type === 'gauge') return new Gauge({ name, help, labelNames, registers: [this.registry] });
    const metric =
      type === 'counter'
        ? new Counter({ name, help, labelNames })
        : new Histogram({ name, help, labelNames, buckets, isFine });
    // prom-client's types ask for one of its own classes; its registry needs `get` only.
    this.registry.registerMetric(metric as unknown as Metric);
    return metric;
  }
}

/** Every metric of the gateway. `catalogue.ts` defines them. */
export class AllMetrics extends (Catalogued as new (
  limitsMs?: readonly number[],
) => Catalogued & Instruments) {
  /** Merchants' requests that were sent and answered with a 5xx status of the backend. For the console only. */
  backendErrors = 0;
  readonly #reads = new Map<Gauge, (() => number | undefined)[]>();
  #merchants: ReadonlySet<string> = new Set();
  readonly #listeners: (() => void)[] = [];
  /** The values of each configured set whose series have begun. */
  readonly #declared: Record<ConfiguredSet, Set<string>> = {
    operations: new Set(),
    'operations, none': new Set(),
    merchants: new Set(),
  };

  #storeId: (() => string | undefined) | undefined;

  /** @param limitsMs time limits of requests: buckets are close around them. Default: those of the default options */
  constructor(limitsMs?: readonly number[]) {
    super(limitsMs);
    collectDefaultMetrics({ register: this.registry });
    for (const [field, { labels, exists }] of Object.entries<Definition>(CATALOGUE)) {
      const words = Object.values(labels);
      // A metric without labels has begun by itself. Where its 0 would be wrong, it must not exist.
      if (words.length > 0) {
        if (exists === 'start' && words.every((values) => typeof values === 'object'))
          this.#begin(field, labels);
      } else if (exists !== 'start') (this[field as keyof Instruments] as Gauge).remove();
    }
    this.#declare('operations, none', ['none']);
    this.#declare('merchants', ['other']);
    this.buildInfo.set({ ...thisBuild() }, 1);
  }

  /** Begins the series of these operations at 0, except for those that have begun. */
  declareOperations(names: readonly string[]): void {
    this.#declare('operations', names);
    this.#declare('operations, none', names);
  }

  /** Begins the series of these merchants at 0, and ends those of all others, who then count as `other`. */
  nameMerchants(codes: readonly string[]): void {
    for (const merchant of this.#merchants) {
      if (codes.includes(merchant)) continue;
      this.#declared.merchants.delete(merchant);
      this.merchantSeconds.remove({ merchant });
      this.merchantInDoubt.remove({ merchant });
      for (const outcome of OUTCOMES) this.merchantRequests.remove({ merchant, outcome });
    }
    this.#declare('merchants', codes);
    this.#merchants = new Set(codes);
  }

  /** The value of the label `merchant`: the code if it is named, or else `other`. */
  merchantLabel(code: string): string {
    return this.#merchants.has(code) ? code : 'other';
  }

  /** The operations whose series have begun. */
  get operations(): ReadonlySet<string> {
    return this.#declared.operations;
  }

  /** Begins the series of `mode: observe` at 0. */
  declareObserved(names: readonly string[]): void {
    for (const operation of names)
      for (const field of ['observed', 'unobserved'] as const)
        this.#begin(field, { ...CATALOGUE[field].labels, operation: [operation] });
  }

  /**
   * Sets the gauge to the sum of what its `read` functions return, each time the metrics are read. If they return undefined, the
   * gauge does not exist.
   */
  track(gauge: Gauge, read: () => number | undefined): void {
    this.#reads.set(gauge, [...(this.#reads.get(gauge) ?? []), read]);
  }

  /** @param usage of a store on this machine. `freeBytes`: Infinity if the file system does not say */
  trackUsage(usage: () => { queued: number; walBytes: number; freeBytes: number } | undefined): void {
    this.track(this.sqliteQueue, () => usage()?.queued);
    this.track(this.sqliteWalBytes, () => usage()?.walBytes);
    this.track(this.storeDiskFree, () => {
      const { freeBytes = Number.POSITIVE_INFINITY } = usage() ?? {};
      return Number.isFinite(freeBytes) ? freeBytes : undefined;
    });
  }

  /** Shows which store it is. Metrics of several stores show the last one. */
  trackStore(storeId: () => string | undefined): void {
    this.#storeId = storeId;
  }

  /** Calls `listener` each time before the metrics are read. */
  beforeReading(listener: () => void): void {
    this.#listeners.push(listener);
  }

  /** Begins the series of these values of a configured set, of all metrics that have the set as a label. */
  #declare(set: ConfiguredSet, values: readonly string[]): void {
    const declared = this.#declared[set];
    const added = values.filter((value) => !declared.has(value));
    if (added.length === 0) return;
    for (const value of added) declared.add(value);
    for (const [field, { labels, exists }] of Object.entries<Definition>(CATALOGUE)) {
      if (exists !== 'start' || !Object.values(labels).includes(set)) continue;
      const begun = Object.entries(labels).map(([label, all]) => [label, all === set ? added : all]);
      this.#begin(field, Object.fromEntries(begun));
    }
  }

  /**
   * Begins a series at 0 for each combination of the labels' values. rate() does not see the first event of a series that begins
   * with that event.
   */
  #begin(field: string, labels: Readonly<Record<string, LabelValues>>): void {
    const metric = this[field as keyof Instruments] as Counter<string> | Gauge | Histogram<string>;
    for (const series of combinations(labels)) {
      if (metric instanceof Histogram) metric.zero(series);
      // Unlike `set`, this leaves a series that has begun as it is.
      else metric.inc(series, 0);
    }
  }

  /** Brings the gauges up to date. */
  readGauges(): void {
    for (const listener of this.#listeners) listener();
    this.storeInfo.reset();
    if (this.#storeId) this.storeInfo.set({ store: this.#storeId()?.slice(0, STORE_DIGITS) ?? 'unknown' }, 1);
    for (const [gauge, reads] of this.#reads) {
      const values = reads.map((read) => read()).filter((value) => value !== undefined);
      if (values.length === 0) gauge.remove();
      else gauge.set(values.reduce((sum, value) => sum + value, 0));
    }
  }

  async text(format: MetricsFormat = 'text'): Promise<string> {
    this.readGauges();
    if (format === 'text') return await this.registry.metrics();
    const registry = new Registry<OpenMetricsContentType>();
    registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
    for (const metric of await this.registry.getMetricsAsJSON()) {
      const { name, type } = metric;
      // OpenMetrics names a counter without `_total`; prom-client adds it to the series.
      const family = { ...metric, name: String(type) === 'counter' ? name.replace(/_total$/, '') : name };
      registry.registerMetric({ ...family, get: async () => family } as unknown as Metric);
    }
    return await registry.metrics();
  }
}

/** Every combination of one value of each label. */
function combinations(labels: Readonly<Record<string, LabelValues>>): Record<string, string>[] {
  let found: Record<string, string>[] = [{}];
  for (const [label, values] of Object.entries(labels))
    found = found.flatMap((one) => [...values].map((value) => ({ ...one, [label]: value })));
  return found;
}
