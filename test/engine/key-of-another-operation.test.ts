import { expect, it, onTestFinished } from 'vitest';
import { type Lookup, Lookups } from '../../src/doubts/lookups.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { bring } from '../contract/states.ts';
import { Rig } from '../support/engine.ts';
import { newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

/** A lookup whose backend answers this, and counts how often it was asked. */
function lookupThat(says: 'executed' | 'not_executed') {
  const counted = { asked: 0 };
  const lookup: Lookup = {
    ...{ firstAfterMs: 10, maxPauseMs: 10, releaseAfterMs: 0 },
    ask: async () => {
      counted.asked++;
      if (says === 'not_executed') return { kind: says, said: 'GET answered 404' };
      return { kind: says, said: 'GET answered 200', completion: paid('looked up') };
    },
  };
  return { lookup, counted };
}

/**
 * A key that this process tracks as a withdraw in doubt. Another gateway has released it, and its merchant has used it for a
 * checkout, which is in doubt too.
 */
async function reused(rig: Rig, lookups: Record<string, Lookup>) {
  const store = await rig.store();
  const tracking = new Lookups(store, 'gateway', new Map(Object.entries(lookups)), () => {}, systemClock);
  onTestFinished(() => tracking.close());
  const withdraw = await bring(store, 'in_doubt');
  tracking.lookUpLater(withdraw, withdraw.token);
  const note = { by: 'lookup', reason: 'GET answered 404', source: 'lookup' as const };
  expect(await store.resolve(withdraw.recordId, withdraw.token, { as: 'released' }, note)).toBe('ok');
  const { key } = withdraw;
  const checkout = await bring(store, 'in_doubt', newRequest({ key, operation: 'checkout', body: 'other' }));
  return { store, tracking, checkout };
}

it('a key in doubt is not released by the lookup of the operation that had the key before', async () => {
  await using rig = new Rig();
  const withdraw = lookupThat('not_executed');
  const { store, tracking, checkout } = await reused(rig, { withdraw: withdraw.lookup });
  await until(async () => !(await tracking.lookUpNow(checkout)));
  expect(await store.get(checkout.recordId)).toMatchObject({ state: 'in_doubt', token: checkout.token });
  expect(withdraw.counted.asked).toBe(0);
});

it('a key in doubt is looked up as the operation that has it now', async () => {
  await using rig = new Rig();
  const [withdraw, checkout] = [lookupThat('not_executed'), lookupThat('executed')];
  const lookups = { withdraw: withdraw.lookup, checkout: checkout.lookup };
  const { store, tracking, checkout: reusing } = await reused(rig, lookups);
  tracking.lookUpLater(reusing, reusing.token);
  await until(async () => (await store.get(reusing.recordId))?.state !== 'in_doubt');
  expect(await store.get(reusing.recordId)).toMatchObject({ state: 'completed' });
  expect(withdraw.counted.asked).toBe(0);
});
