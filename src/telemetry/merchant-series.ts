import type { Counter, Histogram } from 'prom-client';
import type { Metrics } from './metrics.ts';

/** The series of one label `merchant`. Looking up the labels of a series costs more than counting, so it keeps them. */
export class MerchantSeries {
  readonly #metrics: Metrics;
  readonly #merchant: string;
  readonly #requests = new Map<string, Counter.Internal>();
  readonly #seconds: Histogram.Internal<'merchant'>;
  readonly #inDoubt: Counter.Internal;

  constructor(metrics: Metrics, merchant: string) {
    this.#metrics = metrics;
    this.#merchant = merchant;
    this.#seconds = metrics.merchantSeconds.labels({ merchant });
    this.#inDoubt = metrics.merchantInDoubt.labels({ merchant });
  }

  ended(outcome: string, seconds: number): void {
    let requests = this.#requests.get(outcome);
    if (!requests) {
      requests = this.#metrics.merchantRequests.labels({ merchant: this.#merchant, outcome });
      this.#requests.set(outcome, requests);
    }
    requests.inc();
    this.#seconds.observe(seconds);
  }

  leftInDoubt(): void {
    this.#inDoubt.inc();
  }
}
