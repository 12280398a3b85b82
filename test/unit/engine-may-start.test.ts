import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { complete, newCall, notSent, Rig, responseOf, retryOf } from '../support/engine.ts';
import { newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';

/** Stands still, as a process that was stopped does: no timer runs, no socket is read. */
function standStill(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

describe('a request that has not been started', () => {
  it('may be started for as long as its lease is renewed', async () => {
    await using rig = new Rig();
    const leaseMs = 600;
    const { engine } = rig.engine(await rig.store({ leaseMs }), { leaseMs });
    const seen: boolean[] = [];
    const call = newCall(async (mayStart) => {
      const startedMs = performance.now();
      while (performance.now() - startedMs < 2 * leaseMs) {
        seen.push(mayStart());
        await sleep(20);
      }
      return complete();
    });
    await engine.handle(call);
    expect(seen.length).toBeGreaterThan(5);
    expect(new Set(seen)).toEqual(new Set([true]));
  });

  it('may not after its process stood still for longer than the lease, and never again', async () => {
    await using rig = new Rig();
    const leaseMs = 300;
    const store = await rig.faultyStore({ leaseMs });
    const { engine, told } = rig.engine(store, { leaseMs });
    const seen: boolean[] = [];
    const call = newCall(async (mayStart) => {
      seen.push(mayStart());
      standStill(leaseMs + 50);
      seen.push(mayStart());
      const { renew } = store.asked;
      await until(() => store.asked.renew > renew + 2);
      seen.push(mayStart());
      return notSent;
    });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'release' });
    expect(seen).toEqual([true, false, false]);
    expect(told).toContainEqual(['leaseLost']);
    expect(await store.get(call.scope)).toBeUndefined();
  });

  it('may not while renewals are not answered, and may again when the lease was kept after all', async () => {
    await using rig = new Rig();
    const [engineLeaseMs, storeLeaseMs] = [300, 60_000];
    const store = await rig.faultyStore({ leaseMs: storeLeaseMs });
    const { engine } = rig.engine(store, { leaseMs: engineLeaseMs });
    store.fail('renew', 'before');
    const call = newCall(async (mayStart) => {
      await until(() => !mayStart());
      store.heal();
      await until(mayStart);
      return complete();
    });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'settle' });
  });

  it('may not where the begin itself took longer than the lease to be answered', async () => {
    await using rig = new Rig();
    const leaseMs = 200;
    const store = await rig.faultyStore({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    store.delay('begin', leaseMs + 100, 'answered late');
    store.fail('renew', 'before');
    const seen: boolean[] = [];
    await engine.handle(
      newCall(async (mayStart) => {
        seen.push(mayStart());
        return notSent;
      }),
    );
    expect(seen).toEqual([false]);
  });

  it('may not once it was taken over', async () => {
    await using rig = new Rig();
    const [store, leaseMs] = [await rig.store(), 300];
    const { engine, told } = rig.engine(store, { leaseMs });
    const call = newCall(async (mayStart) => {
      const record = await store.get(call.scope);
      if (!record) throw new Error('nothing stands');
      await store.markInDoubt({ scope: call.scope, token: record.token });
      expect(await store.takeOver(newRequest({ key: call.key }), call.fingerprint)).toBe('ok');
      await until(() => !mayStart());
      return notSent;
    });
    await engine.handle(call);
    expect(told).toContainEqual(['stale', 'renew']);
    // Released under its own token only: who took over goes on.
    expect(told).toContainEqual(['stale', 'release']);
    expect(await store.get(call.scope)).toMatchObject({ state: 'executing' });
  });

  it('is not told of by a wall clock that jumps back, and may not after one that jumped ahead', async () => {
    await using rig = new Rig();
    let aheadMs = 0;
    const store = await rig.store();
    const { engine } = rig.engineAt(store, { wallMs: () => Date.now() + aheadMs });
    const seen: boolean[] = [];
    const call = newCall(async (mayStart) => {
      for (const ms of [-3_600_000, 0, 3_600_000]) {
        aheadMs = ms;
        seen.push(mayStart());
      }
      return complete();
    });
    await engine.handle(call);
    expect(seen).toEqual([true, true, false]);
    expect(await engine.handle(retryOf(call))).toEqual({ kind: 'replayed', response: responseOf() });
  });
});
