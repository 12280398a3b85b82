import fc from 'fast-check';
import * as prometheus from 'prom-client';
import { expect, it } from 'vitest';
import { CATALOGUE } from '../../src/telemetry/catalogue.ts';
import type { Definition } from '../../src/telemetry/definition.ts';
import { boundsAround, Counter, Histogram } from '../../src/telemetry/series.ts';

const BUCKETS = [0.1, 1, 10];
const word = fc.constantFrom('a', 'b', 'a b', '"quoted"');
const labels = fc.record({ operation: word, outcome: word });
const events = fc.array(fc.tuple(labels, fc.double({ min: 0, max: 20, noNaN: true })), { maxLength: 50 });

/** The lines of a registry, sorted: the series of prom-client are in another order. */
async function linesOf(metrics: readonly unknown[]): Promise<string[]> {
  const registry = new prometheus.Registry();
  for (const metric of metrics) registry.registerMetric(metric as prometheus.Metric);
  return (await registry.metrics()).split('\n').toSorted();
}

it('counters and histograms read like those of prom-client', async () => {
  const counted = { name: 'events_total', help: 'Events', labelNames: ['operation', 'outcome'] as const };
  const measured = { ...counted, name: 'event_seconds', buckets: BUCKETS };
  const registers: [] = [];
  await fc.assert(
    fc.asyncProperty(events, labels, async (all, ended) => {
      const ours = [new Counter(counted), new Histogram(measured)] as const;
      const theirs = [
        new prometheus.Counter({ ...counted, registers }),
        new prometheus.Histogram({ ...measured, registers }),
      ] as const;
      for (const [counter, histogram] of [ours, theirs]) {
        counter.inc({ operation: 'begun', outcome: 'at zero' }, 0);
        histogram.zero({ operation: 'begun', outcome: 'at zero' });
        for (const [named, value] of all) {
          counter.inc(named);
          counter.inc(named, value);
          histogram.observe(named, value);
        }
        counter.remove(ended);
        histogram.remove(ended);
      }
      expect(await linesOf(ours)).toEqual(await linesOf(theirs));
    }),
  );
});

it('a series has the labels of its metric only', async () => {
  const counter = new Counter({ name: 'events_total', help: 'Events', labelNames: ['operation'] });
  const told = { operation: 'withdraw', key: 'order-1' };
  counter.inc(told);
  expect((await counter.get()).values).toEqual([{ labels: { operation: 'withdraw' }, value: 1 }]);
});

it('a metric without labels begins at zero', async () => {
  const [counter, histogram] = [
    new Counter({ name: 'events_total', help: 'Events', labelNames: [] }),
    new Histogram({ name: 'event_seconds', help: 'Seconds', labelNames: [], buckets: BUCKETS }),
  ];
  expect(await linesOf([counter, histogram])).toEqual(
    expect.arrayContaining(['events_total 0', 'event_seconds_count 0', 'event_seconds_bucket{le="+Inf"} 0']),
  );
});

it('a bucket keeps the trace id of its newest value', async () => {
  const histogram = new Histogram({
    name: 'event_seconds',
    help: 'Seconds',
    labelNames: [],
    buckets: BUCKETS,
  });
  histogram.observe({}, 0.5, 'first');
  histogram.observe({}, 0.6, 'second');
  histogram.observe({}, 0.7);
  const { values } = await histogram.get();
  expect(values.filter(({ exemplar }) => exemplar)).toMatchObject([
    { labels: { le: 1 }, value: 3, exemplar: { labelSet: { trace_id: 'second' }, value: 0.6 } },
  ]);
});

/** What histogram_quantile() says if every value of a histogram is this one: it spreads them evenly over their bucket. */
function quantileOf(share: number, value: number, bounds: readonly number[]): number {
  const at = bounds.findIndex((bound) => value <= bound);
  const [from = 0, to = 0] = [bounds[at - 1], bounds[at]];
  return at < 0 ? (bounds.at(-1) as number) : from + share * (to - from);
}

it.each([
  ['of the defaults', [30_000, 10_000, 10_000]],
  ['longer than the longest bucket', [300_000, 45_000]],
  ['without a wait', [4000, 0]],
])('buckets show how long requests take near time limits, and beyond them: limits %s', (_, limitsMs) => {
  const limited = Object.values<Definition>(CATALOGUE).filter(({ isLimited }) => isLimited);
  expect(limited.length).toBeGreaterThan(2);
  for (const { buckets = [], name } of limited) {
    const bounds = boundsAround(buckets, limitsMs);
    expect(bounds.length).toBeLessThan(45);
    // Prometheus refuses a bucket that comes twice.
    expect([...new Set(bounds)].toSorted((a, b) => a - b)).toEqual(bounds);
    for (const bound of buckets) expect(bounds).toContain(bound);
    for (let seconds = 1.1; seconds < Math.max(...limitsMs) / 1000; seconds *= 1.03) {
      for (const share of [0.5, 0.95, 0.99]) {
        const shown = quantileOf(share, seconds, bounds) / seconds;
        expect(Math.abs(shown - 1), `${name}: ${seconds} s`).toBeLessThan(0.34);
      }
    }
    // Whatever a time limit ends takes a little longer than the limit.
    for (const ms of limitsMs.filter((one) => one > 0)) {
      expect(bounds).toContain(ms / 1000);
      expect(Math.abs(quantileOf(0.99, 1.002 * (ms / 1000), bounds) / (ms / 1000) - 1)).toBeLessThan(0.06);
    }
  }
});
