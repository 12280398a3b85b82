import type { IncomingMessage, ServerResponse } from 'node:http';
import { Metrics as AllMetrics } from '../telemetry/metrics.ts';

/** Metrics of one `idempotency`, or of several. docs/metrics.md describes each of them. */
export interface Metrics {
  /** All metrics, in Prometheus' text format. */
  text(): Promise<string>;
}

/** Metrics that several `idempotency` share. Pass them as their option `metrics`. */
export function createMetrics(): Metrics {
  return new AllMetrics();
}

/** @throws {TypeError} unless `createMetrics` or an `idempotency` has made them */
export function openedMetrics(metrics: Metrics = new AllMetrics()): AllMetrics {
  if (metrics instanceof AllMetrics) return metrics;
  throw new TypeError('idempotency: metrics: must be the result of createMetrics');
}

/**
 * A handler that answers with metrics in Prometheus' text format: `app.get('/metrics', metricsMiddleware(protect.metrics))`.
 *
 * @param metrics those of an `idempotency`, or those that {@link createMetrics} has made
 * @returns the handler. If the metrics cannot be read, it passes the error on
 */
export function metricsMiddleware(
  metrics: Metrics,
): (req: IncomingMessage, res: ServerResponse, next: (error?: unknown) => void) => void {
  return (_req, res, next) => {
    metrics.text().then((text) => {
      res.setHeader('Content-Type', 'text/plain; version=0.0.4; charset=utf-8');
      res.end(text);
    }, next);
  };
}
