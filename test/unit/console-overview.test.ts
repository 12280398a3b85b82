import { afterEach, expect, it, vi } from 'vitest';
import { EVERY_MS, MOST_KEPT, OverviewSource } from '../../src/admin/console/overview.ts';
import { Slots } from '../../src/backend/slots.ts';
import type { Lately } from '../../src/console/contract.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { problem } from '../../src/lib/problem.ts';
import { problemCodes } from '../../src/lib/problem-table.ts';
import { OUTCOMES } from '../../src/telemetry/label-values.ts';
import { AllMetrics } from '../../src/telemetry/metrics.ts';

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** The overview of a gateway that has only metrics, on a clock of its own. */
function open() {
  const metrics = new AllMetrics();
  const time = { ms: 0 };
  const clock = { ...systemClock, wallMs: () => time.ms, monotonicMs: () => time.ms };
  const options = { mode: 'protect', countDoubtsEveryMs: 1000 } as const;
  const overview = new OverviewSource({ ...options, metrics, checks: async () => [], clock });
  return { metrics, time, clock, overview };
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

it('the overview counts executions only as executed, and as not served what the gateway, the store or the backend is the reason of', async () => {
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
    executed: ['executed'],
    replayed: ['replayed'],
    passedOn: ['forwarded', 'passed_through', 'upgraded'],
    unknown: ['outcome_unknown'],
    notServed: ['released', 'merchant_gone', ...byGateway],
    refused: problemCodes.filter((code) => code !== 'outcome_unknown' && !byGateway.includes(code)),
  });
});

it('the overview says first what merchants got in the last minute, then what checks and doubts say', async () => {
  const end = (gateway: Overviewed, outcome: string, times: number) => {
    gateway.metrics.requests.inc({ operation: 'withdraw', outcome }, times);
    gateway.time.ms += EVERY_MS;
  };
  const unknown = open();
  expect(await unknown.overview.read(-1)).toMatchObject({ lately: null, state: 'unknown' });
  // An outage of the backend that every check of /readyz passes.
  await unknown.overview.take();
  end(unknown, 'outcome_unknown', 6599);
  expect(await unknown.overview.read(-1)).toMatchObject({
    state: 'failing',
    lately: { due: 6599, results: 0, ms: EVERY_MS, requests: { executed: 0, unknown: 6599 } },
  });

  const errors = open();
  await errors.overview.take();
  errors.metrics.backendErrors += 2999;
  end(errors, 'executed', 2999);
  const { lately, state } = await errors.overview.read(-1);
  expect([state, lately?.results, lately?.requests.executed]).toEqual(['failing', 0, 2999]);

  const some = open();
  await some.overview.take();
  end(some, 'executed', 97);
  end(some, 'overloaded', 3);
  expect((await some.overview.read(-1)).state).toBe('warning');
  // What is older than a minute does not count.
  await some.overview.take();
  for (let taken = 0; taken < 13; taken++) {
    end(some, 'executed', 1);
    await some.overview.take();
  }
  expect((await some.overview.read(-1)).lately).toMatchObject({ due: 12, results: 12, ms: 60_000 });

  const refused = open();
  await refused.overview.take();
  for (const outcome of ['missing_credentials', 'invalid_key', 'insufficient_scope', 'rate_limited'])
    refused.metrics.requests.inc({ operation: 'none', outcome }, 10);
  end(refused, 'replayed', 40);
  const keysRefused = { due: 0, keysRefused: 30, requests: { refused: 40 } };
  expect(await refused.overview.read(-1)).toMatchObject({ state: 'ok', lately: keysRefused });
  end(refused, 'invalid_key', 1);
  expect((await refused.overview.read(-1)).state).toBe('warning');
});

it('the overview judges the backend by what was sent to it, and not by replays, which go on while it fails', async () => {
  const { metrics, time, overview } = open();
  await overview.take();
  time.ms += EVERY_MS;
  metrics.requests.inc({ operation: 'withdraw', outcome: 'replayed' }, 980);
  metrics.requests.inc({ operation: 'withdraw', outcome: 'executed' }, 4);
  metrics.requests.inc({ operation: 'withdraw', outcome: 'outcome_unknown' }, 16);
  expect(await overview.read(-1)).toMatchObject({ state: 'failing', lately: { due: 20, results: 4 } });
});

it('the overview needs attention while a request is in flight to the backend for longer than five seconds', async () => {
  const { metrics, time, clock, overview } = open();
  const slots = new Slots({ maxConnections: 9, maxQueued: 0, queueTimeoutMs: 0 }, clock);
  metrics.track(metrics.slotsHeldLong, () => slots.heldLong());
  metrics.requests.inc({ operation: 'withdraw', outcome: 'executed' });
  const sampled = async () => {
    time.ms += EVERY_MS;
    await overview.take();
    const { longInFlight, state } = await overview.read(-1);
    return [longInFlight, state];
  };
  const hangs = slots.tryTake();
  expect(await sampled()).toEqual([0, 'ok']);
  slots.tryTake();
  const quick = slots.tryTake();
  expect(await sampled()).toEqual([1, 'warning']);
  quick?.release();
  expect(await sampled()).toEqual([2, 'warning']);
  hangs?.release();
  expect(await sampled()).toEqual([1, 'warning']);
});

it('the overview says that nothing is known until a request has ended, and then what it knows', async () => {
  const { metrics, time, overview } = open();
  await overview.take();
  time.ms += EVERY_MS;
  expect((await overview.read(-1)).state).toBe('unknown');
  metrics.requests.inc({ operation: 'withdraw', outcome: 'executed' });
  expect((await overview.read(-1)).state).toBe('ok');
});

it('the overview does not say 0 for what is not known', async () => {
  const { metrics, time, overview } = open();
  await overview.take();
  const [never] = (await overview.read(-1)).samples;
  expect(never).toMatchObject({ inDoubt: null, answerMs: null, backendMs: null });
  metrics.doubtsCounted.set(0.001);
  metrics.keysInDoubt.set({ operation: 'withdraw' }, 3);
  await overview.take();
  // The store has not answered since.
  time.ms = 3_600_000;
  await overview.take();
  const { samples, doubts } = await overview.read(-1);
  expect(samples.map(({ inDoubt }) => inDoubt)).toEqual([null, 3, null]);
  expect(doubts).toMatchObject({ keys: 3, isLate: true });
});

it('the overview’s percentiles are those of the durations, not of the histogram’s buckets', async () => {
  const { metrics, overview } = open();
  const sample = async () => {
    await overview.take();
    return (await overview.read(-1)).samples.at(-1);
  };
  const observe = (seconds: number, times: number) => {
    for (let i = 0; i < times; i++) {
      metrics.requestSeconds.observe({ operation: 'withdraw' }, seconds);
      metrics.upstreamSeconds.observe({ operation: 'withdraw', result: 'complete' }, seconds);
    }
  };
  await sample();
  observe(0.02, 60);
  observe(12, 40);
  metrics.upstreamSeconds.observe({ operation: 'withdraw', result: 'not_sent' }, 300);
  metrics.gatewaySeconds.observe({ operation: 'withdraw' }, 0);
  metrics.gatewaySeconds.observe({ operation: 'withdraw' }, 7200);
  const { answerMs, backendMs, gatewayMs } = (await sample()) ?? {};
  for (const { half, most } of [answerMs, backendMs].filter((found) => found != null)) {
    expect(Math.abs(half - 20)).toBeLessThan(1);
    expect(Math.abs(most - 12_000)).toBeLessThan(600);
  }
  // What is outside of the fine buckets counts in the first and in the last one.
  expect([gatewayMs?.half, Number(gatewayMs?.most) > 300_000]).toEqual([0.01, true]);
  observe(0.02, 5);
  expect(Number((await sample())?.answerMs?.most)).toBeLessThan(21);
  expect((await sample())?.answerMs).toBe(null);
});

it('the page says what merchants get, and never 100 % while one of them gets nothing', async () => {
  vi.stubGlobal('addEventListener', () => {});
  const { servedInWords, doubtsInWords } = await import('../../src/console/words.ts');
  const said = (results: number, due: number, others: object = {}) => {
    const requests = { refused: 0, replayed: 0, ...others } as Lately['requests'];
    const lately = { due, results, ms: 60_000, requests, backendErrors: 0, keysRefused: 0, ...others };
    return servedInWords({ state: 'ok', longInFlight: 0, lately, ...others });
  };
  const SHARES = {
    'Merchants get results: 12 of 12 requests that needed the backend got a result in the last minute.': [
      12, 12,
    ],
    'Merchants get results: 9,999 of 10,000 requests that needed the backend got a result in the last minute (99.9 %).':
      [9999, 10_000],
    'Some merchants get no result: 90 of 100 requests that needed the backend got a result in the last minute (90.0 %).':
      [90, 100],
    'Merchants are not served: 0 of 6,599 requests that needed the backend got a result in the last minute (0.0 %).':
      [0, 6599],
  } as const;
  for (const [sentence, [results, due]] of Object.entries(SHARES)) expect(said(results, due)).toBe(sentence);
  const one = 'Merchants get results: 1 of 1 request that needed the backend got a result in the last minute';
  expect([
    servedInWords({ state: 'warning', lately: null, longInFlight: 0 }),
    ...[
      said(0, 0, { state: 'unknown' }),
      said(0, 0),
      said(0, 0, { replayed: 1 }),
      said(1, 1, { replayed: 98 }),
      said(1, 9, { replayed: 98 }),
    ],
    ...[said(0, 0, { refused: 7 }), said(1, 1, { refused: 2, keysRefused: 2 }), said(1, 1, { refused: 1 })],
    said(0, 0, { longInFlight: 12 }),
  ]).toEqual([
    'What merchants get is not known yet.',
    'Nothing has been observed yet: no request has ended since the start.',
    'No request has ended in the last minute.',
    'No request needed the backend in the last minute, besides 1 replay.',
    `${one}, besides 98 replays.`,
    'Merchants are not served: 1 of 9 requests that needed the backend got a result in the last minute (11.1 %), besides 98 replays.',
    'Most requests are refused: 7 of 7 in the last minute.',
    `Most requests are refused: 2 of 3 in the last minute, 2 because of the secret key. ${one}.`,
    `${one}.`,
    'No request has ended in the last minute. In flight to the backend for longer than 5 seconds: 12 requests.',
  ]);
  const doubts = { keys: 3, oldestMs: 61_000, countedAt: '2026-01-01T00:00:00Z', isLate: true };
  expect(doubtsInWords(doubts)).toMatch(
    /^not known now\. The last count was 3, the oldest for 1 minute 1 second/,
  );
  expect(doubtsInWords({ ...doubts, keys: null, countedAt: null })).toMatch(/^not known/);
});

type Overviewed = ReturnType<typeof open>;

async function requests(overview: OverviewSource): Promise<Record<string, number>> {
  await overview.take();
  return (await overview.read(-1)).samples.at(-1)?.requests ?? {};
}
