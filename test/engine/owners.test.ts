import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { newCall, openRun, Rig, replayFor, responseOf, retryOf } from '../support/engine.ts';
import { newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

describe.concurrent('an owner', () => {
  it('renews its lease while it runs: a duplicate finds it in flight for longer than a lease', async () => {
    await using rig = new Rig();
    const leaseMs = 2000;
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
      return performance.now() - beganMs > 1.3 * leaseMs;
    });
    end();
    expect(await first).toMatchObject({ kind: 'executed', decision: 'complete' });
    expect(await there.engine.handle(retryOf(call))).toEqual(replayFor(call));
    expect(here.events).toEqual([]);
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

  it('that died before it sent anything leaves its key in doubt, and no duplicate runs', async () => {
    await using rig = new Rig();
    const leaseMs = 150;
    const store = await rig.store({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    const call = newCall(undefined, { waitMs: 20_000 });
    expect(await store.start({ ...newRequest(), ...call })).toEqual({ kind: 'started' });
    expect(await engine.handle(call)).toMatchObject({ kind: 'in_doubt' });
    expect(call.counted.runs).toBe(0);
  });

  it('that was paused after it sent leaves its key in doubt until it completes after all', async () => {
    await using rig = new Rig();
    const leaseMs = 150;
    const store = await rig.store({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    const call = newCall(undefined, { waitMs: 20_000 });
    const paused = { ...newRequest(), ...call };
    await store.start(paused);
    expect(await engine.handle(call)).toMatchObject({ kind: 'in_doubt' });
    expect(await store.complete(paused, paid('late'))).toBe('ok');
    expect(await engine.handle(call)).toEqual(replayFor(call, 'late'));
    expect(call.counted.runs).toBe(0);
  });
});
