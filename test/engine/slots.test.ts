import { once } from 'node:events';
import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { Slots } from '../../src/backend/slots.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { complete, executing, newCall, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

const ONE_SLOT = { maxConnections: 1, maxQueued: 10, queueTimeoutMs: 20_000 };

/** An engine with one slot, which a call occupies until `free` is called. */
async function busy(rig: Rig, options: Partial<typeof ONE_SLOT> = {}) {
  const store = await rig.faultyStore();
  const slots = new Slots({ ...ONE_SLOT, ...options }, systemClock);
  const { engine } = rig.engine(store, { slots });
  const { first, end } = await executing(engine);
  expect([slots.inUse, slots.queued]).toEqual([1, 0]);
  store.asked.start = 0;
  const free = async () => {
    end();
    await first;
  };
  return { store, slots, engine, free };
}

describe.concurrent('while no slot is free', () => {
  it('a new key queues, and is not started before it has a slot', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig);
    const call = newCall();
    const queued = engine.handle(call);
    await until(() => slots.queued === 1);
    expect(store.asked).toMatchObject({ start: 0, peek: 1 });
    expect(await store.get(call.recordId)).toBeUndefined();
    await free();
    expect(await queued).toMatchObject({ kind: 'executed', stored: true });
    expect([slots.inUse, slots.queued, store.asked.start]).toEqual([0, 0, 1]);
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
    const { call: running, first, end } = await executing(elsewhere);
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

  it('a duplicate takes over the queue ticket when the first request gives up', async () => {
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

  it('a key in doubt is sent again in its turn', async () => {
    await using rig = new Rig();
    const { store, slots, engine, free } = await busy(rig);
    const call = newCall(unknown, { inDoubt: 'retry' });
    await rig.engine(store).engine.handle(call);
    const order: string[] = [];
    const retry = retryOf(call);
    const again = engine.handle(retry).then(() => order.push('the key in doubt'));
    await until(() => slots.queued === 1);
    const other = engine.handle(newCall()).then(() => order.push('another key'));
    await until(() => slots.queued === 2);
    await free();
    await Promise.all([again, other]);
    expect(order).toEqual(['the key in doubt', 'another key']);
    expect([retry.counted.runs, slots.inUse]).toEqual([1, 0]);
  });
});

describe.concurrent('the slot of a request', () => {
  it('is back before the result is completed', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store);
    const goOn = store.hold('complete');
    const { first, end } = await executing(engine);
    expect(slots.inUse).toBe(1);
    end();
    await until(() => store.asked.complete === 1);
    expect(slots.inUse).toBe(0);
    goOn();
    expect(await first).toMatchObject({ stored: true });
  });

  it.each(['has been read', 'is destroyed'])(
    'of an oversize response is back when its stream %s',
    async (how) => {
      await using rig = new Rig();
      const store = await rig.store();
      const { engine, slots } = rig.engine(store);
      const body = new Readable({ read() {} });
      body.push('large');
      const call = newCall({ kind: 'oversize', status: 201, headers: [], body });
      expect(await engine.handle(call)).toMatchObject({ kind: 'executed', stored: true });
      expect(await store.get(call.recordId)).toMatchObject({ state: 'completed' });
      expect(slots.inUse).toBe(1);
      const closed = once(body, 'close');
      if (how === 'is destroyed') body.destroy();
      else {
        body.resume();
        body.push(null);
      }
      await closed;
      expect(slots.inUse).toBe(0);
    },
  );

  it('of an oversize response is back if its stream broke before the engine saw it', async () => {
    await using rig = new Rig();
    const { engine, slots } = rig.engine(await rig.store());
    const call = newCall(async () => {
      const body = new Readable({ read() {} });
      body.destroy();
      await once(body, 'close');
      return { kind: 'oversize', status: 201, headers: [], body };
    });
    await engine.handle(call);
    expect(slots.inUse).toBe(0);
  });
});
