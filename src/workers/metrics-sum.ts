import { AggregatorRegistry } from 'prom-client';

interface MetricJson {
  type: string;
}

/** Snapshots of the dead that are kept apart; more are added up. */
const RETIRED_APART = 100;

/**
 * The metrics of all workers as one. A worker that has died leaves its counts behind: without them the sums would fall,
 * which Prometheus reads as a restart. They stay in their place, since fractions added up in another order may give a
 * sum that is smaller by its last bit.
 */
export class MetricsSum {
  readonly #snapshots = new Map<number, object[]>();
  readonly #retired = new Set<number>();

  /** The newest snapshot of a worker. */
  take(worker: number, metrics: object[]): void {
    if (!this.#retired.has(worker)) this.#snapshots.set(worker, metrics);
  }

  /** The worker has died. Its gauges die with it. */
  async retire(worker: number): Promise<void> {
    const last = this.#snapshots.get(worker);
    if (!last || this.#retired.has(worker)) return;
    this.#retired.add(worker);
    const counts = last.filter((metric) => (metric as MetricJson).type !== 'gauge');
    this.#snapshots.set(worker, counts);
    if (this.#retired.size > RETIRED_APART) await this.#addUpRetired();
  }

  /** Prometheus text format. */
  async text(): Promise<string> {
    return await AggregatorRegistry.aggregate([...this.#snapshots.values()]).metrics();
  }

  async #addUpRetired(): Promise<void> {
    const [first = 0, ...others] = this.#retired;
    const all = [first, ...others].map((worker) => this.#snapshots.get(worker) ?? []);
    for (const worker of others) {
      this.#retired.delete(worker);
      this.#snapshots.delete(worker);
    }
    this.#snapshots.set(first, await AggregatorRegistry.aggregate(all).getMetricsAsJSON());
  }
}
