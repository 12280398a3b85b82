import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { Execution } from '../../src/store/contract.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { ownersWrites, write } from './fencing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf, stages } from './states.ts';

const SHORT = { retentionMs: 3000, inDoubtRetentionMs: 6500 };
/** If a write restarted the lifetime, the record would outlive the control record by this time. */
const LATER_MS = 800;
const BY_HAND = { by: 'ada', reason: 'the books show it' };

type Touch = (store: Store, owner: Execution) => Promise<unknown>;

/** Calls that do not extend the lifetime of an executing or in-doubt record. */
const touches: Record<string, Touch> = {
  'start sent twice': async (store, owner) => expect(await store.start(owner)).toEqual({ kind: 'started' }),
  renewal: async (store, owner) => {
    for (let renewals = 0; renewals < 3; renewals++) expect(await store.renew(owner)).toBe('ok');
  },
  markInDoubt: async (store, owner) => {
    for (let marks = 0; marks < 2; marks++) expect(await store.markInDoubt(owner)).toBe('ok');
  },
  'duplicate that finds it in doubt': async (store, owner) => {
    expect(await store.markInDoubt(owner)).toBe('ok');
    expect((await store.start(duplicateOf(owner))).kind).toBe('in_doubt');
  },
};

/** Writes after which a record lives for inDoubtRetentionMs again. */
const extending: Record<string, Touch> = {
  'complete of a record in doubt': async (store, owner) => {
    expect(await store.markInDoubt(owner)).toBe('ok');
    expect(await store.complete(owner, paid())).toBe('ok');
    // Completing again changes nothing, the lifetime included.
    expect(await store.complete(owner, paid())).toBe('ok');
  },
  'complete that finds no record': async (store, owner) => {
    expect(await store.release(owner)).toBe('ok');
    expect(await store.complete(owner, paid())).toBe('ok');
  },
  'resolution as completed': async (store, owner) => {
    expect(await store.markInDoubt(owner)).toBe('ok');
    const resolution = { as: 'completed' as const, completion: paid() };
    expect(await store.resolve(owner.scope, owner.token, resolution, BY_HAND)).toBe('ok');
  },
  restart: async (store, owner) => {
    expect(await store.markInDoubt(owner)).toBe('ok');
    expect(await store.restart(duplicateOf(owner))).toBe('ok');
  },
  'complete after a restart': async (store, owner) => {
    expect(await store.markInDoubt(owner)).toBe('ok');
    const successor = duplicateOf(owner);
    expect(await store.restart(successor)).toBe('ok');
    expect(await store.complete(successor, paid())).toBe('ok');
  },
};

/** How long the store says that the record will live. */
async function expiresInMs(store: Store, { scope }: Execution): Promise<number> {
  const ms = await store.expiresInMs(scope);
  expect(ms).toBeTypeOf('number');
  return ms as number;
}

const gone = (store: Store, { scope }: Execution) =>
  until(async () => (await store.get(scope)) === undefined);

export function expiry(backend: Backend): void {
  describe.concurrent('a lifetime', () => {
    it.each(stages)(
      'that is over (%s) makes the owner’s writes stale, and the scope absent',
      async (stage) => {
        await using nodes = new Nodes(backend);
        const lifetimeMs = 3000;
        const store = await nodes.open({ retentionMs: lifetimeMs, inDoubtRetentionMs: lifetimeMs });
        const startedMs = performance.now();
        const owner = await bring(store, stage);
        await gone(store, owner);
        expect(performance.now() - startedMs).toBeGreaterThanOrEqual(lifetimeMs - 1);
        expect(await store.peek(owner)).toEqual({ kind: 'absent' });
        for (const name of ownersWrites.filter((each) => each !== 'complete'))
          expect(await write(store, name, owner)).toBe('stale');
        const note = [{ as: 'released' } as const, BY_HAND] as const;
        expect(await store.resolve(owner.scope, owner.token, ...note)).toBe('changed');
        expect(await store.restart(duplicateOf(owner))).toBe('changed');
        expect(await store.get(owner.scope)).toBeUndefined();
        const next = { ...newRequest({ body: 'other' }), scope: owner.scope };
        await bring(await nodes.open(), 'executing', next);
        expect(await store.complete(owner, paid('late'))).toBe('stale');
        expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', token: next.token });
      },
    );

    it.each(stages)('that is over (%s) lets a late complete create the record', async (stage) => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ retentionMs: 3000, inDoubtRetentionMs: 3000 });
      const owner = await bring(store, stage);
      await gone(store, owner);
      const later = await nodes.open();
      expect(await later.complete(owner, paid('late'))).toBe('ok');
      expect(await later.get(owner.scope)).toMatchObject({ state: 'completed', wasInDoubt: true });
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
    });

    it('is told, for each state, until the record is gone', async () => {
      await using nodes = new Nodes(backend);
      const [retentionMs, inDoubtRetentionMs] = [2500, 3_600_000];
      const store = await nodes.open({ retentionMs, inDoubtRetentionMs });
      const beganMs = performance.now();
      for (const stage of stages) {
        const owner = await bring(store, stage);
        const lifetimeMs = stage === 'completed' ? retentionMs : inDoubtRetentionMs;
        const leftMs = await expiresInMs(store, owner);
        expect(leftMs).toBeLessThanOrEqual(lifetimeMs);
        expect(leftMs).toBeGreaterThan(lifetimeMs - (performance.now() - beganMs) - 1);
        if (stage !== 'completed') continue;
        await gone(store, owner);
        expect(await store.expiresInMs(owner.scope)).toBeUndefined();
      }
      const resolved = await bring(store, 'in_doubt');
      const resolution = { as: 'completed' as const, completion: paid() };
      await store.resolve(resolved.scope, resolved.token, resolution, BY_HAND);
      expect(await expiresInMs(store, resolved)).toBeGreaterThan(retentionMs);
      expect(await store.expiresInMs(newRequest().scope)).toBeUndefined();
    });

    it('of a record that was never in doubt counts from the start, not from the complete', async () => {
      await using nodes = new Nodes(backend);
      // Long enough for five writes to a disk that is busy.
      const lifetimes = { retentionMs: 6000, inDoubtRetentionMs: 12_000 };
      const [store, other] = [await nodes.open(lifetimes), await nodes.open(lifetimes)];
      const late = await bring(store, 'executing');
      const startedMs = performance.now();
      const control = await bring(store, 'completed');
      await sleep(LATER_MS);
      for (let times = 0; times < 2; times++) expect(await other.complete(late, paid())).toBe('ok');
      expect(await other.get(late.scope)).toMatchObject({ state: 'completed', wasInDoubt: false });
      await gone(store, control);
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(lifetimes.retentionMs - 1);
      expect(await store.get(late.scope)).toBeUndefined();
    });

    it('of a record that is executing or in doubt is inDoubtRetentionMs, longer than that of a result', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open(SHORT);
      const startedMs = performance.now();
      const owners = [await bring(store, 'executing'), await bring(store, 'in_doubt')];
      const control = await bring(store, 'completed');
      await gone(store, control);
      const after = await Promise.all(owners.map(({ scope }) => store.get(scope)));
      expect(after.map((record) => record?.state)).toEqual(['executing', 'in_doubt']);
      for (const owner of owners) await gone(store, owner);
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(SHORT.inDoubtRetentionMs - 1);
    });

    it.each(Object.entries(touches))('is not extended by a %s', async (_, touch) => {
      await using nodes = new Nodes(backend);
      const times = { inDoubtRetentionMs: 4000 };
      const [store, other] = [await nodes.open(times), await nodes.open(times)];
      const owner = await bring(store, 'executing');
      const control = await bring(store, 'executing');
      await sleep(LATER_MS);
      await touch(other, owner);
      await gone(store, control);
      expect(await store.get(owner.scope)).toBeUndefined();
    });

    it.each(Object.entries(extending))('is inDoubtRetentionMs again after a %s', async (_, touch) => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(SHORT), await nodes.open(SHORT)];
      const control = await bring(store, 'executing');
      const owner = await bring(store, 'executing');
      await sleep(LATER_MS);
      const touchedMs = performance.now();
      await touch(other, owner);
      expect(await store.get(owner.scope)).toMatchObject({ wasInDoubt: true });
      await gone(store, control);
      await gone(store, owner);
      expect(performance.now() - touchedMs).toBeGreaterThanOrEqual(SHORT.inDoubtRetentionMs - 1);
    });

    it('after a complete whose lease was over is inDoubtRetentionMs from then', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ ...SHORT, leaseMs: 100 });
      const control = await bring(store, 'executing');
      const owner = await bring(store, 'executing');
      await until(async () => (await store.peek(owner)).kind === 'in_doubt');
      const completedMs = performance.now();
      expect(await store.complete(owner, paid())).toBe('ok');
      await gone(store, control);
      await gone(store, owner);
      expect(performance.now() - completedMs).toBeGreaterThanOrEqual(SHORT.inDoubtRetentionMs - 1);
    });
  });
}
