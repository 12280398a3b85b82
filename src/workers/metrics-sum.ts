import { AggregatorRegistry } from 'prom-client';

interface MetricJson {
  type: string;
}

/**
 * The metrics of all workers as one. A worker that has died leaves its counts behind: without them the sums would fall,
 * which Prometheus reads as a restart.
 */
export class MetricsSum {
  readonly #living = new Map<number, object[]>();
  #retired: object[][] = [];

  /** The newest snapshot of a worker. */
  take(worker: number, metrics: object[]): void {
    this.#living.set(worker, metrics);
  }

  /** The worker has died. Its gauges die with it. */
  async retire(worker: number): Promise<void> {
    const last = this.#living.get(worker);
    this.#living.delete(worker);
    if (!last) return;
    const counts = last.filter((metric) => (metric as MetricJson).type !== 'gauge');
    this.#retired = [await AggregatorRegistry.aggregate([...this.#retired, counts]).getMetricsAsJSON()];
  }

  /** Prometheus text format. */
  async text(): Promise<string> {
    return await AggregatorRegistry.aggregate([...this.#living.values(), ...this.#retired]).metrics();
  }
}
