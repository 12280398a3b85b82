import type { MetricsFormat } from '../kernel/metrics-format.ts';
import { combine, write } from '../observability/exposition.ts';

interface MetricJson {
  type: string;
}

/** Snapshots of dead workers that are kept separately. When there are more, they are merged into one. */
const MAX_RETIRED = 100;
/** Workers of which it is remembered that they were merged. Their ids are never used again. */
const MAX_MERGED = 1000;

/**
 * Adds up the metrics of all workers. The counts of a dead worker stay in the sum, because Prometheus takes a counter that
 * falls for a restart. They also stay at their place in the order of addition: floating-point numbers that are added in
 * another order can give a slightly smaller sum.
 *
 * Node can report the exit of a worker before its last message, so a snapshot may come after `retire`.
 */
export class MetricsSum {
  readonly #snapshots = new Map<number, object[]>();
  readonly #retired = new Set<number>();
  /** Dead workers that have no snapshot of their own any more. Oldest first. */
  readonly #merged = new Set<number>();
  #isMerging = false;

  /** Replaces the snapshot of a worker. Of a dead one, only the counts are taken. */
  take(worker: number, metrics: object[]): void {
    if (this.#merged.has(worker)) return;
    this.#snapshots.set(worker, this.#retired.has(worker) ? countsIn(metrics) : metrics);
  }

  /** Keeps the counts of a worker that has exited, and drops its gauges. */
  async retire(worker: number): Promise<void> {
    if (this.#retired.has(worker) || this.#merged.has(worker)) return;
    this.#retired.add(worker);
    const last = this.#snapshots.get(worker);
    if (last) this.#snapshots.set(worker, countsIn(last));
    if (this.#retired.size > MAX_RETIRED) await this.#mergeRetired();
  }

  async text(format: MetricsFormat = 'text'): Promise<string> {
    return await write([...this.#snapshots.values()], format);
  }

  async #mergeRetired(): Promise<void> {
    if (this.#isMerging) return;
    this.#isMerging = true;
    const [first = 0, ...others] = this.#retired;
    // From now on nothing of them is taken, which the sum would not contain.
    for (const worker of [first, ...others]) this.#merged.add(worker);
    const all = [first, ...others].map((worker) => this.#snapshots.get(worker) ?? []);
    const sum = await combine(all);
    // In one turn, so that no reader sees some counts twice or not at all.
    this.#snapshots.set(first, sum);
    for (const worker of others) {
      this.#retired.delete(worker);
      this.#snapshots.delete(worker);
    }
    for (const worker of this.#merged)
      if (this.#merged.size > MAX_MERGED && worker !== first) this.#merged.delete(worker);
    this.#isMerging = false;
  }
}

const countsIn = (metrics: readonly object[]): object[] =>
  metrics.filter((metric) => (metric as MetricJson).type !== 'gauge');
