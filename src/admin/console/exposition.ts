/** Series of some metrics: for each metric its series, by their labels as Prometheus writes them. */
export type Exposition = ReadonlyMap<string, ReadonlyMap<string, number>>;

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;

/** Reads the metrics named from Prometheus' text format. Lines of other metrics, and lines that cannot be read, are skipped. */
export function readExposition(text: string, names: ReadonlySet<string>): Exposition {
  const found = new Map<string, Map<string, number>>();
  for (const line of text.split('\n')) {
    if (!line.startsWith('oncegate_')) continue;
    const [, name = '', labels = '', digits = ''] = LINE.exec(line) ?? [];
    if (!names.has(name)) continue;
    const value = digits === '+Inf' ? Number.POSITIVE_INFINITY : Number(digits);
    if (Number.isNaN(value)) continue;
    const series = found.get(name) ?? new Map<string, number>();
    found.set(name, series.set(labels, value));
  }
  return found;
}

/** The sum over all series of a metric. Undefined: there is none. */
export function total(exposition: Exposition, name: string): number | undefined {
  const series = exposition.get(name);
  return series && [...series.values()].reduce((sum, value) => sum + value, 0);
}

/** The value of a label. The labels that are read here never contain a quotation mark. */
export const labelOf = (labels: string, name: string): string | undefined =>
  new RegExp(`(?:^|,)${name}="([^"]*)"`).exec(labels)?.[1];

/**
 * What a counter has counted between two readings, summed by a label. A series that has fallen was reset to 0, as Prometheus
 * assumes too, and a new one began at 0.
 */
export function increases(
  before: Exposition,
  after: Exposition,
  metric: string,
  label: string,
  counts: (labels: string) => boolean = () => true,
): Map<string, number> {
  const sums = new Map<string, number>();
  for (const [labels, value] of after.get(metric) ?? []) {
    const by = labelOf(labels, label);
    if (by === undefined || !counts(labels)) continue;
    const earlier = before.get(metric)?.get(labels) ?? 0;
    const increase = value >= earlier ? value - earlier : value;
    sums.set(by, (sums.get(by) ?? 0) + increase);
  }
  return sums;
}

/**
 * A quantile of observations in buckets, in the buckets' unit, as Prometheus' histogram_quantile estimates it: evenly spread
 * within a bucket, and the highest bound for those above it.
 *
 * @param buckets how many observations were at most each bound, by bound (`+Inf` among them)
 * @returns undefined if there are none
 */
export function quantile(buckets: ReadonlyMap<string, number>, q: number): number | undefined {
  const sorted = [...buckets]
    .map(([le, count]) => ({ bound: le === '+Inf' ? Number.POSITIVE_INFINITY : Number(le), count }))
    .toSorted((a, b) => a.bound - b.bound);
  const all = sorted.at(-1)?.count ?? 0;
  if (all === 0) return undefined;
  let lower = { bound: 0, count: 0 };
  for (const bucket of sorted) {
    if (bucket.count >= q * all) {
      if (bucket.bound === Number.POSITIVE_INFINITY) return lower.bound;
      const within = bucket.count - lower.count;
      const share = within === 0 ? 1 : (q * all - lower.count) / within;
      return lower.bound + share * (bucket.bound - lower.bound);
    }
    lower = bucket;
  }
  return lower.bound;
}
