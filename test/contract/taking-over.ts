import { describe, expect, it } from 'vitest';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, type Stage } from './states.ts';

const RACERS = 32;
const elsewhere: Stage[] = ['claimed', 'executing', 'settled'];

export function takingOver(backend: Backend): void {
  describe('taking over what is in doubt', () => {
    it('makes the heir the one who executes, and whatever the first one writes is stale', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const first = await bring(store, 'in_doubt');
      const heir = duplicateOf(first);
      const before = await store.get(first.scope);
      expect(await other.takeOver(heir, heir.fingerprint)).toBe('ok');
      const stands = await store.get(first.scope);
      expect(stands).toEqual({
        ...before,
        state: 'executing',
        token: heir.token,
        changedAtMs: stands?.changedAtMs,
      });
      expect(await store.settle(first, paid('first'))).toBe('stale');
      expect(await store.release(first)).toBe('stale');
      expect(await store.renew(first)).toBe('stale');
      expect(await store.markInDoubt(first)).toBe('stale');
      expect(await store.claim(duplicateOf(first))).toEqual({ kind: 'in_flight' });
      expect(await other.settle(heir, paid('heir'))).toBe('ok');
      expect(await store.claim(duplicateOf(first))).toEqual({ kind: 'settled', settlement: paid('heir') });
    });

    it('is answered ok again when its answer was lost, and takes over once', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const first = await bring(store, 'in_doubt');
      const heir = duplicateOf(first);
      for (const _ of ['sent', 'sent again']) expect(await store.takeOver(heir, heir.fingerprint)).toBe('ok');
      expect(await store.settle(heir, paid())).toBe('ok');
      expect(await store.takeOver(heir, heir.fingerprint)).toBe('changed');
    });

    it('can be done again when the heir ends in doubt as well', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const first = await bring(store, 'in_doubt');
      const [heir, next] = [duplicateOf(first), duplicateOf(first)];
      expect(await store.takeOver(heir, heir.fingerprint)).toBe('ok');
      expect(await store.takeOver(next, next.fingerprint)).toBe('changed');
      expect(await store.markInDoubt(heir)).toBe('ok');
      expect(await store.takeOver(next, next.fingerprint)).toBe('ok');
      expect(await store.settle(heir, paid('heir'))).toBe('stale');
    });

    it.each(elsewhere)('changes nothing where the scope is %s', async (stage) => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const first = await bring(store, stage);
      const before = await store.get(first.scope);
      expect(await store.takeOver(duplicateOf(first), first.fingerprint)).toBe('changed');
      expect(await store.get(first.scope)).toEqual(before);
    });

    it('changes nothing where nothing stands, or another request', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const absent = newRequest();
      expect(await store.takeOver(absent, absent.fingerprint)).toBe('changed');
      expect(await store.get(absent.scope)).toBeUndefined();
      const first = await bring(store, 'in_doubt');
      const other = otherOf(first);
      const before = await store.get(first.scope);
      expect(await store.takeOver(other, other.fingerprint)).toBe('changed');
      expect(await store.get(first.scope)).toEqual(before);
    });

    it('has one winner among many', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const first = await bring(store, 'in_doubt');
      const heirs = Array.from({ length: RACERS }, () => duplicateOf(first));
      const answers = await Promise.all(
        heirs.map((heir, number) => (number % 2 ? store : other).takeOver(heir, heir.fingerprint)),
      );
      expect(answers.filter((answer) => answer === 'ok')).toHaveLength(1);
      const winner = heirs[answers.indexOf('ok')];
      expect((await store.get(first.scope))?.token).toEqual(winner?.token);
    });

    it('or the late settlement of the first one comes first: never both', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owners = await Promise.all(Array.from({ length: RACERS }, () => bring(store, 'in_doubt')));
      await Promise.all(
        owners.map(async (owner, number) => {
          const heir = duplicateOf(owner);
          const settle = () => store.settle(owner, paid('late'));
          const takeOver = () => other.takeOver(heir, heir.fingerprint);
          const answers = await Promise.all(number % 2 ? [settle(), takeOver()] : [takeOver(), settle()]);
          expect(answers.filter((answer) => answer === 'ok')).toHaveLength(1);
        }),
      );
    });

    it('gives the heir a lease: when it has gone, the scope is in doubt again, and not before', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 400;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const first = await bring(store, 'in_doubt');
      const takenMs = performance.now();
      const heir = duplicateOf(first);
      expect(await store.takeOver(heir, heir.fingerprint)).toBe('ok');
      await until(async () => (await other.claim(duplicateOf(first))).kind === 'in_doubt');
      expect(performance.now() - takenMs).toBeGreaterThanOrEqual(leaseMs - 1);
      expect(await store.settle(heir, paid('heir'))).toBe('ok');
    });

    it('does not extend the retention', async () => {
      await using nodes = new Nodes(backend);
      const retentionMs = 1500;
      const store = await nodes.open({ retentionMs });
      const startedMs = performance.now();
      const first = await bring(store, 'in_doubt');
      await until(() => performance.now() - startedMs > retentionMs / 2);
      expect(await store.takeOver(duplicateOf(first), first.fingerprint)).toBe('ok');
      await until(async () => (await store.get(first.scope)) === undefined);
      expect(performance.now() - startedMs).toBeLessThan(retentionMs * 1.4);
    });

    it('called in doubt by others: its owner learns by its renewal that the lease was lost', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 300;
      const [store, other] = [await nodes.open({ leaseMs }), await nodes.open({ leaseMs })];
      const paused = await bring(store, 'executing');
      await until(async () => (await other.claim(duplicateOf(paused))).kind === 'in_doubt');
      expect(await store.renew(paused)).toBe('lost');
    });
  });
}
