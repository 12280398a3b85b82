/** Parts of the PromQL of the panels. */

/** Selects the chosen gateways. */
export const GATEWAYS = 'job=~"$job", instance=~"$instance"';
/** Selects the chosen operations of the chosen gateways. */
export const OPERATIONS = `${GATEWAYS}, operation=~"$operation"`;
/** Selects the chosen merchants of the chosen gateways. */
export const MERCHANTS = `${GATEWAYS}, merchant=~"$merchant"`;

/** One query and the name of its lines. `{{label}}` is replaced by the label's value. */
export interface Query {
  expr: string;
  legend: string;
  /** Show single requests, by which a trace can be found. Default false. */
  exemplars?: boolean;
}

/** Events per second. */
export const rateOf = (counter: string, selector: string) =>
  `sum(rate(${counter}{${selector}}[$__rate_interval]))`;

/** Events per second, added up by these labels. */
export const rateBy = (labels: string, counter: string, selector: string) =>
  `sum by (${labels}) (rate(${counter}{${selector}}[$__rate_interval]))`;

/** Events in each step. */
export const increaseOf = (counter: string, selector: string) =>
  `sum(increase(${counter}{${selector}}[$__rate_interval]))`;

/** Events in each step, added up by these labels. */
export const increaseBy = (labels: string, counter: string, selector: string) =>
  `sum by (${labels}) (increase(${counter}{${selector}}[$__rate_interval]))`;

/** Events within the last day. */
export const lastDay = (counter: string, selector: string) => `sum(increase(${counter}{${selector}}[24h]))`;

/** A quantile of a histogram, over all chosen gateways. `labels` other than `le`: one line for each of their values. */
export function quantile(which: number, histogram: string, selector: string, labels = ''): string {
  const by = labels === '' ? 'le' : `${labels}, le`;
  return `histogram_quantile(${which}, sum by (${by}) (rate(${histogram}_bucket{${selector}}[$__rate_interval])))`;
}

/** The median and the tail of a histogram. */
export function quantiles(histogram: string, selector: string): Query[] {
  return [0.5, 0.95, 0.99].map((which) => ({
    expr: quantile(which, histogram, selector),
    legend: `p${which * 100}`,
    exemplars: true,
  }));
}

/**
 * 0 for "nothing happened" where an expression has no value, for example a share of no requests. Without any gateway it
 * has no value either: that must not look like "all is well". `label`: the label of the expression, which is "none" then.
 */
export function orZero(expr: string, label?: string): string {
  const zero = `0 * max(oncegate_build_info{${GATEWAYS}})`;
  return `${expr} or on () ${label ? `label_replace(${zero}, "${label}", "none", "", "")` : zero}`;
}

/** Adds the label `store` to what each gateway reads from its store. */
export const withStore = (expr: string) =>
  `${expr} * on (job, instance) group_left (store) oncegate_store_info{${GATEWAYS}}`;

/**
 * A value that the gateways read from their store, so that each of them exports the same. Adding them up would count a
 * key once for each gateway. One line for each store. `labels`: and for each of their values. Only of the gateways that have counted
 * within five minutes, as OncegateDoubtsNotCounted has it: the others show an old count, or 0 if they have not counted yet.
 */
export const ofTheStore = (metric: string, selector = GATEWAYS, labels = '') =>
  `max by (job, store${labels && `, ${labels}`}) (${withStore(`${metric}{${selector}}`)} ` +
  `and on (job, instance) time() - oncegate_doubts_counted_timestamp_seconds{${GATEWAYS}} < 300)`;
