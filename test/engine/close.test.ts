import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { complete, executing, newCall, notSent, Rig, retryOf, unknown } from '../support/engine.ts';
import { until } from '../support/until.ts';

/** Longer than a test may take. */
const LONG_MS = 600_000;

/** Closing waits, and ends after `act`. */
async function expectEndAfter(act: () => void, closing: Promise<void>): Promise<void> {
  let isOver = false;
  void closing.then(() => {
    isOver = true;
  });
  await nextTurn();
  expect(isOver).toBe(false);
  act();
  await closing;
}

describe.concurrent('closing', () => {
  it('waits for running executions, refuses later calls, and ends those that wait', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const { call, first, end } = await executing(engine);
    const waiting = engine.handle(retryOf(call, { waitMs: LONG_MS }));
    await until(() => engine.waiting === 1);
    const closing = engine.close(LONG_MS);
    expect(await engine.handle(newCall())).toEqual({ kind: 'closing' });
    expect(await waiting).toEqual({ kind: 'closing' });
    await expectEndAfter(end, closing);
    expect(await first).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(await store.get(call.recordId)).toMatchObject({ state: 'completed' });
  });

  it('drains no longer than its time limit, and then waits for the complete of what still runs', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const { call, first, end } = await executing(engine);
    const startedMs = performance.now();
    await engine.drain(200);
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(199);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    end();
    await engine.close(LONG_MS);
    expect(await store.get(call.recordId)).toMatchObject({ state: 'completed' });
    expect(await first).toMatchObject({ decision: 'complete' });
  });

  it('sends nothing for a call whose start is pending, and frees its key', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store);
    const goOn = store.hold('start');
    const call = newCall();
    const first = engine.handle(call);
    await until(() => store.asked.start === 1);
    await expectEndAfter(goOn, engine.close(LONG_MS));
    expect(await store.get(call.recordId)).toBeUndefined();
    expect(await first).toEqual({ kind: 'closing' });
    expect([call.counted.runs, slots.inUse]).toEqual([0, 0]);
  });

  it('stores and sends nothing for a call that is reading its record, or is queued for a slot', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store, { maxConnections: 1 });
    const { first, end } = await executing(engine);
    const queued = newCall();
    const duplicate = retryOf(queued, { waitMs: LONG_MS });
    const results = [engine.handle(queued), engine.handle(duplicate)];
    await until(() => slots.queued === 1);
    const goOn = store.hold('peek');
    const reading = newCall();
    results.push(engine.handle(reading));
    await until(() => store.asked.peek === 2);
    const closing = engine.close(LONG_MS);
    goOn();
    expect(await Promise.all(results)).toEqual(results.map(() => ({ kind: 'closing' })));
    expect([slots.queued, store.asked.start]).toEqual([0, 1]);
    for (const { counted, recordId } of [queued, duplicate, reading]) {
      expect(counted.runs).toBe(0);
      expect(await store.get(recordId)).toBeUndefined();
    }
    end();
    await closing;
    expect(await first).toMatchObject({ stored: true });
    expect(slots.inUse).toBe(0);
  });

  it.each([
    ['complete', complete(), 'completed'],
    ['release', notSent, undefined],
    ['leaveInDoubt', unknown, 'in_doubt'],
  ] as const)('waits for a %s that is under way', async (write, exchange, state) => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    const goOn = store.hold(write);
    const call = newCall(exchange);
    const first = engine.handle(call);
    await until(() => store.asked[write] === 1);
    await expectEndAfter(goOn, engine.close(LONG_MS));
    expect((await store.get(call.recordId))?.state).toBe(state);
    expect(await first).toMatchObject({ kind: 'executed' });
  });

  it('waits for a release that is repeated', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    store.fail('release', 'before', 3);
    const call = newCall(notSent);
    expect(await engine.handle(call)).toMatchObject({ decision: 'release', stored: false });
    expect(engine.pendingWrites).toBe(1);
    await engine.close(LONG_MS);
    expect([engine.pendingWrites, await store.get(call.recordId)]).toEqual([0, undefined]);
  });

  it('ends the wait for a lookup', async () => {
    await using rig = new Rig();
    let waiting = false;
    const lookUpNow = () => {
      waiting = true;
      return new Promise<boolean>(() => {});
    };
    const { engine } = rig.engine(await rig.store(), {}, { lookUpLater() {}, lookUpNow });
    const call = newCall(unknown, { inDoubt: 'lookup' });
    await engine.handle(call);
    const retried = engine.handle(retryOf(call, { waitMs: LONG_MS }));
    await until(() => waiting);
    await engine.close(LONG_MS);
    expect(await retried).toMatchObject({ kind: 'in_doubt' });
  });

  it('does not wait for duplicates of an execution in another process', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const [elsewhere, here] = [rig.engine(store).engine, rig.engine(store).engine];
    const { call, first, end } = await executing(elsewhere);
    const duplicate = here.handle(retryOf(call, { waitMs: LONG_MS }));
    await until(() => here.waiting === 1);
    await here.close(LONG_MS);
    expect(await duplicate).toEqual({ kind: 'closing' });
    end();
    await first;
  });
});
