import { describe, expect, it } from 'vitest';
import { Slots } from '../../src/backend/slots.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { complete, newCall, openRun, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

const ONE_SLOT = { maxConnections: 1, maxQueued: 10, queueTimeoutMs: 20_000 };

/** An engine with one slot, which a call occupies until `free` is called. */
async function busy(rig: Rig, options: Partial<typeof ONE_SLOT> = {}) {
  const store = await rig.faultyStore();
  const slots = new Slots({ ...ONE_SLOT, ...options }, systemClock);
  const { engine, events } = rig.engine(store, { slots });
  const { run, end } = openRun();
  const occupant = engine.handle(newCall(run));
  await until(() => engine.executing === 1);
  expect([slots.inUse, slots.queued]).toEqual([1, 0]);
  store.asked.start = 0;
  const free = async () => {
    end();
    await occupant;
  };
  return { store, slots, engine, events, free };
}

describe.concurrent('while no slot is free', () => {
  it('a new key queues, and is not started before it has a slot', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig);
    const call = newCall();
    const queued = engine.handle(call);
    await until(() => slots.queued === 1);
    expect(store.asked).toMatchObject({ start: 0, peek: 1 });
    expect(await store.get(call.scope)).toBeUndefined();
    await free();
    expect(await queued).toMatchObject({ kind: 'executed', stored: true });
    expect([slots.inUse, slots.queued, store.asked.start]).toEqual([0, 0, 1]);
  });

  it('and the queue is full, a new key is answered overloaded, and nothing is stored', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig, { maxQueued: 1 });
    const queued = engine.handle(newCall());
    await until(() => slots.queued === 1);
    const call = newCall();
    expect(await engine.handle(call)).toEqual({ kind: 'overloaded' });
    expect(store.asked.start).toBe(0);
    expect(await store.get(call.scope)).toBeUndefined();
    await free();
    expect(await queued).toMatchObject({ kind: 'executed' });
    expect(await engine.handle(retryOf(call))).toMatchObject({ kind: 'executed', stored: true });
  });

  it('a key that queued too long is answered overloaded, nothing is stored, and its place is free', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig, { queueTimeoutMs: 100, maxQueued: 1 });
    const call = newCall();
    const startedMs = performance.now();
    expect(await engine.handle(call)).toEqual({ kind: 'overloaded' });
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(99);
    expect([slots.queued, call.counted.runs, store.asked.start]).toEqual([0, 0, 0]);
    expect(await store.get(call.scope)).toBeUndefined();
    await free();
    expect(slots.inUse).toBe(0);
  });

  it('400 requests that leave the queue neither run nor keep a slot', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig, { maxQueued: 400 });
    const leaving = new AbortController();
    const calls = Array.from({ length: 400 }, () => newCall(undefined, { gone: leaving.signal }));
    const queued = calls.map((call) => engine.handle(call));
    await until(() => slots.queued === 400);
    leaving.abort();
    expect(new Set((await Promise.all(queued)).map(({ kind }) => kind))).toEqual(new Set(['overloaded']));
    expect(slots.queued).toBe(0);
    await free();
    expect([slots.inUse, store.asked.start]).toEqual([0, 0]);
    for (const { counted } of calls) expect(counted.runs).toBe(0);
  });

  it('replays, conflicts, keys in doubt and duplicates are answered from a read', async () => {
    await using rig = new Rig();
    const elsewhere = rig.engine(await rig.store()).engine;
    const [completed, doubtful] = [newCall(), newCall(unknown)];
    await elsewhere.handle(completed);
    await elsewhere.handle(doubtful);
    const { run, end } = openRun();
    const running = newCall(run);
    const first = elsewhere.handle(running);
    await until(() => elsewhere.executing === 1);

    const { store, slots, engine, free } = await busy(rig, { maxQueued: 0 });
    const { fingerprint } = otherOf(newRequest());
    expect(await engine.handle(retryOf(completed))).toEqual(replayFor(completed));
    expect(await engine.handle({ ...retryOf(completed), fingerprint })).toEqual({ kind: 'mismatch' });
    expect(await engine.handle(retryOf(doubtful))).toMatchObject({ kind: 'in_doubt' });
    expect(await engine.handle(retryOf(running))).toEqual({ kind: 'in_flight' });
    const waiting = engine.handle(retryOf(running, { waitMs: 20_000 }));
    await until(() => engine.waiting === 1);
    end();
    await first;
    expect(await waiting).toEqual(replayFor(running));
    expect([store.asked.start, slots.queued]).toEqual([0, 0]);
    await free();
  });

  it('duplicates of a queued key wait for it, and one that may not wait is in flight', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig);
    const call = newCall();
    const queued = engine.handle(call);
    await until(() => slots.queued === 1);
    const duplicates = Array.from({ length: 5 }, () => engine.handle(retryOf(call, { waitMs: 20_000 })));
    await until(() => engine.waiting === 5);
    expect(await engine.handle(retryOf(call))).toEqual({ kind: 'in_flight' });
    expect([slots.queued, store.asked.peek]).toEqual([1, 1]);
    await free();
    expect(await queued).toMatchObject({ kind: 'executed' });
    for (const result of await Promise.all(duplicates)) expect(result).toMatchObject({ kind: 'replayed' });
    expect(store.asked.start).toBe(1);
  });

  it('a duplicate takes over the place in the queue when the first request gives up', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig);
    const leaving = new AbortController();
    const first = newCall(undefined, { gone: leaving.signal });
    const queued = engine.handle(first);
    await until(() => slots.queued === 1);
    const behind = newCall(complete('behind'));
    const order: string[] = [];
    const other = engine.handle(behind).then(() => order.push('another key'));
    await until(() => slots.queued === 2);
    const duplicate = retryOf(first, { waitMs: 20_000, gone: new AbortController().signal });
    const next = engine.handle(duplicate).then((result) => {
      order.push('the duplicate');
      return result;
    });
    await until(() => engine.waiting === 1);
    leaving.abort();
    expect(await queued).toEqual({ kind: 'overloaded' });
    expect(slots.queued).toBe(2);
    await free();
    expect(await next).toMatchObject({ kind: 'executed' });
    await other;
    expect(order).toEqual(['the duplicate', 'another key']);
    expect([first.counted.runs, duplicate.counted.runs, store.asked.start]).toEqual([0, 1, 2]);
    expect(slots.inUse).toBe(0);
  });
});
