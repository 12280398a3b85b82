import fc from 'fast-check';
import * as prometheus from 'prom-client';
import { expect, it } from 'vitest';
import { Counter, Histogram } from '../../src/telemetry/series.ts';

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
