import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { complete, newCall, notSent, Rig, replayFor, retryOf, unknown } from '../support/engine.ts';
import { movableClock } from '../support/movable-clock.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
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
    expect(await store.get(call.scope)).toBeUndefined();
  });

  it('may not send if its start took longer than the lease, because the fence counts from before the start', async () => {
    await using rig = new Rig();
    const leaseMs = 200;
    const store = await rig.faultyStore({ leaseMs });
    const { engine } = rig.engine(store, { leaseMs });
    store.delay('start', leaseMs + 100, 'answered late');
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

describe('an owner that was paused between its start and the first byte', () => {
  const leaseMs = 400;

  /** Runs `meanwhile` once the lease has lapsed, and asks the fence afterwards. */
  async function paused(rig: Rig, meanwhile: (call: ReturnType<typeof newCall>) => Promise<void>) {
    const store = await rig.faultyStore({ leaseMs });
    store.fail('renew', 'before');
    const { engine, events } = rig.engine(store, { leaseMs });
    let maySendAfterwards: boolean | undefined;
    const call = newCall(
      async (maySend) => {
        await meanwhile(call);
        maySendAfterwards = maySend();
        return notSent;
      },
      { inDoubt: 'retry' },
    );
    const result = await engine.handle(call);
    expect(maySendAfterwards).toBe(false);
    expect(result).toMatchObject({ kind: 'executed', exchange: notSent });
    return { store, events, call };
  }

  it('does not send when its key was restarted', async () => {
    await using rig = new Rig();
    const there = await rig.store({ leaseMs });
    const { store, events, call } = await paused(rig, async (owned) => {
      const next = duplicateOf({ ...newRequest(), ...owned });
      await until(async () => (await there.start(next)).kind === 'in_doubt');
      expect(await there.restart(next)).toBe('ok');
    });
    // It releases under its own token, so the restarted execution keeps the key.
    expect(events).toContainEqual(['stale', 'release']);
    expect(await store.get(call.scope)).toMatchObject({ state: 'executing' });
  });

  it.each([
    ['released', { as: 'released' }],
    ['completed', { as: 'completed', completion: paid('by hand') }],
  ] as const)('does not send when an operator says that it was %s', async (as, resolution) => {
    await using rig = new Rig();
    const there = await rig.store({ leaseMs });
    const { store, events, call } = await paused(rig, async ({ scope }) => {
      const note = { by: 'ada', reason: 'the books show it' };
      await until(async () => {
        const record = await there.get(scope);
        return record && (await there.resolve(scope, record.token, resolution, note)) === 'ok';
      });
    });
    expect(events).toContainEqual(['stale', 'release']);
    const record = await store.get(call.scope);
    if (as === 'released') expect(record).toBeUndefined();
    else expect(record).toMatchObject({ state: 'completed', completion: paid('by hand') });
  });
});
