import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { complete, newCall, notSent, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { movableClock } from '../support/movable-clock.ts';
import { until } from '../support/until.ts';

/** Blocks the thread, as a stopped process does: no timer runs, no socket is read. */
function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

const LEASE_MS = 60_000;

describe('an owner that has not sent its request', () => {
  it('may send for one lease after its start, and not later, even if it renews', async () => {
    await using rig = new Rig();
    const leaseMs = 600;
    // In the store the lease does not lapse, however late it is renewed.
    const store = await rig.faultyStore();
    const { engine, events } = rig.engine(store, { leaseMs });
    const [early, late] = [[] as boolean[], [] as boolean[]];
    const handledMs = performance.now();
    const call = newCall(async (maySend) => {
      const startedMs = performance.now();
      while (performance.now() - startedMs < 2 * leaseMs || late.length === 0 || store.asked.renew < 3) {
        const sentMs = performance.now();
        const answer = maySend();
        // The wall clock has whole milliseconds.
        if (performance.now() - handledMs < leaseMs - 1) early.push(answer);
        if (sentMs - startedMs >= leaseMs) late.push(answer);
        await sleep(20);
      }
      return notSent;
    });
    await engine.handle(call);
    expect(new Set(early)).toEqual(new Set([true]));
    expect(new Set(late)).toEqual(new Set([false]));
    expect(store.asked.renew).toBeGreaterThan(2);
    expect(events).toEqual([]);
  });

  it('may not send after its process was paused for longer than the lease, and never again', async () => {
    await using rig = new Rig();
    const leaseMs = 800;
    const store = await rig.faultyStore({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    const seen: boolean[] = [];
    const call = newCall(async (maySend) => {
      seen.push(maySend());
      block(leaseMs + 50);
      seen.push(maySend());
      const { renew } = store.asked;
      await until(() => store.asked.renew > renew + 2);
      seen.push(maySend());
      return notSent;
    });
    expect(await engine.handle(call)).toMatchObject({ kind: 'executed', decision: 'release' });
    expect(seen).toEqual([true, false, false]);
    expect(await store.get(call.recordId)).toBeUndefined();
  });

  it('may not send if its start took longer than the lease, because the fence counts from before the start', async () => {
    await using rig = new Rig();
    const leaseMs = 200;
    const store = await rig.faultyStore({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    store.delay('start', leaseMs + 100);
    const seen: boolean[] = [];
    await engine.handle(
      newCall(async (maySend) => {
        seen.push(maySend());
        return notSent;
      }),
    );
    expect(seen).toEqual([false]);
  });

  it.each(['wallMs', 'monotonicMs'] as const)(
    'may not send once %s alone has passed a lease',
    async (which) => {
      await using rig = new Rig();
      const clock = movableClock();
      const { engine } = rig.engine(await rig.store(), { leaseMs: LEASE_MS }, undefined, clock);
      const seen: boolean[] = [];
      const call = newCall(async (maySend) => {
        for (const ms of [0, LEASE_MS / 2, LEASE_MS + 1]) {
          clock.ahead[which] = ms;
          seen.push(maySend());
        }
        return complete();
      });
      await engine.handle(call);
      expect(seen).toEqual([true, true, false]);
      expect(await engine.handle(retryOf(call))).toEqual(replayFor(call));
    },
  );

  it('may send although the wall clock jumped back', async () => {
    await using rig = new Rig();
    const clock = movableClock();
    const { engine } = rig.engine(await rig.store(), {}, undefined, clock);
    const seen: boolean[] = [];
    await engine.handle(
      newCall(async (maySend) => {
        clock.ahead.wallMs = -3_600_000;
        seen.push(maySend());
        return complete();
      }),
    );
    expect(seen).toEqual([true]);
  });

  it.each(['wallMs', 'monotonicMs'] as const)(
    'after a restart may not send once %s has passed a lease',
    async (which) => {
      await using rig = new Rig();
      const clock = movableClock();
      const store = await rig.store();
      const { engine } = rig.engine(store, { leaseMs: LEASE_MS }, undefined, clock);
      const call = newCall(unknown, { inDoubt: 'retry' });
      await engine.handle(call);
      const seen: boolean[] = [];
      const again = newCall(
        async (maySend) => {
          for (const ms of [0, LEASE_MS + 1]) {
            clock.ahead[which] = ms;
            seen.push(maySend());
          }
          return notSent;
        },
        { inDoubt: 'retry', key: call.key },
      );
      expect(await engine.handle(again)).toMatchObject({ kind: 'executed', decision: 'in_doubt' });
      expect(seen).toEqual([true, false]);
    },
  );
});
