import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { executing, newCall, notSent, openRun, Rig, retryOf, unknown } from '../support/engine.ts';
import { until } from '../support/until.ts';

describe.concurrent('closing', () => {
  it('waits for running executions', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const { call, first, end } = await executing(engine);
    let closed = false;
    const closing = engine.drain(20_000).then(() => {
      closed = true;
    });
    await sleep(100);
    expect(closed).toBe(false);
    end();
    await closing;
    expect(await store.get(call.scope)).toMatchObject({ state: 'completed' });
    await first;
  });

  it('waits no longer than its time limit', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { first, end } = await executing(engine);
    const startedMs = performance.now();
    await engine.drain(200);
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(199);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    end();
    await first;
  });

  it('waits for the complete of an execution that outlasted the drain', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    store.delay('complete', 500);
    const { run, end } = openRun();
    const call = newCall(run);
    const result = engine.handle(call);
    await until(() => engine.executing === 1);
    await engine.drain(0);
    end();
    await engine.close(20_000);
    expect(await store.get(call.scope)).toMatchObject({ state: 'completed' });
    expect(await result).toMatchObject({ decision: 'complete' });
  });

  it('is over at once if nothing runs', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const startedMs = performance.now();
    await engine.close(20_000);
    expect(performance.now() - startedMs).toBeLessThan(2000);
  });

  it('sends nothing for a call whose start is pending, and frees its key', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store);
    const goOn = store.hold('start');
    const call = newCall();
    const first = engine.handle(call);
    await until(() => store.asked.start === 1);
    const closing = engine.close(20_000);
    goOn();
    await closing;
    expect(await store.get(call.scope)).toBeUndefined();
    expect(await first).toEqual({ kind: 'closing' });
    expect([call.counted.runs, slots.inUse]).toEqual([0, 0]);
  });

  it('stores and sends nothing for a call that is reading its record, or is queued for a slot', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store, { maxConnections: 1 });
    const { first, end } = await executing(engine);
    const queued = newCall();
    const duplicate = retryOf(queued, { waitMs: 60_000 });
    const results = [engine.handle(queued), engine.handle(duplicate)];
    await until(() => slots.queued === 1);
    const goOn = store.hold('peek');
    const reading = newCall();
    results.push(engine.handle(reading));
    await until(() => store.asked.peek === 2);
    const closing = engine.close(20_000);
    goOn();
    expect(await Promise.all(results)).toEqual(results.map(() => ({ kind: 'closing' })));
    expect([slots.queued, store.asked.start]).toEqual([0, 1]);
    for (const { counted, scope } of [queued, duplicate, reading]) {
      expect(counted.runs).toBe(0);
      expect(await store.get(scope)).toBeUndefined();
    }
    end();
    await closing;
    expect(await first).toMatchObject({ stored: true });
    expect(slots.inUse).toBe(0);
  });

  it.each(['release', 'markInDoubt'] as const)('waits for a %s that is under way', async (write) => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    store.delay(write, 300);
    const call = newCall(write === 'release' ? notSent : unknown);
    const first = engine.handle(call);
    await until(() => store.asked[write] === 1);
    await engine.close(20_000);
    const record = await store.get(call.scope);
    expect(record?.state).toBe(write === 'release' ? undefined : 'in_doubt');
    expect(await first).toMatchObject({ kind: 'executed' });
  });

  it('waits for a release that is repeated', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    store.fail('release', 'before', 3);
    const call = newCall(notSent);
    await engine.handle(call);
    expect(engine.pendingWrites).toBe(1);
    await engine.close(20_000);
    expect([engine.pendingWrites, await store.get(call.scope)]).toEqual([0, undefined]);
  });

  it('ends the wait for a lookup', async () => {
    await using rig = new Rig();
    const solver = { lookUpLater() {}, lookUpNow: () => new Promise<boolean>(() => {}) };
    const { engine } = rig.engine(await rig.store(), {}, solver);
    const call = newCall(unknown, { inDoubt: 'lookup' });
    await engine.handle(call);
    let waiting = false;
    solver.lookUpNow = () => {
      waiting = true;
      return new Promise<boolean>(() => {});
    };
    const retried = engine.handle(retryOf(call, { waitMs: 60_000 }));
    await until(() => waiting);
    await engine.close(20_000);
    expect(await retried).toMatchObject({ kind: 'in_doubt' });
  });

  it('does not wait for duplicates of an execution in another process', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const [elsewhere, here] = [rig.engine(store).engine, rig.engine(store).engine];
    const { call, first, end } = await executing(elsewhere);
    const crowd = Array.from({ length: 50 }, () => here.handle(retryOf(call, { waitMs: 60_000 })));
    await until(() => here.waiting === crowd.length);
    const startedMs = performance.now();
    await here.close(20_000);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    expect(new Set((await Promise.all(crowd)).map(({ kind }) => kind))).toEqual(new Set(['closing']));
    end();
    await first;
  });

  it('refuses later calls, and ends those that wait', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { call, first, end } = await executing(engine);
    const waiting = engine.handle(retryOf(call, { waitMs: 60_000 }));
    await until(() => engine.waiting === 1);
    const closing = engine.close(20_000);
    expect(await engine.handle(newCall())).toEqual({ kind: 'closing' });
    expect(await waiting).toEqual({ kind: 'closing' });
    end();
    await closing;
    expect(await first).toMatchObject({ kind: 'executed', decision: 'complete' });
  });
});
