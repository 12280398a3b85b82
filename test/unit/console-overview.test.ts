import { afterEach, expect, it, vi } from 'vitest';
import { EVERY_MS, MOST_KEPT, OverviewSource } from '../../src/admin/console/overview.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { problem } from '../../src/lib/problem.ts';
import { problemCodes } from '../../src/lib/problem-table.ts';
import { Metrics } from '../../src/telemetry/metrics.ts';
import { OUTCOMES } from '../../src/telemetry/words.ts';

afterEach(() => void vi.useRealTimers());

/** The overview of a gateway that has only metrics, on a clock of its own. */
function open() {
  const metrics = new Metrics();
  const time = { ms: 0 };
  const clock = { ...systemClock, wallMs: () => time.ms, monotonicMs: () => time.ms };
  const options = { mode: 'protect', countDoubtsEveryMs: 1000 } as const;
  const overview = new OverviewSource({ ...options, metrics, checks: async () => [], clock });
  return { metrics, time, overview };
}

it('the overview keeps the samples of one hour, and tells only those that the page does not have', async () => {
  const { time, overview } = open();
  for (let taken = 0; taken < 800; taken++) {
    time.ms += EVERY_MS;
    await overview.take();
  }
  const { samples, upMs } = await overview.read(-1);
  expect([samples.length, upMs, samples.at(-1)?.upMs]).toEqual([MOST_KEPT, 800 * EVERY_MS, 800 * EVERY_MS]);
  expect(upMs - Number(samples[0]?.upMs)).toBe(3_600_000);
  const later = await overview.read(798 * EVERY_MS);
  expect(later.samples.map((sample) => sample.upMs)).toEqual([799 * EVERY_MS, 800 * EVERY_MS]);
  expect((await overview.read(upMs)).samples).toEqual([]);
  // What a page without a number would ask.
  expect((await overview.read(Number.NaN)).samples).toEqual([]);
});

it('the overview samples by itself from its beginning to its end', async () => {
  vi.useFakeTimers();
  const { time, overview } = open();
  const taken = async () => (await overview.read(-1)).samples.map(({ upMs }) => upMs);
  overview.begin();
  for (let round = 0; round < 3; round++) {
    time.ms += EVERY_MS;
    await vi.advanceTimersByTimeAsync(EVERY_MS);
  }
  expect(await taken()).toEqual([0, EVERY_MS, 2 * EVERY_MS, 3 * EVERY_MS]);
  overview.end();
  await vi.advanceTimersByTimeAsync(10 * EVERY_MS);
  expect(await taken()).toHaveLength(4);
});

it('the overview counts an outcome as failed if the gateway, the store or the backend is the reason', async () => {
  const { metrics, overview } = open();
  const groups: Record<string, string[]> = {};
  for (const outcome of OUTCOMES) {
    const before = await requests(overview);
    metrics.requests.inc({ operation: 'withdraw', outcome });
    const after = await requests(overview);
    for (const [group, count] of Object.entries(after))
      if (count > Number(before[group])) groups[group] = [...(groups[group] ?? []), outcome];
  }
  // A merchant can cause a loop.
  const byGateway = problemCodes.filter(
    (code) => code !== 'loop_detected' && problem(code, '').status >= 500,
  );
  expect(groups).toEqual({
    executed: ['executed', 'released', 'forwarded', 'passed_through', 'upgraded'],
    replayed: ['replayed'],
    unknown: ['outcome_unknown'],
    failed: byGateway,
    refused: [
      'merchant_gone',
      ...problemCodes.filter((code) => code !== 'outcome_unknown' && !byGateway.includes(code)),
    ],
  });
});

it('the overview adds up how long the gateway and the backend took', async () => {
  const { metrics, overview } = open();
  for (const seconds of [0.25, 0.5]) metrics.gatewaySeconds.observe({ operation: 'withdraw' }, seconds);
  metrics.upstreamSeconds.observe({ operation: 'withdraw', result: 'complete' }, 2);
  metrics.inFlight.set(3);
  await overview.take();
  expect((await overview.read(-1)).samples.at(-1)).toMatchObject({
    ...{ gateway: { number: 2, ms: 750 }, backend: { number: 1, ms: 2000 }, inFlight: 3, waiting: 0 },
  });
});

async function requests(overview: OverviewSource): Promise<Record<string, number>> {
  await overview.take();
  return (await overview.read(-1)).samples.at(-1)?.requests ?? {};
}
