import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Settlement } from '../../src/idempotency/record.ts';
import type { Resolution } from '../../src/idempotency/resolution.ts';
import type { ClaimRequest, Store } from '../../src/idempotency/store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { all } from './listing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, type Stage } from './states.ts';

const settled = (settlement: Settlement = paid('by hand')): Resolution => ({ as: 'settled', settlement });
const released: Resolution = { as: 'released' };
const note = { by: 'ada', reason: 'the backend’s books show it' };

/** Under the token that stands there now. */
const resolve = (store: Store, { scope, token }: ClaimRequest, resolution: Resolution) =>
  store.resolve(scope, token, resolution, note);

export function resolutions(backend: Backend): void {
  describe('a resolution', () => {
    it.each<[string, Settlement]>([
      ['a response', paid('by hand')],
      ['a tombstone', { kind: 'tombstone', status: 201 }],
    ])('settles what is in doubt with %s, under a new token', async (_, settlement) => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'in_doubt');
      expect(await resolve(other, owner, settled(settlement))).toBe('ok');
      expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement });
      const stands = await store.get(owner.scope);
      expect(stands).toMatchObject({ state: 'settled', merchant: owner.merchant, key: owner.key });
      expect(stands?.token.equals(owner.token)).toBe(false);
      for (const write of ['begin', 'renew', 'settle', 'release', 'markInDoubt'] as const)
        expect(await store[write](owner, paid('late'))).toBe('stale');
      expect(await store.get(owner.scope)).toEqual(stands);
    });

    it('releases what is in doubt: the next request executes, and a late owner writes nothing', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'in_doubt');
      expect(await resolve(store, owner, released)).toBe('ok');
      expect(await store.get(owner.scope)).toBeUndefined();
      expect(await store.settle(owner, paid('late'))).toBe('stale');
      const next = { ...newRequest(), scope: owner.scope };
      expect(await store.claim(next)).toEqual({ kind: 'claimed', tookOver: false });
      expect(await resolve(store, owner, settled())).toBe('changed');
    });

    it.each<[Stage | 'absent', string]>([
      ['absent', 'changed'],
      ['claimed', 'alive'],
      ['executing', 'alive'],
      ['settled', 'changed'],
    ])('of a scope that is %s is %s, and writes nothing', async (stage, answer) => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = stage === 'absent' ? newRequest() : await bring(store, stage);
      const before = await store.get(owner.scope);
      for (const resolution of [settled(), released])
        expect(await resolve(store, owner, resolution)).toBe(answer);
      expect(await store.get(owner.scope)).toEqual(before);
      expect(await store.audit(owner.scope)).toEqual([]);
    });

    it('under another token than the one that stands is changed, and writes nothing', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'in_doubt');
      for (const resolution of [settled(), released])
        expect(await resolve(store, duplicateOf(owner), resolution)).toBe('changed');
      expect(await store.get(owner.scope)).toMatchObject({ state: 'in_doubt', token: owner.token });
      expect(await store.audit(owner.scope)).toEqual([]);
    });

    it.each([settled(), released])(
      '($as) of an execution waits until its owner is gone',
      async (resolution) => {
        await using nodes = new Nodes(backend);
        const leaseMs = 300;
        const store = await nodes.open({ leaseMs });
        const startedMs = performance.now();
        const owner = await bring(store, 'executing');
        const answer = await until(async () => {
          const resolved = await resolve(store, owner, resolution);
          return resolved === 'alive' ? undefined : resolved;
        });
        expect(answer).toBe('ok');
        expect(performance.now() - startedMs).toBeGreaterThanOrEqual(leaseMs - 1);
        expect(await store.audit(owner.scope)).toMatchObject([{ from: { state: 'executing' } }]);
      },
    );

    it('waits while an owner who was taken for gone has woken up and renews', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1000;
      const store = await nodes.open({ leaseMs });
      const owner = await bring(store, 'executing');
      await until(async () => (await store.claim(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.renew(owner)).toBe('lost');
      await until(async () => (await store.renew(owner)) === 'ok');
      expect(await resolve(store, owner, released)).toBe('alive');
      expect(await store.settle(owner, paid('late'))).toBe('ok');
    });

    it('at once with others has one winner, and one audit record', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'in_doubt');
      const answers = await Promise.all(
        Array.from({ length: 20 }, (_, number) =>
          resolve(number % 2 ? store : other, owner, number % 3 ? settled(paid(`${number}`)) : released),
        ),
      );
      expect(answers.toSorted()).toEqual([...Array(19).fill('changed'), 'ok']);
      const stands = await store.get(owner.scope);
      const winner = answers.indexOf('ok');
      expect(stands?.settlement).toEqual(winner % 3 ? paid(`${winner}`) : undefined);
      expect(await store.audit(owner.scope)).toHaveLength(1);
    });

    it('at once with its late owner has one winner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owners = await Promise.all(Array.from({ length: 40 }, () => bring(store, 'in_doubt')));
      await Promise.all(
        owners.map(async (owner, number) => {
          const settle = () => store.settle(owner, paid('late'));
          const byHand = () => resolve(other, owner, settled());
          const [first, second] = number % 2 ? [settle, byHand] : [byHand, settle];
          const answers = await Promise.all([first(), second()]);
          const [late, hand] = number % 2 ? answers : answers.toReversed();
          expect([late, hand]).toEqual(late === 'ok' ? ['ok', 'changed'] : ['stale', 'ok']);
          const settlement = late === 'ok' ? paid('late') : paid('by hand');
          expect(await store.claim(duplicateOf(owner))).toEqual({ kind: 'settled', settlement });
          expect(await store.audit(owner.scope)).toHaveLength(hand === 'ok' ? 1 : 0);
        }),
      );
    });

    it('leaves an audit record: who, when, why, what stood there and what it became', async () => {
      await using nodes = new Nodes(backend);
      let wallMs = 1_700_000_000_000;
      const [store, other] = [
        await nodes.open({}, { ...systemClock, wallMs: () => wallMs }),
        await nodes.open(),
      ];
      const request = newRequest({ merchant: 'M-Zoë', key: 'order 1001' });
      await bring(store, 'in_doubt', request);
      wallMs += 5000;
      expect(await store.resolve(request.scope, request.token, released, { by: 'grace', reason: 'a' })).toBe(
        'ok',
      );
      const again = { ...duplicateOf(request) };
      await bring(store, 'in_doubt', again);
      wallMs += 5000;
      expect(await resolve(store, again, settled())).toBe('ok');
      const { merchant, operation, key } = request;
      const from = { state: 'in_doubt', merchant, operation, key };
      const [createdAtMs, laterMs] = [wallMs - 10_000, wallMs - 5000];
      expect(await other.audit(request.scope)).toEqual([
        {
          ...{ atMs: laterMs, by: 'grace', reason: 'a', to: { as: 'released' } },
          from: { ...from, createdAtMs, changedAtMs: createdAtMs },
        },
        {
          ...{ atMs: wallMs, ...note, to: { as: 'settled', kind: 'response', status: 201 } },
          from: { ...from, createdAtMs: laterMs, changedAtMs: laterMs },
        },
      ]);
      expect(await other.audit(newRequest().scope)).toEqual([]);
      const { records } = await all(other, { inDoubt: false });
      expect(records.map(({ scope }) => scope)).toEqual([request.scope]);
    });

    it('does not lengthen the retention, and its audit record outlives it', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ retentionMs: 1000 });
      const [owner, control] = [await bring(store, 'in_doubt'), await bring(store, 'in_doubt')];
      await sleep(400);
      expect(await resolve(store, owner, settled())).toBe('ok');
      await until(async () => (await store.get(control.scope)) === undefined);
      expect(await store.get(owner.scope)).toBeUndefined();
      expect(await store.audit(owner.scope)).toMatchObject([note]);
    });
  });
}
