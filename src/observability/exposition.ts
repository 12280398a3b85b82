import {
  AggregatorRegistry,
  type OpenMetricsContentType,
  Registry,
  type RegistryContentType,
} from 'prom-client';
import type { MetricsFormat } from '../kernel/metrics-format.ts';
import { CATALOGUE, type Definition } from './catalogue.ts';

/** The metrics of a process at one moment: what `Metrics.snapshot` returns, also after a way through a message. */
export type Snapshot = readonly object[];

interface Metric {
  name: string;
  type: string;
  values: readonly Value[];
}

interface Value {
  labels: Record<string, string | number>;
  value: number;
  /** Of a histogram: the name of the series. */
  metricName?: string;
  exemplar?: Exemplar | null;
}

interface Exemplar {
  labelSet: Record<string, string>;
  value: number;
  /** Seconds since 1970. */
  timestamp: number;
}

/** Combines the snapshots of several processes, each metric as its aggregator says. */
export async function combine(snapshots: readonly Snapshot[]): Promise<object[]> {
  return await aggregate(snapshots).getMetricsAsJSON();
}

/** Combines the snapshots of one or more processes and writes them in a format. */
export async function write(snapshots: readonly Snapshot[], format: MetricsFormat): Promise<string> {
  if (format === 'text') return await aggregate(snapshots).metrics();
  const registry = aggregate<OpenMetricsContentType>(snapshots.map(withFamilyNames));
  registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
  return await registry.metrics();
}

function aggregate<T extends RegistryContentType>(snapshots: readonly Snapshot[]): Registry<T> {
  const registry = AggregatorRegistry.aggregate<T>(withNewestCount(snapshots));
  keepExemplars(snapshots.flat() as Metric[], registry.getMetricsAsArray() as unknown as Metric[]);
  return registry;
}

const OF_NEWEST_COUNT = new Set(
  Object.values<Definition>(CATALOGUE)
    .filter(({ combine }) => combine === 'newest count')
    .map(({ name }) => name),
);

/** Only the process that read the newest count of the keys in doubt keeps the values that it shows of that count. */
function withNewestCount(snapshots: readonly Snapshot[]): Snapshot[] {
  if (snapshots.length < 2) return [...snapshots];
  const { name: counted } = CATALOGUE.doubtsCounted;
  const all = snapshots as readonly (readonly Metric[])[];
  const countedAt = all.map(
    (metrics) => metrics.find(({ name }) => name === counted)?.values[0]?.value ?? Number.NEGATIVE_INFINITY,
  );
  const newest = countedAt.indexOf(Math.max(...countedAt));
  return all.map((metrics, i) =>
    i === newest
      ? metrics
      : metrics.map((metric) => (OF_NEWEST_COUNT.has(metric.name) ? { ...metric, values: [] } : metric)),
  );
}

/** OpenMetrics names a counter without `_total`; prom-client adds it to the series. */
const withFamilyNames = (snapshot: Snapshot): Snapshot =>
  (snapshot as readonly Metric[]).map((metric) =>
    metric.type === 'counter' ? { ...metric, name: metric.name.replace(/_total$/, '') } : metric,
  );

/** prom-client's aggregation drops exemplars. Each bucket keeps the newest of all processes. */
function keepExemplars(metrics: readonly Metric[], combined: readonly Metric[]): void {
  const newest = new Map<string, Exemplar>();
  const names = new Set<string>();
  for (const { name, values } of metrics) {
    for (const value of values) {
      const { exemplar } = value;
      if (!exemplar) continue;
      names.add(name);
      const series = seriesOf(value);
      if (exemplar.timestamp > (newest.get(series)?.timestamp ?? 0)) newest.set(series, exemplar);
    }
  }
  for (const { name, values } of combined) {
    if (!names.has(name)) continue;
    for (const value of values) value.exemplar = newest.get(seriesOf(value)) ?? null;
  }
}

const seriesOf = ({ metricName, labels }: Value): string =>
  `${metricName} ${JSON.stringify(Object.entries(labels).sort())}`;
