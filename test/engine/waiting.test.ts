import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import {
  executing,
  newCall,
  notSent,
  openRun,
  Rig,
  replayFor,
  responseOf,
  retryOf,
} from '../support/engine.ts';
import { paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

describe.concurrent('a duplicate', () => {
  it('gets the bytes of the one execution, with fifty requests at once', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const first = newCall(async () => {
      await sleep(50);
      return { kind: 'complete', response: responseOf('one') };
    });
    const calls = Array.from({ length: 50 }, () => ({ ...first, waitMs: 10_000 }));
    const results = await Promise.all(calls.map((call) => engine.handle(call)));
    expect(first.counted.runs).toBe(1);
    const responses = results.map((result) => {
      if (result.kind === 'replayed') return result.response;
      return result.kind === 'executed' && result.exchange.kind === 'complete'
        ? result.exchange.response
        : result;
    });
    expect(responses).toEqual(calls.map(() => responseOf('one')));
    expect(results.filter(({ kind }) => kind === 'executed')).toHaveLength(1);
    expect(engine.waiting).toBe(0);
  });

  it('that may not wait is answered at once', async () => {
    await using rig = new Rig();
    const { engine, events } = rig.engine(await rig.store());
    const { call, first, end } = await executing(engine);
    const startedMs = performance.now();
    expect(await engine.handle(retryOf(call))).toEqual({ kind: 'in_flight' });
    expect(performance.now() - startedMs).toBeLessThan(1000);
    expect(events).toEqual([]);
    end();
    expect(await first).toMatchObject({ kind: 'executed' });
  });

  it('that has waited for its waitMs is answered in_flight', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { call, first, end } = await executing(engine);
    const startedMs = performance.now();
    const retry = retryOf(call, { waitMs: 300 });
    expect(await engine.handle(retry)).toEqual({ kind: 'in_flight' });
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(299);
    expect(retry.counted.runs).toBe(0);
    end();
    await first;
  });

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

  it('waits for another process too, and 80 duplicates cost the store one start and a few reads', async () => {
    await using rig = new Rig();
    const [here, there] = [rig.engine(await rig.store()), await rig.faultyStore()];
    const { engine } = rig.engine(there);
    const { run, end } = openRun();
    const call = newCall(run);
    const first = here.engine.handle(call);
    await until(() => here.engine.executing === 1);
    const crowd = Array.from({ length: 80 }, () => retryOf(call, { waitMs: 20_000 }));
    const waiting = crowd.map((retry) => engine.handle(retry));
    await until(() => engine.waiting === crowd.length);
    await sleep(1000);
    // In one second about six polls, at growing intervals, for all duplicates together.
    expect(there.asked.start).toBe(1);
    expect(there.asked.peek).toBeGreaterThan(2);
    expect(there.asked.peek).toBeLessThan(20);
    end();
    await first;
    for (const result of await Promise.all(waiting)) {
      expect(result).toEqual(replayFor(call));
    }
    for (const { counted } of crowd) expect(counted.runs).toBe(0);
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

describe.concurrent('a merchant that leaves', () => {
  it('ends the waiting', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { call, first, end } = await executing(engine);
    const leaving = new AbortController();
    const waiting = engine.handle(retryOf(call, { waitMs: 60_000, gone: leaving.signal }));
    await until(() => engine.waiting === 1);
    leaving.abort();
    expect(await waiting).toEqual({ kind: 'in_flight' });
    expect(engine.waiting).toBe(0);
    end();
    await first;
  });

  it('that has left already does not wait', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { call, first, end } = await executing(engine);
    const retry = retryOf(call, { waitMs: 60_000, gone: AbortSignal.abort() });
    expect(await engine.handle(retry)).toEqual({ kind: 'in_flight' });
    end();
    await first;
  });

  it('does not end the execution', async () => {
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
});
