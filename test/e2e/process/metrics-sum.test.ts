import { Histogram, Registry } from 'prom-client';
import { expect, it } from 'vitest';
import { MetricsSum } from '../../../src/workers/metrics-sum.ts';

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
