import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { executing, newCall, notSent, openRun, Rig, replayFor, retryOf } from '../support/engine.ts';
import { movableClock } from '../support/movable-clock.ts';
import { until } from '../support/until.ts';

describe.concurrent('a duplicate', () => {
  it.each(['a result', 'a release'])('wakes up at once when the first one ends with %s', async (how) => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { call, first, end } = await executing(engine);
    const retry = retryOf(call, { waitMs: 60_000 });
    const waiting = engine.handle(retry);
    await until(() => engine.waiting === 1);
    end(how === 'a release' ? notSent : undefined);
    await first;
    await nextTurn();
    // One turn of the event loop is enough, because a duplicate in the same process does not poll.
    expect(engine.waiting).toBe(0);
    expect(await waiting).toMatchObject({ kind: how === 'a release' ? 'executed' : 'replayed' });
    expect(retry.counted.runs).toBe(how === 'a release' ? 1 : 0);
  });

  it('reports how long it waited', async () => {
    await using rig = new Rig();
    const clock = movableClock();
    const { engine } = rig.engine(await rig.store(), {}, undefined, clock);
    const waits: number[] = [];
    const waited = (ms: number) => void waits.push(ms);
    const { call, first, end } = await executing(engine);
    const waiting = engine.handle({ ...retryOf(call, { waitMs: 60_000 }), waited });
    await until(() => engine.waiting === 1);
    clock.pass(100);
    end();
    await Promise.all([first, waiting]);
    expect(waits).toHaveLength(1);
    expect(waits[0]).toBeGreaterThanOrEqual(100);
  });

  it('that waits for another process polls at growing intervals, together with all other duplicates', async () => {
    await using rig = new Rig();
    const [here, there] = [rig.engine(await rig.store()).engine, await rig.faultyStore()];
    const { engine } = rig.engine(there);
    const { call, first, end } = await executing(here);
    const looks: number[] = [];
    const { peek } = there;
    there.peek = (request) => {
      looks.push(performance.now());
      if (looks.length === 5) end();
      return peek(request);
    };
    let waitedMs = 0;
    const waited = (ms: number) => {
      waitedMs += ms;
    };
    const crowd = [engine.handle({ ...retryOf(call, { waitMs: 20_000 }), waited })];
    for (let more = 1; more < 100; more++) crowd.push(engine.handle(retryOf(call, { waitMs: 20_000 })));
    await until(() => looks.length >= 5);
    const pauses = looks.slice(1).map((ms, i) => ms - (looks[i] as number));
    expect(pauses[0]).toBeGreaterThan(30);
    expect(pauses[3]).toBeGreaterThan(100);
    await first;
    await Promise.all(crowd);
    expect(looks.length).toBeLessThanOrEqual(7);
    expect(waitedMs).toBeGreaterThan(100);
  });

  it('continues to poll after the duplicate that polled for it has stopped waiting', async () => {
    await using rig = new Rig();
    const [here, there] = [rig.engine(await rig.store()).engine, rig.engine(await rig.store()).engine];
    const { call, first, end } = await executing(here);
    // The first duplicate polls for 200 ms. The second one follows it, and may wait longer.
    const impatient = there.handle(retryOf(call, { waitMs: 200 }));
    const patient = there.handle(retryOf(call, { waitMs: 20_000 }));
    expect(await impatient).toEqual({ kind: 'in_flight' });
    await until(() => there.waiting === 1);
    end();
    await first;
    expect(await patient).toEqual(replayFor(call));
  });
});

describe.concurrent('a thousand duplicates of one key', () => {
  it('cause one start, and no further reads when the first completes', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine, slots } = rig.engine(store, { maxConnections: 2 });
    const { run, end } = openRun();
    const call = newCall(run, { waitMs: 20_000 });
    const first = engine.handle(call);
    const duplicates = Array.from({ length: 1000 }, () => retryOf(call));
    const results = duplicates.map((duplicate) => engine.handle(duplicate));
    await until(() => engine.executing === 1);
    expect(engine.waiting).toBe(1000);
    expect(slots.inUse).toBe(1);
    end();
    expect(await first).toMatchObject({ kind: 'executed', stored: true });
    for (const result of await Promise.all(results)) expect(result).toEqual(replayFor(call));
    expect(store.asked).toMatchObject({ start: 1, peek: 0, complete: 1 });
    for (const { counted } of duplicates) expect(counted.runs).toBe(0);
    expect([engine.waiting, slots.inUse]).toEqual([0, 0]);
  });

  it('hold no slot while they wait for an execution in another process', async () => {
    await using rig = new Rig();
    const elsewhere = rig.engine(await rig.store()).engine;
    const { call, first, end } = await executing(elsewhere);
    const { engine, slots } = rig.engine(await rig.store(), { maxConnections: 1 });
    const crowd = Array.from({ length: 1000 }, () => engine.handle(retryOf(call, { waitMs: 20_000 })));
    await until(() => engine.waiting === 1000);
    expect(slots.inUse).toBe(0);
    expect(await engine.handle(newCall())).toMatchObject({ kind: 'executed' });
    end();
    await first;
    for (const result of await Promise.all(crowd)) expect(result).toMatchObject({ kind: 'replayed' });
  });
});
