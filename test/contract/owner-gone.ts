import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/kernel/clock.ts';
import { duplicateOf, otherOf, paid } from '../support/requests.ts';
import { until, untilNot } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring } from './states.ts';

const LEASE = { leaseMs: 200 };
const HOUR_MS = 3_600_000;

export function ownerGone(backend: Backend): void {
  describe.concurrent('when the owner has gone', () => {
    it('before it began, the next claim takes over, and not before the lease is over', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const startedMs = performance.now();
      const owner = await bring(store, 'claimed');
      const heir = duplicateOf(owner);
      expect(await untilNot('in_flight', () => other.claim(heir))).toEqual({
        kind: 'claimed',
        tookOver: true,
      });
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(LEASE.leaseMs - 1);
      expect(await store.get(owner.scope)).toMatchObject({ state: 'claimed', token: heir.token });
    });

    it('and wakes up after somebody took over, all it writes is stale', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'claimed');
      const heir = duplicateOf(owner);
      await until(async () => (await other.claim(heir)).kind === 'claimed');
      expect(await store.begin(owner)).toBe('stale');
      expect(await store.renew(owner)).toBe('stale');
      expect(await store.settle(owner, paid('late'))).toBe('stale');
      expect(await store.markInDoubt(owner)).toBe('stale');
      expect(await store.release(owner)).toBe('stale');
      expect(await other.begin(heir)).toBe('ok');
      expect(await other.settle(heir, paid('heir'))).toBe('ok');
      expect(await store.claim(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement: paid('heir') });
    });

    it('and who took over has gone too, the next one takes over from there', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open(LEASE);
      const owner = await bring(store, 'claimed');
      const [heir, next] = [duplicateOf(owner), duplicateOf(owner)];
      await until(async () => (await store.claim(heir)).kind === 'claimed');
      const takenMs = performance.now();
      await until(async () => (await store.claim(next)).kind === 'claimed');
      // Some of the lease had run before the answer to the first takeover was here.
      expect(performance.now() - takenMs).toBeGreaterThan(LEASE.leaseMs / 2);
      expect(await store.begin(heir)).toBe('stale');
      expect(await store.begin(next)).toBe('ok');
    });

    it('but nobody took over, it begins: its claim still stands', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ leaseMs: 50 });
      const owner = await bring(store, 'claimed');
      const control = await bring(store, 'claimed');
      await until(async () => (await store.claim(duplicateOf(control))).kind === 'claimed');
      expect(await store.begin(owner)).toBe('ok');
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', token: owner.token });
    });

    it('after it began, the scope is in doubt and stays so', async () => {
      await using nodes = new Nodes(backend);
      let wallMs = 1_700_000_000_000;
      const ticking = { ...systemClock, wallMs: () => (wallMs += 1000) };
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE, ticking)];
      const startedMs = performance.now();
      const owner = await bring(store, 'executing');
      const claim = await untilNot('in_flight', () => other.claim(duplicateOf(owner)));
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(LEASE.leaseMs - 1);
      const stands = await store.get(owner.scope);
      expect(stands).toMatchObject({ state: 'in_doubt', token: owner.token });
      // The time that this answer gives is the one that all later ones will give.
      expect(claim).toEqual({ kind: 'in_doubt', sinceMs: stands?.changedAtMs });
      await sleep(2 * LEASE.leaseMs);
      expect(await store.claim(duplicateOf(owner))).toEqual({
        kind: 'in_doubt',
        sinceMs: stands?.changedAtMs,
      });
      expect(await store.get(owner.scope)).toEqual(stands);
    });

    it('after it began, and wakes up, it settles what is in doubt', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'executing');
      await until(async () => (await other.claim(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.begin(owner)).toBe('stale');
      expect(await store.settle(owner, paid('late'))).toBe('ok');
      expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement: paid('late') });
    });

    it('is not so while it renews', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1500;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const [owner, silent] = [await bring(store, 'executing'), await bring(store, 'executing')];
      const renewals: unknown[] = [];
      await until(async () => {
        renewals.push(await store.renew(owner));
        expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
        await sleep(leaseMs / 20);
        return (await other.claim(duplicateOf(silent))).kind === 'in_doubt';
      });
      expect(new Set(renewals)).toEqual(new Set(['ok']));
      expect(await store.settle(owner, paid())).toBe('ok');
    });

    it('and its lease lapsed, but nobody asked, a renewal takes the lease again and tells', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1000;
      const store = await nodes.open({ leaseMs });
      const [owner, silent] = [await bring(store, 'executing'), await bring(store, 'executing')];
      await until(async () => (await store.claim(duplicateOf(silent))).kind === 'in_doubt');
      expect(await store.renew(owner)).toBe('lost');
      await until(async () => (await store.renew(owner)) === 'ok');
      expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    });

    it.each([-HOUR_MS, HOUR_MS])('is not judged by a wall clock that jumps by %i ms', async (jumpMs) => {
      await using nodes = new Nodes(backend);
      const jumped = { ...systemClock, wallMs: () => Date.now() + jumpMs };
      const store = await nodes.open({ retentionMs: HOUR_MS / 2 });
      const owners = await Promise.all(
        (['claimed', 'executing', 'settled'] as const).map((stage) => bring(store, stage)),
      );
      const later = await nodes.open({ retentionMs: HOUR_MS / 2 }, jumped);
      const claims = await Promise.all(owners.map((owner) => later.claim(duplicateOf(owner))));
      expect(claims.map(({ kind }) => kind)).toEqual(['in_flight', 'in_flight', 'settled']);
    });
  });
}
