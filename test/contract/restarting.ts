import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { until, untilNot } from '../support/until.ts';
import { ownersWrites, write } from './fencing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf } from './states.ts';

const RACERS = 32;

export function restarting(backend: Backend): void {
  describe('a restart of a record in doubt', () => {
    it('makes the new execution the owner, and every write of the first owner stale', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const other = await nodes.open({}, systemClock, 'gateway-2');
      const first = await bring(store, 'in_doubt');
      const successor = duplicateOf(first);
      const before = await store.get(first.scope);
      expect(await other.restart(successor)).toBe('ok');
      const record = await store.get(first.scope);
      // The first request's id, the creation time and the lifetimes do not change.
      const restarted = { restarted: true, ownerGaveUp: false };
      expect(record).toMatchObject({
        ...before,
        ...{ state: 'executing', token: successor.token, gatewayId: 'gateway-2', wasInDoubt: true },
        ...{ ...restarted, changedAtMs: record?.changedAtMs, revision: expect.any(Buffer) },
      });
      expect(record?.requestId).toBe(first.requestId);
      for (const name of ownersWrites) expect(await write(store, name, first)).toBe('stale');
      expect(await store.start(duplicateOf(first))).toEqual({ kind: 'in_flight' });
      expect(await other.renew(successor)).toBe('ok');
      expect(await other.complete(successor, paid('successor'))).toBe('ok');
      expect(await store.start(duplicateOf(first))).toEqual(replayOf(paid('successor'), first));
      expect(await store.get(first.scope)).toMatchObject({ wasInDoubt: true, requestId: first.requestId });
    });

    it('sent twice answers ok twice, and restarts once', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const successor = duplicateOf(await bring(store, 'in_doubt'));
      for (const _ of ['sent', 'sent again']) expect(await store.restart(successor)).toBe('ok');
      expect(await store.get(successor.scope)).toMatchObject({ state: 'executing', token: successor.token });
      expect(await store.complete(successor, paid())).toBe('ok');
      expect(await store.restart(successor)).toBe('changed');
    });

    it('can be repeated when the second execution ends in doubt as well', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const first = await bring(store, 'in_doubt');
      const [successor, next] = [duplicateOf(first), duplicateOf(first)];
      expect(await store.restart(successor)).toBe('ok');
      expect(await store.restart(next)).toBe('changed');
      expect(await store.markInDoubt(successor)).toBe('ok');
      expect(await store.restart(next)).toBe('ok');
      expect(await store.complete(successor, paid('successor'))).toBe('stale');
    });

    it.each(['executing', 'completed'] as const)('changes nothing where the scope is %s', async (stage) => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const first = await bring(store, stage);
      const before = await store.get(first.scope);
      expect(await store.restart(duplicateOf(first))).toBe('changed');
      expect(await store.get(first.scope)).toEqual(before);
    });

    it('changes nothing where there is no record, or one with another fingerprint', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const absent = newRequest();
      expect(await store.restart(absent)).toBe('changed');
      expect(await store.get(absent.scope)).toBeUndefined();
      const first = await bring(store, 'in_doubt');
      const before = await store.get(first.scope);
      expect(await store.restart(otherOf(first))).toBe('changed');
      expect(await store.get(first.scope)).toEqual(before);
    });

    it('has one winner among many', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const first = await bring(store, 'in_doubt');
      const successors = Array.from({ length: RACERS }, () => duplicateOf(first));
      const answers = await Promise.all(
        successors.map((successor, number) => (number % 2 ? store : other).restart(successor)),
      );
      expect(answers.filter((answer) => answer === 'ok')).toHaveLength(1);
      const winner = successors[answers.indexOf('ok')];
      expect((await store.get(first.scope))?.token).toEqual(winner?.token);
    });

    it('and a late complete of the first owner: exactly one of the two succeeds', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owners = await Promise.all(Array.from({ length: RACERS }, () => bring(store, 'in_doubt')));
      await Promise.all(
        owners.map(async (owner, number) => {
          const complete = () => store.complete(owner, paid('late'));
          const restart = () => other.restart(duplicateOf(owner));
          const answers = await Promise.all(number % 2 ? [complete(), restart()] : [restart(), complete()]);
          expect(answers.filter((answer) => answer === 'ok')).toHaveLength(1);
        }),
      );
    });

    it('gives the new owner a lease: after it lapses the scope is in doubt again, and not before', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 400;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const first = await bring(store, 'in_doubt');
      const restartedMs = performance.now();
      const successor = duplicateOf(first);
      expect(await store.restart(successor)).toBe('ok');
      const answer = await untilNot('in_flight', () => other.start(duplicateOf(first)));
      expect(answer.kind).toBe('in_doubt');
      expect(performance.now() - restartedMs).toBeGreaterThanOrEqual(leaseMs - 1);
      expect(await store.complete(successor, paid('successor'))).toBe('ok');
    });

    it('makes the renewals of a paused owner stale, even if that owner had renewed again', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1500;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const paused = await bring(store, 'executing');
      await until(async () => (await other.start(duplicateOf(paused))).kind === 'in_doubt');
      expect(await store.renew(paused)).toBe('lost');
      await until(async () => (await store.renew(paused)) === 'ok');
      const successor = duplicateOf(paused);
      expect(await other.restart(successor)).toBe('ok');
      expect(await store.renew(paused)).toBe('stale');
      expect(await other.start(duplicateOf(paused))).toEqual({ kind: 'in_flight' });
      await until(async () => (await other.renew(successor)) === 'ok');
      expect(await other.complete(successor, paid('successor'))).toBe('ok');
    });

    it('that ends in doubt can be resolved at once, even if a paused owner had renewed before', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1500;
      const store = await nodes.open({ leaseMs });
      const paused = await bring(store, 'executing');
      await until(async () => (await store.start(duplicateOf(paused))).kind === 'in_doubt');
      expect(await store.renew(paused)).toBe('lost');
      await until(async () => (await store.renew(paused)) === 'ok');
      const { scope, token } = duplicateOf(paused);
      expect(await store.restart({ ...paused, token })).toBe('ok');
      expect(await store.markInDoubt({ scope, token })).toBe('ok');
      const note = { by: 'ada', reason: 'the books show it' };
      expect(await store.resolve(scope, token, { as: 'released' }, note)).toBe('ok');
    });
  });
}
