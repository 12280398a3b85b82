import { describe, expect, it } from 'vitest';
import { scopeOf } from '../../src/idempotency/fingerprint.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, stages } from './states.ts';

export function claims(backend: Backend): void {
  describe('a claim', () => {
    it('takes a scope where nothing stands', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      expect(await store.claim(newRequest())).toEqual({ kind: 'claimed', tookOver: false });
    });

    it.each(['claimed', 'executing'] as const)('of a scope that is %s is in flight', async (stage) => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, stage);
      expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
      expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    });

    it('of a scope in doubt tells since when', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const before = Date.now();
      const owner = await bring(store, 'in_doubt');
      const claim = await other.claim(duplicateOf(owner));
      expect(claim).toEqual({ kind: 'in_doubt', sinceMs: (await store.get(owner.scope))?.changedAtMs });
      expect(claim.kind === 'in_doubt' && claim.sinceMs).toBeGreaterThanOrEqual(before);
    });

    it.each(stages)('of a scope that is %s by another request is a mismatch', async (stage) => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, stage);
      expect(await store.claim(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await store.get(owner.scope)).toMatchObject({ state: stage, token: owner.token });
    });

    it('by another request never takes over', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ leaseMs: 20 });
      const owner = await bring(store, 'claimed');
      const control = await bring(store, 'claimed');
      await until(async () => (await store.claim(duplicateOf(control))).kind === 'claimed');
      expect(await store.claim(otherOf(owner))).toEqual({ kind: 'mismatch' });
      expect(await store.get(owner.scope)).toMatchObject({ token: owner.token });
    });

    it('leaves a record that names merchant, operation, key and times', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const request = newRequest({ merchant: 'M-Zoë', operation: 'checkout', key: '~'.repeat(255) });
      const before = Date.now();
      await bring(store, 'claimed', request);
      const { scope, ...head } = request;
      const claimed = await other.get(scope);
      const createdAtMs = claimed?.createdAtMs ?? 0;
      expect(claimed).toEqual({ ...head, state: 'claimed', createdAtMs, changedAtMs: createdAtMs });
      expect(createdAtMs).toBeGreaterThanOrEqual(before);
      expect(createdAtMs).toBeLessThanOrEqual(Date.now());
    });

    it('counts the time of each change of state, and keeps the time of the claim', async () => {
      await using nodes = new Nodes(backend);
      let wallMs = 1_700_000_000_000;
      const store = await nodes.open({}, { ...systemClock, wallMs: () => wallMs });
      const request = await bring(store, 'claimed');
      const seen: unknown[] = [];
      for (const write of ['begin', 'markInDoubt', 'settle'] as const) {
        wallMs += 1000;
        expect(await store[write](request, paid())).toBe('ok');
        seen.push(await store.get(request.scope));
      }
      const createdAtMs = 1_700_000_000_000;
      expect(seen).toMatchObject([
        { state: 'executing', createdAtMs, changedAtMs: createdAtMs + 1000 },
        { state: 'in_doubt', createdAtMs, changedAtMs: createdAtMs + 2000 },
        { state: 'settled', createdAtMs, changedAtMs: createdAtMs + 3000 },
      ]);
    });

    it('does not meet the records of other scopes', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const requests = [
        newRequest({ merchant: 'ab', key: 'c' }),
        newRequest({ merchant: 'a', key: 'bc' }),
        newRequest({ merchant: 'abc', key: 'x' }),
        newRequest({ merchant: 'M-2', key: 'x' }),
      ];
      for (const [number, request] of requests.entries()) {
        await bring(store, 'executing', request);
        await store.settle(request, paid(`p-${number}`));
      }
      for (const [number, request] of requests.entries()) {
        const { merchant, key } = request;
        expect(await store.get(scopeOf(merchant, key))).toMatchObject({ merchant, key });
        expect(await store.claim(duplicateOf(request))).toEqual({
          kind: 'settled',
          settlement: paid(`p-${number}`),
        });
      }
      expect(await store.get(scopeOf('ab', 'C'))).toBeUndefined();
    });
  });
}
