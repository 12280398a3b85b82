import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it, onTestFinished } from 'vitest';
import { DoubtGauges } from '../../src/doubts/doubt-gauges.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { shareStoreMetrics } from '../../src/middleware/shared-metrics.ts';
import type { OpenedStore } from '../../src/middleware/stores.ts';
import type { DoubtCount } from '../../src/store/doubts.ts';
import { AllMetrics } from '../../src/telemetry/metrics.ts';
import { emitTo } from '../support/emit.ts';
import { Scrape } from '../support/metrics.ts';
import { until } from '../support/until.ts';

const NOTHING: DoubtCount = {
  countedAtMs: 1000,
  operations: new Map(),
  oldestSinceMs: undefined,
  resolutions: [],
};

/** Gauges on a store that counts what the test says. `asked`: how often it was asked. */
function shown(everyMs: number) {
  const metrics = new AllMetrics();
  metrics.declareOperations(['withdraw', 'other', 'undeclared']);
  const lines: { reason?: string }[] = [];
  const emit = emitTo({ doubts_uncounted: (told) => lines.push(told) });
  const store = { count: NOTHING as DoubtCount | Error, asked: 0 };
  const countDoubts = async () => {
    store.asked++;
    if (store.count instanceof Error) throw store.count;
    return store.count;
  };
  const gauges = new DoubtGauges({ store: { countDoubts }, metrics, emit, clock: systemClock, everyMs });
  onTestFinished(() => gauges.close());
  const value = async (name: string, labels?: Record<string, string>) =>
    new Scrape(await metrics.text()).value(`oncegate_${name}`, labels);
  return { metrics, gauges, store, lines, value };
}

it('keeps the numbers while the store does not answer, and says so once', async () => {
  const { gauges, store, lines, value } = shown(20);
  store.count = {
    ...NOTHING,
    operations: new Map([['withdraw', { inDoubt: 3, ownerGone: 1 }]]),
    oldestSinceMs: 0,
  };
  gauges.begin();
  const inDoubt = () => value('keys_in_doubt', { operation: 'withdraw' });
  await until(async () => (await inDoubt()) === 3);
  store.count = new Error('the store is away');
  const { asked } = store;
  await until(() => store.asked > asked + 3);
  expect(await inDoubt()).toBe(3);
  expect(await value('keys_owner_gone', { operation: 'withdraw' })).toBe(1);
  expect(await value('doubts_counted_timestamp_seconds')).toBe(1);
  const age = await value('oldest_in_doubt_seconds');
  expect(age).toBeCloseTo(Date.now() / 1000, -1);
  expect(lines.map(({ reason }) => reason)).toEqual(['the store is away']);
  store.count = NOTHING;
  await until(async () => (await inDoubt()) === 0);
  expect(await value('oldest_in_doubt_seconds')).toBe(0);
});

it('adds operations that no configuration names to other', async () => {
  const { gauges, store, value, metrics } = shown(60_000);
  const operations = new Map([['withdraw', { inDoubt: 1, ownerGone: 0 }]]);
  for (let i = 0; i < 500; i++) operations.set(`gone-${i}`, { inDoubt: 2, ownerGone: 1 });
  store.count = { ...NOTHING, operations };
  gauges.begin();
  await until(async () => (await value('keys_in_doubt', { operation: 'other' })) === 1000);
  expect(await value('keys_owner_gone', { operation: 'other' })).toBe(500);
  expect((await metrics.text()).match(/^oncegate_keys_in_doubt\{/gm)).toHaveLength(3);
});

it('shows the store’s numbers of resolutions, also after another store has begun at 0', async () => {
  const { gauges, store, value } = shown(20);
  const withNumber = (number: number): DoubtCount => ({
    ...NOTHING,
    resolutions: [{ as: 'completed', by: 'command_line', number }],
  });
  const number = () => value('resolutions_total', { as: 'completed', by: 'command_line' });
  store.count = withNumber(7);
  gauges.begin();
  await until(async () => (await number()) === 7);
  store.count = withNumber(9);
  await until(async () => (await number()) === 9);
  store.count = withNumber(2);
  await until(async () => (await number()) === 2);
  expect(await value('resolutions_total', { as: 'released', by: 'operator' })).toBe(0);
});

it('counts soon after a resolution, and not for each of many', async () => {
  const { gauges, store } = shown(3000);
  gauges.resolved();
  gauges.begin();
  await until(() => store.asked === 1);
  const endMs = performance.now() + 600;
  while (performance.now() < endMs) {
    gauges.resolved();
    await sleep(5);
  }
  expect(store.asked).toBe(2);
  // The last of them are counted too.
  await until(() => store.asked === 3);
  expect(store.asked).toBe(3);
});

it('counts each resolution once when embedded handlers are closed and made again', async () => {
  const { metrics, store, value } = shown(60_000);
  store.count = { ...NOTHING, resolutions: [{ as: 'completed', by: 'operator', number: 7 }] };
  const countDoubts = async () => {
    store.asked++;
    return store.count;
  };
  const health = async () => ({ ok: true, detail: '', warnings: [] });
  const opened = { store: { countDoubts }, emits: new Set(), health } as unknown as OpenedStore;
  const options = { metrics, clock: systemClock, emit: emitTo({}) };
  for (const times of [1, 2, 3]) {
    const gauges = shareStoreMetrics(opened, options);
    await until(() => store.asked === times);
    await sleep(0);
    expect(await value('resolutions_total', { as: 'completed', by: 'operator' })).toBe(7);
    gauges.close();
  }
});
