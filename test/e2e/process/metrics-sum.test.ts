import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { expect, it } from 'vitest';
import { configurationWarnings, Metrics } from '../../../src/observability/metrics.ts';
import { MetricsSum } from '../../../src/workers/metrics-sum.ts';
import { until } from '../../support/until.ts';

/** The snapshot of a worker that has observed these durations. */
async function worker(...seconds: number[]): Promise<object[]> {
  const registry = new Registry();
  const histogram = new Histogram({ name: 'seconds', help: 'Seconds', buckets: [1], registers: [registry] });
  for (const value of seconds) histogram.observe(value);
  return await registry.getMetricsAsJSON();
}

it('a sum of fractions does not fall by its last bit when a worker dies, which Prometheus would read as a restart', async () => {
  const sum = new MetricsSum();
  for (const [id, seconds] of [0.1, 0.2, 0.3].entries()) sum.take(id, await worker(seconds));
  const read = async () => Number((await sum.text()).match(/^seconds_sum (\S+)$/m)?.[1]);
  const values = [await read()];
  for (const id of [0, 1, 2]) {
    await sum.retire(id);
    values.push(await read());
  }
  expect(values[0]).toBeCloseTo(0.6, 5);
  expect(values).toEqual(Array(4).fill(values[0]));
});

it('each bucket keeps the newest trace id of all workers, also when they have died', async () => {
  const [older, newer] = [new Metrics(), new Metrics()];
  const labels = { operation: 'withdraw' };
  older.observeRequest(labels, 0.02, 'a'.repeat(32));
  older.observeRequest(labels, 2, 'b'.repeat(32));
  const olderMs = Date.now();
  await until(() => Date.now() > olderMs);
  newer.observeRequest(labels, 0.02, 'c'.repeat(32));
  const sum = new MetricsSum();
  // As through a message.
  for (const [id, metrics] of [newer, older].entries())
    sum.take(id, JSON.parse(JSON.stringify(await metrics.snapshot())));
  const read = async () => {
    const lines = (await sum.text('openmetrics')).split('\n').filter((line) => line.includes(' # {'));
    return lines.map((line) => line.replace(/^.*le="([^"]+)".*\} (\d+) # .*trace_id="(.).*$/, '$1 $2 $3'));
  };
  expect(await read()).toEqual(['0.025 2 c', '2.5 3 b']);
  for (const id of [0, 1]) await sum.retire(id);
  expect(await read()).toEqual(['0.025 2 c', '2.5 3 b']);
  const text = await sum.text();
  expect(text).toContain('oncegate_request_duration_seconds_count{operation="withdraw"} 3\n');
  expect(text).not.toContain('trace_id');
});

/** The snapshot of a worker that read the count of keys in doubt at this time, in seconds. */
async function countedBy(
  countedAt: number,
  keys: number,
  ownerGone: number,
  oldest: number,
): Promise<object[]> {
  const metrics = new Metrics();
  metrics.declareOperations(['withdraw']);
  metrics.doubtsCounted.set(countedAt);
  metrics.keysInDoubt.set({ operation: 'withdraw' }, keys);
  metrics.keysOwnerGone.set({ operation: 'withdraw' }, ownerGone);
  metrics.oldestInDoubt.set(oldest);
  return JSON.parse(JSON.stringify(await metrics.snapshot()));
}

it('the keys in doubt are those of the newest count, not those of a worker that cannot read the store any more', async () => {
  for (const format of ['text', 'openmetrics'] as const) {
    const sum = new MetricsSum();
    const shown = async () =>
      [
        ...(await sum.text(format)).matchAll(
          /^oncegate_\w*(?:keys_|oldest_in_doubt|doubts_counted)\S* (\S+)$/gm,
        ),
      ]
        .filter(([line]) => /withdraw|seconds/.test(line))
        .map(([, value]) => Number(value));
    // As the primary's own metrics, which have no such gauges.
    sum.take(0, configurationWarnings(0));
    sum.take(1, await countedBy(1000, 7, 2, 90));
    expect(await shown()).toEqual([7, 2, 90, 1000]);
    sum.take(2, await countedBy(1060, 0, 0, 0));
    expect(await shown()).toEqual([0, 0, 0, 1060]);
    // A new worker has not counted yet.
    sum.take(3, await countedBy(0, 0, 0, 0));
    sum.take(1, await countedBy(1120, 5, 1, 20));
    expect(await shown()).toEqual([5, 1, 20, 1120]);
    await sum.retire(1);
    expect(await shown()).toEqual([0, 0, 0, 1060]);
  }
});

/** The snapshot of a worker with so many requests and slots. */
async function working(requests: number): Promise<object[]> {
  const registry = new Registry();
  new Counter({ name: 'requests_total', help: 'Requests', registers: [registry] }).inc(requests);
  new Gauge({ name: 'slots', help: 'Slots', registers: [registry] }).set(50);
  return await registry.getMetricsAsJSON();
}

it('a message that arrives after its worker died brings its last counts, and no gauges', async () => {
  const sum = new MetricsSum();
  const shown = async () => (await sum.text()).match(/^(?:requests_total|slots) \d+$/gm);
  sum.take(1, await working(1));
  sum.take(2, await working(2));
  await sum.retire(2);
  // Node may report the exit of a worker before the worker's first message.
  await sum.retire(3);
  expect(await shown()).toEqual(['requests_total 3', 'slots 50']);
  sum.take(2, await working(12));
  sum.take(3, await working(100));
  expect(await shown()).toEqual(['requests_total 113', 'slots 50']);
  await sum.retire(2);
  expect(await shown()).toEqual(['requests_total 113', 'slots 50']);
});

it('a message of a dead worker whose counts were merged with those of others counts nothing twice', async () => {
  const sum = new MetricsSum();
  const shown = async () => (await sum.text()).match(/^requests_total \d+$/gm);
  for (let id = 1; id <= 150; id++) {
    sum.take(id, await working(1));
    const [, before] = await Promise.all([sum.retire(id), shown()]);
    expect(before).toEqual([`requests_total ${id}`]);
  }
  for (const id of [1, 2, 60, 101]) sum.take(id, await working(1));
  expect(await shown()).toEqual(['requests_total 150']);
  for (const id of [1, 2, 60, 101]) await sum.retire(id);
  expect(await shown()).toEqual(['requests_total 150']);
});
