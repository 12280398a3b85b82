import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { duplicateOf, otherOf, paid } from '../support/requests.ts';
import { until, untilNot } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';

const LEASE = { leaseMs: 200 };
const HOUR_MS = 3_600_000;

export function ownerLease(backend: Backend): void {
  describe.concurrent('an owner and its lease', () => {
    it('a start after the lease is over marks the scope in doubt, and it stays in doubt', async () => {
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
      // All later answers give the same time.
      const { operation, requestId } = owner;
      const expected = { kind: 'in_doubt', sinceMs: record?.changedAtMs, operation, requestId };
      expect(answer).toEqual(expected);
      await sleep(2 * LEASE.leaseMs);
      expect(await store.start(duplicateOf(owner))).toEqual(expected);
      expect(await store.peek(duplicateOf(owner))).toEqual(expected);
      expect(await store.get(owner.scope)).toEqual(record);
    });

    it('a peek after the lease is over marks the scope in doubt before it answers', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const startedMs = performance.now();
      const owner = await bring(store, 'executing');
      const answer = await untilNot('in_flight', () => other.peek(duplicateOf(owner)));
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(LEASE.leaseMs - 1);
      const { operation, requestId } = owner;
      const record = await store.get(owner.scope);
      expect(record).toMatchObject({ state: 'in_doubt', token: owner.token, wasInDoubt: true });
      expect(answer).toEqual({ kind: 'in_doubt', sinceMs: record?.changedAtMs, operation, requestId });
      expect(await other.peek(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await store.get(owner.scope)).toEqual(record);
    });

    it('a complete after the lease is over completes a record in doubt', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'executing');
      await until(async () => (await other.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.complete(owner, paid('late'))).toBe('ok');
      expect(await other.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
      expect(await other.get(owner.scope)).toMatchObject({ state: 'completed', wasInDoubt: true });
    });

    it('a complete after the lease is over counts as having been in doubt, even if no start marked it', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'executing');
      await sleep(LEASE.leaseMs);
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', wasInDoubt: false });
      expect(await store.complete(owner, paid('late'))).toBe('ok');
      expect(await other.get(owner.scope)).toMatchObject({ state: 'completed', wasInDoubt: true });
      expect(await other.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
    });

    it('a release after the lease is over removes the record, if it has no other owner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(LEASE), await nodes.open(LEASE)];
      const owner = await bring(store, 'executing');
      await until(async () => (await other.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.release(owner)).toBe('ok');
      expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'started' });
    });

    it('a start answers in_flight as long as the owner renews', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 3000;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const [owner, silent] = [await bring(store, 'executing'), await bring(store, 'executing')];
      const renewals: unknown[] = [];
      await until(async () => {
        renewals.push(await store.renew(owner));
        expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
        await sleep(leaseMs / 20);
        return (await other.start(duplicateOf(silent))).kind === 'in_doubt';
      });
      // It started before the silent owner, so it is older than its lease.
      expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      expect(await other.peek(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      expect(new Set(renewals)).toEqual(new Set(['ok']));
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.get(owner.scope)).toMatchObject({ wasInDoubt: false });
    });

    it('a renewal after the lease is over takes the lease again and answers lost', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1000;
      const store = await nodes.open({ leaseMs });
      const owner = await bring(store, 'executing');
      await sleep(leaseMs);
      expect(await store.renew(owner)).toBe('lost');
      await until(async () => (await store.renew(owner)) === 'ok');
      expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      // Other gateways may have answered from the record as in doubt meanwhile.
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.get(owner.scope)).toMatchObject({ state: 'completed', wasInDoubt: true });
    });

    it('a renewal after a start marked the record in doubt answers lost', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 300;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const paused = await bring(store, 'executing');
      await until(async () => (await other.start(duplicateOf(paused))).kind === 'in_doubt');
      expect(await store.renew(paused)).toBe('lost');
      expect((await other.start(duplicateOf(paused))).kind).toBe('in_doubt');
    });

    it.each([-HOUR_MS, HOUR_MS])(
      'a step of the wall clock by %i ms does not change whether it is alive',
      async (jumpMs) => {
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
      },
    );
  });
}
