import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { StoreUnavailable } from '../../src/store/contract.ts';
import {
  complete,
  executing,
  newCall,
  notSent,
  Rig,
  replayFor,
  retryOf,
  unknown,
} from '../support/engine.ts';
import { paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

async function faulty(rig: Rig, options: { leaseMs?: number; completeRetryMs?: number } = {}) {
  const { leaseMs } = options;
  const store = await rig.faultyStore(leaseMs ? { leaseMs } : {});
  return { store, ...rig.engine(store, options) };
}

/** A call whose start will not be answered, and whose first three attempts to take it back will not be written. */
async function unanswered(rig: Rig) {
  const { store, engine } = await faulty(rig);
  store.fail('start', 'after', 1);
  store.fail('takeBack', 'before', 3);
  return { store, engine, call: newCall() };
}

describe.concurrent('when the store fails before anything was sent', () => {
  it.each(['before', 'after'] as const)(
    'at the start, %s the write, nothing runs, and the key is soon free again',
    async (when) => {
      await using rig = new Rig();
      const { store, engine } = await faulty(rig);
      store.fail('start', when, 1);
      const call = newCall();
      const result = await engine.handle(call);
      expect(result).toEqual({ kind: 'store_unavailable', cause: expect.any(StoreUnavailable) });
      expect(call.counted.runs).toBe(0);
      // The lease is a minute, so only taking the start back can have freed the key this soon.
      await until(async () => (await store.get(call.scope)) === undefined);
      const retry = retryOf(call);
      expect(await engine.handle(retry)).toMatchObject({ kind: 'executed', decision: 'complete' });
      expect(retry.counted.runs).toBe(1);
      expect(call.counted.runs).toBe(0);
    },
  );

  it('at the start, the start is taken back as soon as the store answers again', async () => {
    await using rig = new Rig();
    const { store, engine, call } = await unanswered(rig);
    expect(await engine.handle(call)).toMatchObject({ kind: 'store_unavailable' });
    expect(await store.get(call.scope)).toMatchObject({ state: 'executing' });
    expect(await engine.handle(retryOf(call))).toEqual({ kind: 'in_flight' });
    await until(async () => (await store.get(call.scope)) === undefined);
    expect(store.asked.takeBack).toBe(4);
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed' });
  });

  it('and reports that it wrote nothing, the engine takes nothing back, and reads the record', async () => {
    await using rig = new Rig();
    const { store, engine } = await faulty(rig);
    const [known, fresh] = [newCall(), newCall()];
    await engine.handle(known);
    store.start = async () => {
      throw new StoreUnavailable('the disk is nearly full', { maybeWritten: false });
    };
    expect(await engine.handle(retryOf(known))).toEqual(replayFor(known));
    expect(await engine.handle(fresh)).toMatchObject({ kind: 'store_unavailable' });
    expect([engine.pendingWrites, store.asked.takeBack, fresh.counted.runs]).toEqual([0, 0, 0]);
  });

  it('at the release, the key is free as soon as the store answers again', async () => {
    await using rig = new Rig();
    const { store, engine } = await faulty(rig);
    store.fail('release', 'before', 3);
    const call = newCall(notSent);
    expect(await engine.handle(call)).toEqual({
      ...{ kind: 'executed', exchange: notSent, decision: 'release', stored: false },
    });
    await until(async () => (await store.get(call.scope)) === undefined);
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', decision: 'complete' });
  });
});

describe.concurrent('when the store fails after the request was sent', () => {
  it.each(['before', 'after'] as const)(
    'for a moment, %s the complete is written, the response waits for the store',
    async (when) => {
      await using rig = new Rig();
      const { store, engine, events } = await faulty(rig, { completeRetryMs: 20_000 });
      store.fail('complete', when, 2);
      const call = newCall();
      expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'complete' });
      expect(await store.get(call.scope)).toMatchObject({ state: 'completed' });
      expect(await engine.handle(retryOf(call))).toEqual(replayFor(call));
      expect(store.asked.complete).toBe(3);
      expect(events).toEqual([]);
    },
  );

  it('for long, the merchant gets the response, no retry runs, and the key is completed when the store is back', async () => {
    await using rig = new Rig();
    const [leaseMs, completeRetryMs] = [2000, 300];
    const { store, engine, events } = await faulty(rig, { leaseMs, completeRetryMs });
    store.fail('complete', 'before');
    const call = newCall();
    const startedMs = performance.now();
    expect(await engine.handle(call)).toEqual({
      ...{ kind: 'executed', exchange: complete(), decision: 'complete', stored: false },
    });
    const tookMs = performance.now() - startedMs;
    expect(tookMs).toBeGreaterThanOrEqual(completeRetryMs - 1);
    expect(tookMs).toBeLessThan(completeRetryMs + 1500);
    expect(events).toEqual([['completeLate']]);

    // The lease is renewed meanwhile: a retry, here or elsewhere, is in flight for longer than a lease.
    const elsewhere = rig.engine(await rig.store({ leaseMs }), { leaseMs }).engine;
    const retry = retryOf(call);
    const answeredMs = performance.now();
    while (performance.now() - answeredMs < 1.3 * leaseMs) {
      expect(await engine.handle(retry)).toEqual({ kind: 'in_flight' });
      expect(await elsewhere.handle(retry)).toEqual({ kind: 'in_flight' });
      await sleep(50);
    }
    store.heal();
    await until(async () => (await engine.handle(retry)).kind === 'replayed');
    expect(await engine.handle(retry)).toEqual(replayFor(call));
    expect(retry.counted.runs).toBe(0);
    expect(events).toEqual([['completeLate']]);
  });

  it('for long, and renewals fail too, retries get in_doubt until the key is completed', async () => {
    await using rig = new Rig();
    const leaseMs = 300;
    const { store, engine, events } = await faulty(rig, { leaseMs, completeRetryMs: 50 });
    store.fail('complete', 'before');
    const call = newCall();
    expect(await engine.handle(call)).toMatchObject({ decision: 'complete', stored: false });
    store.fail('renew', 'before');
    const retry = retryOf(call);
    await until(async () => (await engine.handle(retry)).kind === 'in_doubt');
    store.heal();
    await until(async () => (await engine.handle(retry)).kind === 'replayed');
    expect(retry.counted.runs).toBe(0);
    expect(events).toContainEqual(['completeLate']);
  });

  it('and an operator has completed the key meanwhile, the late result is refused and reported', async () => {
    await using rig = new Rig();
    const { store, engine, events } = await faulty(rig, { completeRetryMs: 20_000 });
    store.fail('complete', 'before');
    const call = newCall();
    const result = engine.handle(call);
    await until(() => store.asked.complete === 1);
    const record = await store.get(call.scope);
    if (!record) throw new Error('there is no record');
    const owner = { scope: call.scope, token: record.token };
    await store.markInDoubt(owner);
    const note = { by: 'ada', reason: 'the books show it' };
    const completion = paid('by hand');
    expect(await store.resolve(call.scope, record.token, { as: 'completed', completion }, note)).toBe('ok');
    store.heal();
    expect(await result).toEqual(replayFor(call, 'by hand'));
    await until(() => events.some(([event]) => event === 'lateAnswer'));
    expect(events[0]).toEqual(['stale', 'complete']);
  });

  it('at markInDoubt, the key is in doubt once the lease has lapsed', async () => {
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

  it('at every renewal, other gateways answer in_doubt until the owner completes the key', async () => {
    await using rig = new Rig();
    const leaseMs = 150;
    const { store, engine } = await faulty(rig, { leaseMs });
    store.fail('renew', 'before');
    const { call, first, end } = await executing(engine);
    const retry = retryOf(call, { waitMs: 20_000 });
    const elsewhere = rig.engine(await rig.store({ leaseMs }), { leaseMs }).engine;
    expect(await elsewhere.handle(retry)).toMatchObject({ kind: 'in_doubt' });
    end();
    expect(await first).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(await engine.handle(retry)).toEqual(replayFor(call));
    expect(retry.counted.runs).toBe(0);
  });

  it('by answering a complete late, renewals meanwhile report no stale write', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    // The owner renews every 30 ms while it waits for the answer.
    const { engine, events } = rig.engine(store, { leaseMs: 90 });
    store.delay('complete', 300, 'answered late');
    const call = newCall();
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(events).toEqual([]);
  });

  it('and close runs out of time, the complete is given up', async () => {
    await using rig = new Rig();
    const { store, engine, events } = await faulty(rig, { completeRetryMs: 50 });
    store.fail('complete', 'before');
    const call = newCall();
    await engine.handle(call);
    const startedMs = performance.now();
    await engine.close(200);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    const completes = store.asked.complete;
    store.heal();
    expect(await store.get(call.scope)).toMatchObject({ state: 'executing' });
    expect(store.asked.complete).toBe(completes);
    expect(events).toEqual([['completeLate'], ['completeGivenUp']]);
  });

  it('and recovers before close runs out of time, the key is completed', async () => {
    await using rig = new Rig();
    const { store, engine, events } = await faulty(rig, { completeRetryMs: 50 });
    store.fail('complete', 'before');
    const call = newCall();
    await engine.handle(call);
    const closing = engine.close(20_000);
    store.heal();
    await closing;
    expect(await store.get(call.scope)).toMatchObject({ state: 'completed' });
    expect(events).not.toContainEqual(['completeGivenUp']);
  });
});

describe.concurrent('when an operator resolves a key whose request still runs', () => {
  it('as a tombstone, the owner answers with the tombstone', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const call = newCall(async () => {
      const record = await store.get(call.scope);
      if (!record) throw new Error('there is no record');
      await store.markInDoubt({ scope: call.scope, token: record.token });
      const completion = { kind: 'tombstone', status: 0 } as const;
      const note = { by: 'ada', reason: 'the books show it' };
      await store.resolve(call.scope, record.token, { as: 'completed', completion }, note);
      return complete();
    });
    expect(await engine.handle(call)).toEqual({ kind: 'tombstone', requestId: call.requestId });
  });

  it('as not executed, the result is still stored, because the backend has executed', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const call = newCall(async () => {
      const record = await store.get(call.scope);
      if (!record) throw new Error('there is no record');
      await store.markInDoubt({ scope: call.scope, token: record.token });
      const note = { by: 'ada', reason: 'a mistake' };
      await store.resolve(call.scope, record.token, { as: 'released' }, note);
      return complete();
    });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', stored: true });
    expect(await engine.handle(retryOf(call))).toEqual(replayFor(call));
  });
});

it('when a start had no answer, closing waits for the key to be taken back', async () => {
  await using rig = new Rig();
  const { store, engine, call } = await unanswered(rig);
  const first = engine.handle(call);
  await until(() => store.asked.start === 1);
  await engine.close(20_000);
  expect(store.asked.takeBack).toBe(4);
  expect(await store.get(call.scope)).toBeUndefined();
  expect([(await first).kind, call.counted.runs]).toEqual(['store_unavailable', 0]);
});
