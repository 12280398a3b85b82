import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { WriteGate } from '../../src/idempotency/write-gate.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { StoreUnavailable } from '../../src/store/contract.ts';
import { newCall, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { newRequest, otherOf } from '../support/requests.ts';
import { until } from '../support/until.ts';

/** Starts fail until the engine notices that the store refuses writes. */
async function refusing(rig: Rig, options = {}) {
  const store = await rig.faultyStore();
  const { engine, slots } = rig.engine(store, options);
  const [completed, doubtful] = [newCall(), newCall(unknown)];
  for (const call of [completed, doubtful]) await engine.handle(call);
  store.fail('start', 'before');
  for (let failures = 0; failures < 8; failures++) {
    expect(engine.storeRefuses).toBe(false);
    expect(await engine.handle(newCall())).toMatchObject({ kind: 'store_unavailable' });
  }
  expect(engine.storeRefuses).toBe(true);
  return { store, engine, slots, completed, doubtful };
}

describe.concurrent('while the store refuses writes', () => {
  it('keys that it knows are answered from reads, and others are refused without a start', async () => {
    await using rig = new Rig();
    const { store, engine, slots, completed, doubtful } = await refusing(rig);
    const { fingerprint } = otherOf(newRequest());
    const starts = store.asked.start;
    const startedMs = performance.now();
    const answerTo = async (call: Parameters<typeof engine.handle>[0]) => {
      for (;;) {
        const { start } = store.asked;
        const result = await engine.handle(call);
        if (store.asked.start === start) return result;
        // The gate let this request try a start, which may have been written.
        expect(result).toMatchObject({ kind: 'store_unavailable' });
      }
    };
    for (let asked = 0; asked < 40; asked++) {
      expect(await answerTo(retryOf(completed))).toEqual(replayFor(completed));
      expect(await answerTo(retryOf(doubtful))).toMatchObject({ kind: 'in_doubt' });
      expect(await answerTo({ ...retryOf(completed), fingerprint })).toEqual({ kind: 'mismatch' });
      expect(await engine.handle(newCall())).toMatchObject({ kind: 'store_unavailable' });
    }
    // The gate lets one request in 100 ms try a start.
    expect(store.asked.start - starts).toBeLessThanOrEqual((performance.now() - startedMs) / 100 + 1);
    expect(slots.inUse).toBe(0);
  });

  it('and reads too, every key is refused, and nothing runs', async () => {
    await using rig = new Rig();
    const { store, engine, completed } = await refusing(rig);
    store.fail('peek', 'before');
    expect(await engine.handle(retryOf(completed))).toEqual({
      kind: 'store_unavailable',
      cause: expect.any(StoreUnavailable),
    });
  });

  it('a retry of a dead owner’s key under inDoubt: retry sends the store only a few commands', async () => {
    await using rig = new Rig();
    const { store, engine } = await refusing(rig);
    const dying = await rig.store({ leaseMs: 100 });
    const call = newCall(undefined, { inDoubt: 'retry' });
    await dying.start({ ...newRequest(), ...call });
    await until(async () => (await store.peek(call)).kind === 'in_doubt');
    // In this test only starts fail. The counts of the other commands show how often the engine asks the store.
    const { restart, peek } = store.asked;
    // Another request tries a start first, so that the gate does not admit this one.
    await until(async () => {
      const { start } = store.asked;
      await engine.handle(newCall());
      return store.asked.start > start;
    });
    await engine.handle(call);
    // A restart is no start: the store has taken it.
    expect(call.counted.runs).toBe(1);
    expect(store.asked.restart - restart).toBeLessThanOrEqual(2);
    expect(store.asked.peek - peek).toBeLessThanOrEqual(20);
  });

  it('service resumes within about 100 ms after the store is back', async () => {
    await using rig = new Rig();
    const { store, engine } = await refusing(rig);
    store.heal();
    const backMs = performance.now();
    await until(async () => {
      const result = await engine.handle(newCall());
      return result.kind === 'executed' || undefined;
    });
    expect(performance.now() - backMs).toBeLessThan(500);
    expect(engine.storeRefuses).toBe(false);
    for (let i = 0; i < 20; i++) expect(await engine.handle(newCall())).toMatchObject({ kind: 'executed' });
  });

  it('a few failures between successes do not refuse anything', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    for (let i = 0; i < 12; i++) {
      store.fail('start', 'before', 2);
      for (let failures = 0; failures < 2; failures++)
        expect(await engine.handle(newCall())).toMatchObject({ kind: 'store_unavailable' });
      expect(await engine.handle(newCall())).toMatchObject({ kind: 'executed' });
    }
    expect(engine.storeRefuses).toBe(false);
  });
});

describe.concurrent('a store that freezes', () => {
  it('does not hold the slots: all but one of four are free while starts have no answer', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store, { maxConnections: 4 });
    const { start } = store;
    const timeoutMs = 500;
    let frozen = true;
    store.start = async (execution) => {
      if (!frozen) return await start(execution);
      await sleep(timeoutMs);
      throw new StoreUnavailable('frozen');
    };
    while (!engine.storeRefuses) await Promise.all([1, 2, 3, 4].map(() => engine.handle(newCall())));
    await until(() => slots.inUse === 0);
    const merchants: Promise<unknown>[] = [];
    let most = 0;
    for (const endMs = performance.now() + 2 * timeoutMs; performance.now() < endMs; ) {
      merchants.push(engine.handle(newCall()));
      most = Math.max(most, slots.inUse);
      await sleep(10);
    }
    expect(most).toBe(1);
    frozen = false;
    await Promise.all(merchants);
  });
});

describe('the gate', () => {
  const clock = { ...systemClock, nowMs: 0, monotonicMs: () => clock.nowMs, wallMs: () => 0 };

  it('shuts after eight failures in a row, and opens with a success', () => {
    const gate = new WriteGate(clock);
    for (let failures = 0; failures < 7; failures++) gate.failed();
    expect([gate.isShut, gate.admits()]).toEqual([false, true]);
    gate.failed();
    expect([gate.isShut, gate.admits()]).toEqual([true, false]);
    gate.succeeded();
    expect([gate.isShut, gate.admits()]).toEqual([false, true]);
  });

  it('admits one request every 100 ms while it is shut', () => {
    const gate = new WriteGate(clock);
    for (let failures = 0; failures < 8; failures++) gate.failed();
    clock.nowMs += 99;
    expect(gate.admits()).toBe(false);
    clock.nowMs += 1;
    expect([gate.admits(), gate.admits()]).toEqual([true, false]);
    gate.failed();
    expect(gate.admits()).toBe(false);
    clock.nowMs += 100;
    expect([gate.admits(), gate.admits()]).toEqual([true, false]);
  });
});
