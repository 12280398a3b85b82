import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { complete, newCall, notSent, openRun, Rig, responseOf, retryOf, unknown } from '../support/engine.ts';
import { until } from '../support/until.ts';

async function faulty(rig: Rig, options: { leaseMs?: number; settleRetryMs?: number } = {}) {
  const { leaseMs } = options;
  const store = await rig.faultyStore(leaseMs ? { leaseMs } : {});
  return { store, ...rig.engine(store, options) };
}

/** A call whose claim or begin will not be answered, nor the first three releases be written. */
async function unanswered(rig: Rig, write: 'claim' | 'begin') {
  const { store, engine } = await faulty(rig);
  store.fail(write, 'after', 1);
  store.fail('release', 'before', 3);
  return { store, engine, call: newCall() };
}

describe.concurrent('when the store fails before anything was sent', () => {
  it.each([
    ['claim', 'before'],
    ['claim', 'after'],
    ['begin', 'before'],
    ['begin', 'after'],
  ] as const)(
    'at the %s, %s it was done, nothing runs, and the key is soon free again',
    async (write, when) => {
      await using rig = new Rig();
      const { store, engine } = await faulty(rig);
      store.fail(write, when, 1);
      const call = newCall();
      const result = await engine.handle(call);
      expect(result).toEqual({ kind: 'store_unavailable', cause: expect.any(StoreUnavailable) });
      expect(call.counted.runs).toBe(0);
      // The lease is a minute: the claim was taken back, not taken over.
      await until(async () => (await store.get(call.scope)) === undefined);
      const retry = retryOf(call);
      expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', decision: 'settle' });
      expect(retry.counted.runs).toBe(1);
      expect(call.counted.runs).toBe(0);
    },
  );

  it.each(['claim', 'begin'] as const)(
    'at the %s, it is taken back as soon as the store answers again',
    async (write) => {
      await using rig = new Rig();
      const { store, engine, call } = await unanswered(rig, write);
      expect(await engine.handle(call)).toMatchObject({ kind: 'store_unavailable' });
      expect(await store.get(call.scope)).toMatchObject({
        state: write === 'claim' ? 'claimed' : 'executing',
      });
      expect(await engine.handle(retryOf(call))).toEqual({ kind: 'in_flight' });
      await until(async () => (await store.get(call.scope)) === undefined);
      expect(store.asked.release).toBe(4);
      expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed' });
    },
  );

  it('at the release, the key is free as soon as the store answers again', async () => {
    await using rig = new Rig();
    const { store, engine } = await faulty(rig);
    store.fail('release', 'before', 3);
    const call = newCall(notSent);
    expect(await engine.handle(call)).toEqual({ kind: 'executed', exchange: notSent, decision: 'release' });
    await until(async () => (await store.get(call.scope)) === undefined);
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'settle' });
  });
});

describe.concurrent('when the store fails after the backend has answered', () => {
  it.each(['before', 'after'] as const)(
    'for a moment, %s it was done, the answer waits for the store',
    async (when) => {
      await using rig = new Rig();
      const { store, engine, told } = await faulty(rig, { settleRetryMs: 20_000 });
      store.fail('settle', when, 2);
      const call = newCall();
      expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'settle' });
      expect(await store.get(call.scope)).toMatchObject({ state: 'settled' });
      expect(await engine.handle(retryOf(call))).toEqual({ kind: 'replayed', response: responseOf() });
      expect(store.asked.settle).toBe(3);
      expect(told).toEqual([]);
    },
  );

  it('for long, the merchant gets the answer, no retry runs, and it is settled when the store is back', async () => {
    await using rig = new Rig();
    const [leaseMs, settleRetryMs] = [400, 300];
    const { store, engine, told } = await faulty(rig, { leaseMs, settleRetryMs });
    store.fail('settle', 'before');
    const call = newCall();
    const startedMs = performance.now();
    expect(await engine.handle(call)).toEqual({ kind: 'executed', exchange: complete(), decision: 'settle' });
    const tookMs = performance.now() - startedMs;
    expect(tookMs).toBeGreaterThanOrEqual(settleRetryMs - 1);
    expect(tookMs).toBeLessThan(settleRetryMs + 1500);
    expect(told).toEqual([['settleLate']]);

    const retry = retryOf(call);
    await until(async () => {
      const { kind } = await engine.handle(retry);
      expect(['in_flight', 'in_doubt']).toContain(kind);
      return kind === 'in_doubt';
    });
    store.heal();
    await until(async () => (await engine.handle(retry)).kind === 'replayed');
    expect(await engine.handle(retry)).toEqual({ kind: 'replayed', response: responseOf() });
    expect(retry.counted.runs).toBe(0);
    expect(told).toEqual([['settleLate']]);
  });

  it('at the mark of doubt, the key is in doubt all the same once the lease has lapsed', async () => {
    await using rig = new Rig();
    const leaseMs = 200;
    const { store, engine } = await faulty(rig, { leaseMs });
    store.fail('markInDoubt', 'before');
    const call = newCall(unknown);
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
    const retry = retryOf(call, { waitMs: 20_000 });
    expect(await engine.handle(retry)).toMatchObject({ kind: 'in_doubt' });
    expect(retry.counted.runs).toBe(0);
  });

  it('at every renewal, the key is in doubt until the run has ended, and settled then', async () => {
    await using rig = new Rig();
    const leaseMs = 150;
    const { store, engine } = await faulty(rig, { leaseMs });
    store.fail('renew', 'before');
    const { run, end } = openRun();
    const call = newCall(run);
    const first = engine.handle(call);
    await until(() => engine.executing === 1);
    const retry = retryOf(call, { waitMs: 20_000 });
    expect(await engine.handle(retry)).toMatchObject({ kind: 'in_doubt' });
    end();
    expect(await first).toMatchObject({ kind: 'executed', decision: 'settle' });
    expect(await engine.handle(retry)).toEqual({ kind: 'replayed', response: responseOf() });
    expect(retry.counted.runs).toBe(0);
  });

  it('by answering a settlement slowly, nobody is called stale', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    // It renews every 30 ms, while the answer is under way.
    const { engine, told } = rig.engine(store, { leaseMs: 90 });
    store.delay('settle', 300, 'answered late');
    const call = newCall();
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'settle' });
    expect(told).toEqual([]);
  });

  it('and close has no time left, what could not be settled is given up', async () => {
    await using rig = new Rig();
    const { store, engine, told } = await faulty(rig, { settleRetryMs: 50 });
    store.fail('settle', 'before');
    const call = newCall();
    await engine.handle(call);
    const startedMs = performance.now();
    await engine.close(200);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    const { settle } = store.asked;
    store.heal();
    expect(await store.get(call.scope)).toMatchObject({ state: 'executing' });
    expect(store.asked.settle).toBe(settle);
    expect(told).toEqual([['settleLate'], ['settleGivenUp']]);
  });

  it('and is back before close has run out of time, it is settled', async () => {
    await using rig = new Rig();
    const { store, engine, told } = await faulty(rig, { settleRetryMs: 50 });
    store.fail('settle', 'before');
    const call = newCall();
    await engine.handle(call);
    const closing = engine.close(20_000);
    store.heal();
    await closing;
    expect(await store.get(call.scope)).toMatchObject({ state: 'settled' });
    expect(told).not.toContainEqual(['settleGivenUp']);
  });
});

describe.concurrent('when the store fails before anything was sent, and the engine is closed', () => {
  it.each(['claim', 'begin'] as const)(
    'at the %s, close waits for the key to be taken back',
    async (write) => {
      await using rig = new Rig();
      const { store, engine, call } = await unanswered(rig, write);
      const first = engine.handle(call);
      await engine.close(20_000);
      expect(store.asked.release).toBe(4);
      expect(await store.get(call.scope)).toBeUndefined();
      expect([(await first).kind, call.counted.runs]).toEqual(['store_unavailable', 0]);
    },
  );
});
