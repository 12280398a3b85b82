import { GATEWAYS, orZero, quantile, rateBy } from './queries.ts';

const requests = 'oncegate_requests_total';

/** What the gateway itself failed to do, as the objective in config/prometheus.rules.yaml counts it. */
export const FAILED = 'store_unavailable|shutting_down|internal_error';
/** What merchants did not get because of the backend: it was not reached, or nobody knows what it did. */
export const FAILED_BEHIND = 'upstream_unreachable|outcome_unknown';
export const SERVED = 'executed|replayed|released|forwarded|passed_through|upgraded';

/** The objectives in config/prometheus.rules.yaml. */
export const OBJECTIVES = { available: 0.999, results: 0.99, addedSeconds: 0.025 };

const sum = (counter: string, selector: string, range: string) =>
  `sum(rate(${counter}{${GATEWAYS}, ${selector}}[${range}]))`;
const count = (failed: string, range: string) =>
  `(${sum(requests, `outcome=~"${failed}"`, range)} + ${sum(requests, 'outcome="overloaded", operation!="none"', range)})`;
const served = (range: string) => sum(requests, `outcome=~"${SERVED}"`, range);

/**
 * Of the requests that could be served, the share that the gateway did not fail; 1 when there were none. Refusals that a merchant
 * caused count neither as served nor as failed, nor do those in a flood of invented secret keys (`overloaded` of the operation `none`).
 */
export function availability(range: string): string {
  const bad = count(FAILED, range);
  return `1 - (${orZero(`${bad} / (${bad} + ${served(range)} > 0)`)})`;
}

/** Of the same requests and those that the backend failed, the share for which a merchant got a result. */
export function results(range: string): string {
  const none = count(`${FAILED}|${FAILED_BEHIND}`, range);
  const errors = sum('oncegate_upstream_responses_total', 'class="5xx"', range);
  return `1 - (${orZero(`(${none} + ${errors}) / (${none} + ${served(range)} > 0)`)})`;
}

/** The requests that were not served, by outcome, as shares of all. */
export const notServed = orZero(
  `${rateBy('outcome', requests, `${GATEWAYS}, outcome=~"${FAILED}|${FAILED_BEHIND}|overloaded"`)} / ` +
    `ignoring (outcome) group_left () (sum(rate(${requests}{${GATEWAYS}}[$__rate_interval])) > 0)`,
  'outcome',
);

/** A quantile of what the gateway adds to a request, as the objective counts it. */
export const added = (which: number): string =>
  quantile(which, 'oncegate_gateway_duration_seconds', `${GATEWAYS}, operation!="none"`);
