/** A value for each label. */
type Labels<L extends string> = Readonly<Record<L, string>>;

/** What prom-client's registry reads of a metric. */
interface Reading {
  name: string;
  help: string;
  type: 'counter' | 'histogram';
  values: Value[];
}

interface Value {
  labels: Record<string, string | number>;
  value: number;
  /** The name of a part of a histogram. */
  metricName?: string;
  exemplar?: Exemplar | undefined;
}

/** A trace id beside a bucket. The names are those of prom-client. */
interface Exemplar {
  labelSet: { trace_id: string };
  value: number;
  /** Seconds since 1970. */
  timestamp: number;
}

interface Named<L extends string> {
  name: string;
  help: string;
  labelNames: readonly L[];
}

type Tree = Map<string, unknown>;

/**
 * A metric with one series for each combination of label values. prom-client's own counters and histograms build a text of all
 * labels for each event, and a payout has ten events: that took 3 % of it. These find a series by one map for each label.
 * prom-client's registry reads them as it reads its own.
 */
abstract class Metric<L extends string, Series> {
  readonly name: string;
  readonly help: string;
  readonly #labelNames: readonly L[];
  readonly #tree: Tree = new Map();
  /** All series, in the order in which they began. */
  readonly #all = new Set<{ labels: Labels<L>; series: Series }>();

  constructor({ name, help, labelNames }: Named<L>) {
    this.name = name;
    this.help = help;
    this.#labelNames = labelNames;
  }

  /** Ends a series. */
  remove(labels: Labels<L>): void {
    const last = this.#labelNames.at(-1) as L;
    const map = this.#lastMap(labels);
    this.#all.delete(map.get(labels[last]) as never);
    map.delete(labels[last]);
  }

  abstract get(): Promise<Reading>;

  protected abstract begin(): Series;

  protected all(): Iterable<{ labels: Labels<L>; series: Series }> {
    return this.#all;
  }

  /** The series with these values. It begins now if it has not begun. */
  protected seriesOf(labels: Labels<L>): Series {
    const last = this.#labelNames.at(-1);
    const map = this.#lastMap(labels);
    const value = last === undefined ? '' : labels[last];
    const known = map.get(value) as { series: Series } | undefined;
    if (known) return known.series;
    // Only the metric's own labels: whoever tells of an event may hand over more.
    const own = Object.fromEntries(this.#labelNames.map((name) => [name, labels[name]])) as Labels<L>;
    const begun = { labels: own, series: this.begin() };
    map.set(value, begun);
    this.#all.add(begun);
    return begun.series;
  }

  /** The map of the last label's values. */
  #lastMap(labels: Labels<L>): Tree {
    let map = this.#tree;
    for (let i = 0; i < this.#labelNames.length - 1; i++) {
      const value = labels[this.#labelNames[i] as L];
      let next = map.get(value) as Tree | undefined;
      if (!next) {
        next = new Map();
        map.set(value, next);
      }
      map = next;
    }
    return map;
  }
}

const NO_LABELS: object = {};

export class Counter<L extends string = never> extends Metric<L, { count: number }> {
  readonly type = 'counter';

  constructor(named: Named<L>) {
    super(named);
    if (named.labelNames.length === 0) this.seriesOf(NO_LABELS as Labels<L>);
  }

  /** @param count 0 begins a series that has not begun */
  inc(labels = NO_LABELS as Labels<L>, count = 1): void {
    this.seriesOf(labels).count += count;
  }

  async get(): Promise<Reading> {
    const values = Array.from(this.all(), ({ labels, series }) => ({ labels, value: series.count }));
    return { name: this.name, help: this.help, type: 'counter', values };
  }

  protected begin() {
    return { count: 0 };
  }
}

interface Distribution {
  /** How many values are in each bucket; the last one has no upper bound. */
  counts: number[];
  /** The same in finer buckets, if the histogram keeps them. */
  fine: Uint32Array | undefined;
  sum: number;
  exemplars: (Exemplar | undefined)[];
}

/** The fine buckets: eight for each doubling, from 10 µs to five minutes. A percentile of them is wrong by 4.5 % at most. */
const FINE = { firstS: 0.00001, perDoubling: 8, number: 200 };

export class Histogram<L extends string = never> extends Metric<L, Distribution> {
  readonly type = 'histogram';
  readonly #bounds: readonly number[];
  readonly #isFine: boolean;

  /**
   * @param named.buckets their upper bounds, ascending
   * @param named.isFine keeps fine buckets too, for percentiles. Nothing exports them
   */
  constructor(named: Named<L> & { buckets: readonly number[]; isFine?: boolean | undefined }) {
    super(named);
    this.#bounds = named.buckets;
    this.#isFine = named.isFine ?? false;
    if (named.labelNames.length === 0) this.seriesOf(NO_LABELS as Labels<L>);
  }

  /** @param traceId becomes the exemplar of the value's bucket */
  observe(labels: Labels<L>, value: number, traceId?: string): void {
    const series = this.seriesOf(labels);
    const bounds = this.#bounds;
    let bucket = 0;
    while (bucket < bounds.length && value > (bounds[bucket] as number)) bucket++;
    (series.counts[bucket] as number)++;
    series.sum += value;
    if (series.fine) {
      const at = Math.round(Math.log2(value / FINE.firstS) * FINE.perDoubling);
      (series.fine[at > 0 ? Math.min(at, FINE.number - 1) : 0] as number)++;
    }
    if (traceId !== undefined)
      series.exemplars[bucket] = { labelSet: { trace_id: traceId }, value, timestamp: Date.now() / 1000 };
  }

  /** Begins a series at 0. */
  zero(labels: Labels<L>): void {
    this.seriesOf(labels);
  }

  /** Adds up the fine buckets of all series. @param isCounted leaves series out */
  fineCounts(isCounted: (labels: Labels<L>) => boolean = () => true): number[] {
    const sums = new Array<number>(FINE.number).fill(0);
    for (const { labels, series } of this.all())
      if (isCounted(labels))
        for (const [at, count] of series.fine?.entries() ?? []) (sums[at] as number) += count;
    return sums;
  }

  async get(): Promise<Reading> {
    const { name, help } = this;
    const values = Array.from(this.all()).flatMap(({ labels, series }): Value[] => {
      let count = 0;
      const buckets = series.counts.map((own, i): Value => {
        count += own;
        const le = this.#bounds[i] ?? '+Inf';
        const exemplar = series.exemplars[i];
        return { labels: { le, ...labels }, value: count, metricName: `${name}_bucket`, exemplar };
      });
      const sum = { labels, value: series.sum, metricName: `${name}_sum` };
      return [...buckets, sum, { labels, value: count, metricName: `${name}_count` }];
    });
    return { name, help, type: 'histogram', values };
  }

  protected begin() {
    const fine = this.#isFine ? new Uint32Array(FINE.number) : undefined;
    return { counts: new Array<number>(this.#bounds.length + 1).fill(0), fine, sum: 0, exemplars: [] };
  }
}

/**
 * A percentile of the values that came between two readings of the fine buckets, if any came.
 *
 * @param share 0 to 1
 */
export function percentileBetween(before: readonly number[], after: readonly number[], share: number) {
  const counts = after.map((count, at) => count - (before[at] ?? 0));
  const number = counts.reduce((sum, count) => sum + count, 0);
  let left = Math.max(1, Math.ceil(number * share));
  const at = counts.findIndex((count) => {
    left -= count;
    return left <= 0;
  });
  return at < 0 ? undefined : FINE.firstS * 2 ** (at / FINE.perDoubling);
}

/** Between two bounds beyond a second, the larger is at most this many times the smaller: so wrong can a quantile be. */
const MOST_RATIO = 1.3;

/**
 * Adds bounds to those of a histogram, so that its quantiles are right near the time limits and beyond: at each limit and a
 * little above it, where what it has ended is counted, and between bounds that are far apart.
 *
 * @param bounds seconds, ascending
 * @param limitsMs the configured time limits
 */
export function boundsAround(bounds: readonly number[], limitsMs: readonly number[]): number[] {
  const limits = limitsMs.filter((ms) => ms > 0).flatMap((ms) => [ms / 1000, (1.05 * ms) / 1000]);
  const wanted = [...new Set([...bounds, ...limits])].sort((a, b) => a - b);
  const found: number[] = [];
  for (const bound of wanted) {
    for (let last = found.at(-1) ?? bound; last >= 1 && bound > MOST_RATIO * last; ) {
      last = Number((MOST_RATIO * last).toPrecision(2));
      if (last < bound) found.push(last);
    }
    found.push(bound);
  }
  return found;
}
