import { AggregatorRegistry } from 'prom-client';

interface MetricJson {
  type: string;
}

/** Snapshots of dead workers that are kept separately. When there are more, they are merged into one. */
const MAX_RETIRED = 100;

/**
 * Adds up the metrics of all workers. The counts of a dead worker stay in the sum, because Prometheus takes a counter that
 * falls for a restart. They also stay at their place in the order of addition: floating-point numbers that are added in
 * another order can give a slightly smaller sum.
 */
export class MetricsSum {
  readonly #snapshots = new Map<number, object[]>();
  readonly #retired = new Set<number>();

  /** Replaces the snapshot of a worker. */
  take(worker: number, metrics: object[]): void {
    if (!this.#retired.has(worker)) this.#snapshots.set(worker, metrics);
  }

  /** Keeps the counts of a worker that has exited, and drops its gauges. */
  async retire(worker: number): Promise<void> {
    const last = this.#snapshots.get(worker);
    if (!last || this.#retired.has(worker)) return;
    this.#retired.add(worker);
    const counts = last.filter((metric) => (metric as MetricJson).type !== 'gauge');
    this.#snapshots.set(worker, counts);
    if (this.#retired.size > MAX_RETIRED) await this.#mergeRetired();
  }

  /** Prometheus text format. */
  async text(): Promise<string> {
    return await AggregatorRegistry.aggregate([...this.#snapshots.values()]).metrics();
  }

  async #mergeRetired(): Promise<void> {
    const [first = 0, ...others] = this.#retired;
    const all = [first, ...others].map((worker) => this.#snapshots.get(worker) ?? []);
    for (const worker of others) {
      this.#retired.delete(worker);
      this.#snapshots.delete(worker);
    }
    this.#snapshots.set(first, await AggregatorRegistry.aggregate(all).getMetricsAsJSON());
  }
}
