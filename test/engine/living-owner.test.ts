import { expect, it, onTestFinished } from 'vitest';
import { Lookups } from '../../src/doubts/lookups.ts';
import { bring } from '../contract/states.ts';
import { Rig } from '../support/engine.ts';
import { movableClock } from '../support/movable-clock.ts';
import { duplicateOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

/*
 * A store that was away for longer than a lease: the next request finds the owner dead, and the owner then takes its lease again. A
 * handler of an embedded gateway can run, and pay, for as long as it likes.
 */
it('a doubt counts from when its owner is dead, because a handler may pay as long as it runs', async () => {
  await using rig = new Rig();
  const [releaseAfterMs, clock] = [60_000, movableClock()];
  const store = await rig.store({ leaseMs: 200 });
  const lookup = {
    ...{ firstAfterMs: 3_600_000, maxPauseMs: 3_600_000, releaseAfterMs },
    ask: async () => ({ kind: 'not_executed', said: 'GET answered 404' }) as const,
  };
  const lookups = new Lookups(store, 'gateway', new Map([['withdraw', lookup]]), () => {}, clock);
  onTestFinished(() => lookups.close());
  const handler = await bring(store, 'executing');
  await until(async () => (await store.peek(duplicateOf(handler))).kind === 'in_doubt');
  expect(await store.renew(handler)).toBe('lost');
  expect(await lookups.lookUpNow(handler)).toBe(false);
  clock.pass(releaseAfterMs);
  await store.renew(handler);
  expect(await lookups.lookUpNow(handler)).toBe(false);
  // The handler has paid right now, and its process ends.
  await until(async () => !(await rig.register.read(handler.recordId))?.isLeased);
  expect(await lookups.lookUpNow(handler)).toBe(false);
  expect(await store.get(handler.recordId)).toMatchObject({ state: 'in_doubt' });
  clock.pass(releaseAfterMs);
  expect(await lookups.lookUpNow(handler)).toBe(true);
  expect(await store.get(handler.recordId)).toBeUndefined();
});
