import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { newCall, openRun, Rig, responseOf, retryOf } from '../support/engine.ts';
import { newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

describe.concurrent('an owner', () => {
  it('renews its lease while it runs: a duplicate finds it in flight for longer than a lease', async () => {
    await using rig = new Rig();
    const leaseMs = 900;
    const [here, there] = [
      rig.engine(await rig.store({ leaseMs }), { leaseMs }),
      rig.engine(await rig.store({ leaseMs })),
    ];
    const { run, end } = openRun();
    const call = newCall(run);
    const first = here.engine.handle(call);
    await until(() => here.engine.executing === 1);
    const beganMs = performance.now();
    await until(async () => {
      expect(await there.engine.handle(retryOf(call))).toEqual({ kind: 'in_flight' });
      await sleep(50);
      return performance.now() - beganMs > 2 * leaseMs;
    });
    end();
    expect(await first).toMatchObject({ kind: 'executed', decision: 'settle' });
    expect(await there.engine.handle(retryOf(call))).toEqual({ kind: 'replayed', response: responseOf() });
    expect(here.told).toEqual([]);
  });

  it('stops renewing when it has ended', async () => {
    await using rig = new Rig();
    const leaseMs = 60;
    const store = await rig.faultyStore({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    await engine.handle(
      newCall(async () => {
        await until(() => store.asked.renew > 1);
        return { kind: 'complete', response: responseOf() };
      }),
    );
    const { renew } = store.asked;
    await sleep(3 * leaseMs);
    expect(store.asked.renew).toBe(renew);
  });

  it('who was gone before it began is followed by the next, who runs', async () => {
    await using rig = new Rig();
    const leaseMs = 150;
    const store = await rig.store({ leaseMs });
    const { engine, told } = rig.engine(store, { leaseMs });
    const call = newCall(undefined, { waitMs: 20_000 });
    const lost = { ...newRequest(), ...call };
    expect(await store.claim(lost)).toEqual({ kind: 'claimed', tookOver: false });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'settle' });
    expect(call.counted.runs).toBe(1);
    expect(told).toContainEqual(['tookOver']);
    expect(await store.begin(lost)).toBe('stale');
  });

  it('who comes to begin too late sends nothing, and gets the result of who took over', async () => {
    await using rig = new Rig();
    const leaseMs = 150;
    const slow = await rig.faultyStore({ leaseMs });
    const late = rig.engine(slow, { leaseMs });
    const heir = rig.engine(await rig.store({ leaseMs }), { leaseMs });
    slow.delay('begin', 1000);
    const call = newCall(undefined, { waitMs: 20_000 });
    const first = late.engine.handle(call);
    await until(() => slow.asked.begin === 1);
    const next = retryOf(call, { waitMs: 20_000 });
    expect(await heir.engine.handle(next)).toMatchObject({ kind: 'executed', decision: 'settle' });
    expect(await first).toEqual({ kind: 'replayed', response: responseOf('retry') });
    expect(call.counted.runs).toBe(0);
    expect(next.counted.runs).toBe(1);
    expect(late.told).toContainEqual(['stale', 'begin']);
    expect(heir.told).toContainEqual(['tookOver']);
  });

  it('who was gone after it began leaves the key in doubt, until it settles after all', async () => {
    await using rig = new Rig();
    const leaseMs = 150;
    const store = await rig.store({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    const call = newCall(undefined, { waitMs: 20_000 });
    const paused = { ...newRequest(), ...call };
    await store.claim(paused);
    await store.begin(paused);
    expect(await engine.handle(call)).toMatchObject({ kind: 'in_doubt' });
    expect(await store.settle(paused, paid('late'))).toBe('ok');
    expect(await engine.handle(call)).toEqual({ kind: 'replayed', response: responseOf('late') });
    expect(call.counted.runs).toBe(0);
  });
});

describe.concurrent('close', () => {
  it('waits for what runs', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const { engine } = rig.engine(store);
    const { run, end } = openRun();
    const call = newCall(run);
    const first = engine.handle(call);
    await until(() => engine.executing === 1);
    let closed = false;
    const closing = engine.drain(20_000).then(() => {
      closed = true;
    });
    await sleep(100);
    expect(closed).toBe(false);
    end();
    await closing;
    expect(await store.get(call.scope)).toMatchObject({ state: 'settled' });
    await first;
  });

  it('waits no longer than it may', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { run, end } = openRun();
    const first = engine.handle(newCall(run));
    await until(() => engine.executing === 1);
    const startedMs = performance.now();
    await engine.drain(200);
    expect(performance.now() - startedMs).toBeGreaterThanOrEqual(199);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    end();
    await first;
  });

  it('waits for the settlement of what did not end in time', async () => {
    await using rig = new Rig();
    const store = await rig.faultyStore();
    const { engine } = rig.engine(store);
    store.delay('settle', 500);
    const { run, end } = openRun();
    const call = newCall(run);
    const result = engine.handle(call);
    await until(() => engine.executing === 1);
    await engine.drain(0);
    end();
    await engine.close(20_000);
    expect(await store.get(call.scope)).toMatchObject({ state: 'settled' });
    expect(await result).toMatchObject({ decision: 'settle' });
  });

  it('is over at once where nothing runs', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const startedMs = performance.now();
    await engine.close(20_000);
    expect(performance.now() - startedMs).toBeLessThan(2000);
  });

  it.each(['claim', 'begin'] as const)(
    'sends nothing for a call that was at its %s, and frees its key',
    async (write) => {
      await using rig = new Rig();
      const store = await rig.faultyStore();
      const { engine } = rig.engine(store);
      store.delay(write, 300);
      const call = newCall();
      const first = engine.handle(call);
      await until(() => store.asked[write] === 1);
      await engine.close(20_000);
      expect(await store.get(call.scope)).toBeUndefined();
      expect(await first).toEqual({ kind: 'closing' });
      expect(call.counted.runs).toBe(0);
    },
  );

  it('is not held up by a crowd that waits for an execution elsewhere', async () => {
    await using rig = new Rig();
    const store = await rig.store();
    const [elsewhere, here] = [rig.engine(store).engine, rig.engine(store).engine];
    const { run, end } = openRun();
    const call = newCall(run);
    const first = elsewhere.handle(call);
    await until(() => elsewhere.executing === 1);
    const crowd = Array.from({ length: 50 }, () => here.handle(retryOf(call, { waitMs: 60_000 })));
    await until(() => here.waiting === crowd.length);
    const startedMs = performance.now();
    await here.close(20_000);
    expect(performance.now() - startedMs).toBeLessThan(2000);
    expect(new Set((await Promise.all(crowd)).map(({ kind }) => kind))).toEqual(new Set(['closing']));
    end();
    await first;
  });

  it('turns away whoever comes later, and whoever waits', async () => {
    await using rig = new Rig();
    const { engine } = rig.engine(await rig.store());
    const { run, end } = openRun();
    const call = newCall(run);
    const first = engine.handle(call);
    await until(() => engine.executing === 1);
    const waiting = engine.handle(retryOf(call, { waitMs: 60_000 }));
    await until(() => engine.waiting === 1);
    const closing = engine.close(20_000);
    expect(await engine.handle(newCall())).toEqual({ kind: 'closing' });
    expect(await waiting).toEqual({ kind: 'closing' });
    end();
    await closing;
    expect(await first).toMatchObject({ kind: 'executed', decision: 'settle' });
  });
});
