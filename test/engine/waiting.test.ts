import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { executing, newCall, notSent, openRun, Rig, replayFor, retryOf } from '../support/engine.ts';
import { paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

describe.concurrent('a duplicate', () => {
  it.each(['a result', 'a release'])('wakes up at once when the first one ends with %s', async (end) => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const first = openRun();
    const call = newCall(first.run);
    const running = engine.handle(call);
    await until(() => engine.executing === 1);
    const retry = retryOf(call, { waitMs: 60_000 });
    const waiting = engine.handle(retry);
    await until(() => engine.waiting === 1);
    first.end(end === 'a release' ? notSent : undefined);
    await running;
    await nextTurn();
    // One turn of the event loop is enough, because a duplicate in the same process does not poll.
    expect(engine.waiting).toBe(0);
    expect(await waiting).toMatchObject({ kind: end === 'a release' ? 'executed' : 'replayed' });
    expect(retry.counted.runs).toBe(end === 'a release' ? 1 : 0);
  });

  it('reports how long it waited', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const first = openRun();
    const waits: number[] = [];
    const waited = (ms: number) => void waits.push(ms);
    const call = { ...newCall(first.run), waited };
    const running = engine.handle(call);
    await until(() => engine.executing === 1);
    expect(waits).toEqual([]);
    const startedMs = performance.now();
    const waiting = engine.handle({ ...retryOf(call, { waitMs: 60_000 }), waited });
    await until(() => engine.waiting === 1);
    await sleep(100);
    first.end();
    await Promise.all([running, waiting]);
    const waitedMs = waits.reduce((sum, ms) => sum + ms, 0);
    expect(waitedMs).toBeGreaterThanOrEqual(99);
    expect(waitedMs).toBeLessThanOrEqual(performance.now() - startedMs);
  });

  it('reports how long it waited for another process', async () => {
    await using rig = new Rig();
    const [here, there] = [rig.engine(await rig.store()).engine, rig.engine(await rig.store()).engine];
    const { run, end } = openRun();
    const call = newCall(run);
    const running = here.handle(call);
    await until(() => here.executing === 1);
    const waits: number[] = [];
    const retry = { ...retryOf(call, { waitMs: 60_000 }), waited: (ms: number) => void waits.push(ms) };
    const waiting = there.handle(retry);
    await until(() => waits.length > 2);
    end();
    await Promise.all([running, waiting]);
    expect(waits.reduce((sum, ms) => sum + ms, 0)).toBeGreaterThan(0);
  });

  it('that waits for another process polls at growing intervals, together with all other duplicates', async () => {
    await using rig = new Rig();
    const [here, there] = [rig.engine(await rig.store()).engine, await rig.faultyStore()];
    const { engine } = rig.engine(there);
    const { run, end } = openRun();
    const call = newCall(run);
    const running = here.handle(call);
    await until(() => here.executing === 1);
    const looks: number[] = [];
    const { peek } = there;
    there.peek = (request) => {
      looks.push(performance.now());
      if (looks.length === 5) end();
      return peek(request);
    };
    const crowd = Array.from({ length: 100 }, () => engine.handle(retryOf(call, { waitMs: 20_000 })));
    await until(() => looks.length >= 5);
    const pauses = looks.slice(1).map((ms, i) => ms - (looks[i] as number));
    expect(pauses[0]).toBeGreaterThan(30);
    expect(pauses[3]).toBeGreaterThan(100);
    await running;
    await Promise.all(crowd);
    expect(looks.length).toBeLessThanOrEqual(7);
  });

  it('continues to poll after the duplicate that polled for it has stopped waiting', async () => {
    await using rig = new Rig();
    const [here, there] = [rig.engine(await rig.store()).engine, rig.engine(await rig.store()).engine];
    const { run, end } = openRun();
    const call = newCall(run);
    const running = here.handle(call);
    await until(() => here.executing === 1);
    // The first duplicate polls for 200 ms. The second one follows it, and may wait longer.
    const impatient = there.handle(retryOf(call, { waitMs: 200 }));
    const patient = there.handle(retryOf(call, { waitMs: 20_000 }));
    expect(await impatient).toEqual({ kind: 'in_flight' });
    await until(() => there.waiting === 1);
    end();
    await running;
    expect(await patient).toEqual(replayFor(call));
  });

  it('is answered at once if maxWaiters duplicates already wait', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store(), { maxWaiters: 3 });
    const { call, first, end } = await executing(engine);
    const waiting = Array.from({ length: 3 }, () => engine.handle(retryOf(call, { waitMs: 60_000 })));
    await until(() => engine.waiting === 3);
    expect(await engine.handle(retryOf(call, { waitMs: 60_000 }))).toEqual({ kind: 'in_flight' });
    end();
    await first;
    for (const result of await Promise.all(waiting)) expect(result).toMatchObject({ kind: 'replayed' });
  });
});

it('a merchant that leaves does not end the execution', async () => {
  await using rig = new Rig();
  const store = await rig.store();
  const { engine } = rig.engine(store);
  const leaving = new AbortController();
  const { call, first, end } = await executing(engine, { gone: leaving.signal });
  leaving.abort();
  end();
  expect(await first).toMatchObject({ kind: 'executed', decision: 'complete' });
  expect(await store.get(call.scope)).toMatchObject({ state: 'completed', completion: paid() });
});
