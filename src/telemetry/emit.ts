import type { Gauge } from 'prom-client';
import { CATALOGUE } from './catalogue.ts';
import { EVENTS } from './events.ts';
import type { LabelsOf, LogEvent } from './log-event.ts';
import type { Logger } from './logger.ts';
import type { AllMetrics } from './metrics.ts';
import { type Counter, Histogram } from './series.ts';

type Logged = keyof typeof EVENTS;
type Metric = keyof typeof CATALOGUE;
export type EventName = Logged | Metric;

/** What is told of an event: the fields of its line, and the labels of its metric. Of a metric: its labels. */
export type Told<E> = E extends Logged
  ? NonNullable<(typeof EVENTS)[E]['told']>
  : E extends Metric
    ? LabelsOf<E>
    : never;

/**
 * Tells that something has happened. `event`: of the table of events, or a metric of what is not logged.
 *
 * @param told may have more than the event needs. Only what the table names is logged
 * @param value what a histogram gets, in the unit of its name, or by how much a counter grows. Default: 1
 */
export type Emit = <E extends EventName>(event: E, told: Told<E>, value?: number) => void;

type Labels = Record<string, string>;
type AnyMetric = Counter<string> | Gauge | Histogram<string>;
type Act = (told: Record<string, unknown>, value?: number) => void;

/** Turns events into lines of the log, and into metrics if there are any. (request-log.ts writes the line of each request.) */
export class Events {
  readonly #acts: Record<string, Act> = {};

  constructor(logger: Logger, metrics?: AllMetrics) {
    if (metrics)
      for (const name of Object.keys(CATALOGUE) as Metric[])
        this.#acts[name] = counting(metrics[name] as AnyMetric);
    for (const [name, event] of Object.entries<LogEvent>(EVENTS)) {
      const log = logging(logger, event);
      const metric = event.metric && metrics?.[event.metric];
      this.#acts[name] = metric ? both(countingLogged(metric as AnyMetric, event), log) : log;
    }
    if (metrics)
      this.on('in_doubt', ({ merchant }) =>
        metrics.merchantInDoubt.inc({ merchant: metrics.merchantLabel(merchant) }),
      );
  }

  readonly emit: Emit = (event, told, value) => this.#acts[event]?.(told, value);

  /** Calls `listener` after each event of this name. */
  on<E extends Logged>(event: E, listener: (told: Told<E>) => void): void {
    this.#acts[event] = both(this.#acts[event] as Act, listener as Act);
  }
}

function both(first: Act, second: Act): Act {
  return (told, value) => {
    first(told, value);
    second(told, value);
  };
}

/** Uses what was told as the labels. Some of these metrics count each command to the store, so nothing is copied. */
function counting(metric: AnyMetric): Act {
  if (metric instanceof Histogram) return (labels, seconds = 0) => metric.observe(labels as Labels, seconds);
  return (labels, count) => metric.inc(labels as Labels, count);
}

function countingLogged(metric: AnyMetric, { metric: name, labels: fixed }: LogEvent): Act {
  const names = Object.keys(name ? CATALOGUE[name].labels : {});
  const count = counting(metric);
  return (told) => count(Object.fromEntries(names.map((label) => [label, fixed?.[label] ?? told[label]])));
}

function logging(logger: Logger, { level, laterLevel = level, message, fields }: LogEvent): Act {
  return (told) => {
    const line: Record<string, unknown> = {};
    for (const [name, { digits }] of Object.entries(fields)) {
      const value = told[name];
      if (value !== undefined) line[name] = digits ? String(value).slice(0, digits) : value;
    }
    logger[Number(told.times) > 1 ? laterLevel : level](line, message);
  };
}
