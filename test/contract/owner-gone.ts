import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/kernel/clock.ts';
import { duplicateOf, otherOf, paid } from '../support/requests.ts';
import { until, untilNot } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';

const LEASE = { leaseMs: 200 };
const HOUR_MS = 3_600_000;

export function ownerGone(backend: Backend): void {
  describe.concurrent('when the owner is dead', () => {
    it('a start marks the scope in doubt once the lease is over, and it stays so', async () => {
      await using nodes = new Nodes(backend);
      let wallMs = 1_700_000_000_000;
      const ticking = { ...systemClock, wallMs: () => (wallMs += 1000) };
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE, ticking)];
      const startedMs = performance.now();
      const owner = await bring(store, 'executing');
      const answer = await untilNot('in_flight', () => other.start(duplicateOf(owner)));
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(LEASE.leaseMs - 1);
      const record = await store.get(owner.scope);
      expect(record).toMatchObject({ state: 'in_doubt', token: owner.token, wasInDoubt: true });
      // The time in this answer is the one that all later answers give.
      const { operation, requestId } = owner;
      const expected = { kind: 'in_doubt', sinceMs: record?.changedAtMs, operation, requestId };
      expect(answer).toEqual(expected);
      await sleep(2 * LEASE.leaseMs);
      expect(await store.start(duplicateOf(owner))).toEqual(expected);
      expect(await store.peek(duplicateOf(owner))).toEqual(expected);
      expect(await store.get(owner.scope)).toEqual(record);
    });

    it('a peek says that the scope is in doubt, and leaves it executing', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const startedMs = performance.now();
      const owner = await bring(store, 'executing');
      const before = await store.get(owner.scope);
      const answer = await untilNot('in_flight', () => other.peek(duplicateOf(owner)));
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(LEASE.leaseMs - 1);
      const { operation, requestId } = owner;
      expect(answer).toEqual({ kind: 'in_doubt', sinceMs: before?.changedAtMs, operation, requestId });
      expect(await other.peek(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await store.get(owner.scope)).toEqual(before);
    });

    it('the complete of an owner who wakes up heals what is in doubt', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'executing');
      await until(async () => (await other.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.complete(owner, paid('late'))).toBe('ok');
      expect(await other.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
      expect(await other.get(owner.scope)).toMatchObject({ state: 'completed', wasInDoubt: true });
    });

    it('a complete after the lease lapsed counts as having been in doubt, though no start marked it', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'executing');
      await until(async () => (await other.peek(owner)).kind === 'in_doubt');
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', wasInDoubt: false });
      expect(await store.complete(owner, paid('late'))).toBe('ok');
      expect(await other.get(owner.scope)).toMatchObject({ state: 'completed', wasInDoubt: true });
      expect(await other.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
    });

    it('its release still frees the scope, if no other owner has it', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'executing');
      await until(async () => (await other.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.release(owner)).toBe('ok');
      expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'started' });
    });

    it('a start does not think so while the owner renews', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1500;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const [owner, silent] = [await bring(store, 'executing'), await bring(store, 'executing')];
      const renewals: unknown[] = [];
      await until(async () => {
        renewals.push(await store.renew(owner));
        expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
        await sleep(leaseMs / 20);
        return (await other.start(duplicateOf(silent))).kind === 'in_doubt';
      });
      // It started before the silent one, so it is older than a lease.
      expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      expect(await other.peek(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      expect(new Set(renewals)).toEqual(new Set(['ok']));
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.get(owner.scope)).toMatchObject({ wasInDoubt: false });
    });

    it('and no start has found it, a renewal takes the lease again and says that it was lost', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1000;
      const store = await nodes.open({ leaseMs });
      const owner = await bring(store, 'executing');
      await until(async () => (await store.peek(owner)).kind === 'in_doubt');
      expect(await store.renew(owner)).toBe('lost');
      await until(async () => (await store.renew(owner)) === 'ok');
      expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      // Others may have read it as in doubt meanwhile.
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.get(owner.scope)).toMatchObject({ state: 'completed', wasInDoubt: true });
    });

    it('and a start has marked it, the owner’s renewal says that the lease was lost', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 300;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const paused = await bring(store, 'executing');
      await until(async () => (await other.start(duplicateOf(paused))).kind === 'in_doubt');
      expect(await store.renew(paused)).toBe('lost');
      expect((await other.start(duplicateOf(paused))).kind).toBe('in_doubt');
    });

    it.each([-HOUR_MS, HOUR_MS])('no wall clock decides that, even if it jumps by %i ms', async (jumpMs) => {
      await using nodes = new Nodes(backend);
      const jumped = { ...systemClock, wallMs: () => Date.now() + jumpMs };
      const times = { retentionMs: HOUR_MS / 2, inDoubtRetentionMs: HOUR_MS / 2 };
      const store = await nodes.open(times);
      const owners = await Promise.all(
        (['executing', 'in_doubt', 'completed'] as const).map((stage) => bring(store, stage)),
      );
      const later = await nodes.open(times, jumped);
      const expected = ['in_flight', 'in_doubt', 'completed'];
      for (const command of ['peek', 'start'] as const) {
        const answers = await Promise.all(owners.map((owner) => later[command](duplicateOf(owner))));
        expect(answers.map(({ kind }) => kind)).toEqual(expected);
      }
    });
  });
}
