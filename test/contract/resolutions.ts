import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { systemClock } from '../../src/lib/clock.ts';
import type { Completion } from '../../src/lib/exchange.ts';
import type { Execution, Resolution } from '../../src/store/contract.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { ownersWrites, write } from './fencing.ts';
import { all } from './listing.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, replayOf, type Stage } from './states.ts';

const completed = (completion: Completion = paid('by hand')): Resolution => ({ as: 'completed', completion });
const released: Resolution = { as: 'released' };
const note = { by: 'ada', reason: 'the backend’s books show it' };

/** A round trip to Redis takes some turns of the event loop. */
const TURNS = 10;

/** Resolves under the owner's token. */
const resolve = (store: Store, { scope, token }: Execution, resolution: Resolution) =>
  store.resolve(scope, token, resolution, note);

export function resolutions(backend: Backend): void {
  describe('a resolution', () => {
    it.each<[string, Completion]>([
      ['a response', paid('by hand')],
      ['a tombstone', { kind: 'tombstone', status: 201 }],
      ['a tombstone without a status', { kind: 'tombstone', status: 0 }],
    ])('completes a record in doubt with %s, under a new token', async (_, completion) => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'in_doubt');
      const before = await store.get(owner.scope);
      expect(await resolve(other, owner, completed(completion))).toBe('ok');
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(completion, owner));
      const record = await store.get(owner.scope);
      expect(record).toEqual({
        ...before,
        ...{ state: 'completed', wasInDoubt: true, completion },
        token: record?.token,
        ...{ changedAtMs: record?.changedAtMs, revision: expect.any(Buffer) },
      });
      expect(record?.token).toHaveLength(owner.token.length);
      expect(record?.token.equals(owner.token)).toBe(false);
      for (const name of ownersWrites) expect(await write(store, name, owner)).toBe('stale');
      expect(await store.get(owner.scope)).toEqual(record);
    });

    it('uses another token each time', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const tokens = new Set<string>();
      for (let times = 0; times < 5; times++) {
        const owner = await bring(store, 'in_doubt');
        expect(await resolve(store, owner, completed())).toBe('ok');
        tokens.add((await store.get(owner.scope))?.token.toString('hex') ?? '');
      }
      expect(tokens.size).toBe(5);
    });

    it('releases a record in doubt: the next request starts, and a late owner cannot overwrite it', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'in_doubt');
      expect(await resolve(store, owner, released)).toBe('ok');
      expect(await store.get(owner.scope)).toBeUndefined();
      expect(await resolve(store, owner, completed())).toBe('changed');
      for (const name of ownersWrites.filter((each) => each !== 'complete'))
        expect(await write(store, name, owner)).toBe('stale');
      const next = { ...newRequest(), scope: owner.scope };
      expect(await store.start(next)).toEqual({ kind: 'started' });
      for (const name of ownersWrites) expect(await write(store, name, owner)).toBe('stale');
      expect(await resolve(store, owner, completed())).toBe('changed');
      expect(await store.get(owner.scope)).toMatchObject({ state: 'executing', token: next.token });
    });

    it('as released is undone by a late complete that comes before the next request', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = await bring(store, 'in_doubt');
      expect(await resolve(store, owner, released)).toBe('ok');
      expect(await store.complete(owner, paid('late'))).toBe('ok');
      expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid('late'), owner));
    });

    it.each<[Stage | 'absent', string]>([
      ['absent', 'changed'],
      ['executing', 'alive'],
      ['completed', 'changed'],
    ])('of a scope that is %s answers %s, and writes nothing', async (stage, answer) => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      const owner = stage === 'absent' ? newRequest() : await bring(store, stage);
      const before = await store.get(owner.scope);
      for (const resolution of [completed(), released])
        expect(await resolve(store, owner, resolution)).toBe(answer);
      expect(await store.get(owner.scope)).toEqual(before);
      expect(await store.audit(owner.scope)).toEqual([]);
    });

    it('under another token than that of the record answers changed, and writes nothing', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      for (const stage of ['executing', 'in_doubt'] as const) {
        const owner = await bring(store, stage);
        for (const resolution of [completed(), released])
          expect(await resolve(store, duplicateOf(owner), resolution)).toBe('changed');
        expect(await store.get(owner.scope)).toMatchObject({ state: stage, token: owner.token });
        expect(await store.audit(owner.scope)).toEqual([]);
      }
    });

    it.each([completed(), released])(
      '($as) of an executing record answers alive until its owner is dead',
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
        const record = await store.get(owner.scope);
        if (resolution.as === 'released') expect(record).toBeUndefined();
        else expect(record).toMatchObject({ state: 'completed', wasInDoubt: true });
      },
    );

    it('does not wait for the lease of a dead owner whose scope was marked in doubt', async () => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open({ leaseMs: 300 });
      const owner = await bring(store, 'executing');
      await until(async () => (await store.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await resolve(store, owner, released)).toBe('ok');
      expect(await store.audit(owner.scope)).toMatchObject([{ from: { state: 'in_doubt' } }]);
    });

    it('answers alive while an owner that had counted as dead renews again, until it gives up', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1500;
      const store = await nodes.open({ leaseMs });
      const owner = await bring(store, 'executing');
      await until(async () => (await store.start(duplicateOf(owner))).kind === 'in_doubt');
      expect(await store.renew(owner)).toBe('lost');
      await until(async () => (await store.renew(owner)) === 'ok');
      expect(await resolve(store, owner, released)).toBe('alive');
      // The mark of an owner that then gives up once had no effect, because the key counted as in doubt already.
      expect(await store.markInDoubt(owner)).toBe('ok');
      expect(await resolve(store, owner, released)).toBe('ok');
    });

    it('answers alive while the owner of a restart renews again, even if the first owner had given up', async () => {
      await using nodes = new Nodes(backend);
      const leaseMs = 1500;
      const store = await nodes.open({ leaseMs });
      const successor = duplicateOf(await bring(store, 'in_doubt'));
      expect(await store.restart(successor)).toBe('ok');
      expect(await resolve(store, successor, released)).toBe('alive');
      await until(async () => (await store.start(duplicateOf(successor))).kind === 'in_doubt');
      expect(await store.renew(successor)).toBe('lost');
      await until(async () => (await store.renew(successor)) === 'ok');
      expect(await resolve(store, successor, released)).toBe('alive');
      expect(await store.markInDoubt(successor)).toBe('ok');
      expect(await resolve(store, successor, released)).toBe('ok');
    });

    it('has one winner among many, and one audit record', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owner = await bring(store, 'in_doubt');
      const answers = await Promise.all(
        Array.from({ length: 20 }, (_, number) =>
          resolve(number % 2 ? store : other, owner, number % 3 ? completed(paid(`${number}`)) : released),
        ),
      );
      expect(answers.toSorted()).toEqual([...Array(19).fill('changed'), 'ok']);
      const record = await store.get(owner.scope);
      const winner = answers.indexOf('ok');
      expect(record?.completion).toEqual(winner % 3 ? paid(`${winner}`) : undefined);
      expect(await store.audit(owner.scope)).toHaveLength(1);
    });

    it('and a late complete have one winner', async () => {
      await using nodes = new Nodes(backend);
      const [store, other] = [await nodes.open(), await nodes.open()];
      const owners = await Promise.all(Array.from({ length: 40 }, () => bring(store, 'in_doubt')));
      await Promise.all(
        owners.map(async (owner, number) => {
          // Some of the completes arrive between the two commands of a resolution on Redis.
          const complete = async () => {
            for (let turn = 0; turn < number % TURNS; turn++) await nextTurn();
            return await store.complete(owner, paid('late'));
          };
          const byHand = resolve(other, owner, completed());
          const [late, hand] = await Promise.all([complete(), byHand]);
          expect([late, hand]).toEqual(late === 'ok' ? ['ok', 'changed'] : ['stale', 'ok']);
          const completion = late === 'ok' ? paid('late') : paid('by hand');
          expect(await store.start(duplicateOf(owner))).toEqual(replayOf(completion, owner));
          expect(await store.audit(owner.scope)).toHaveLength(hand === 'ok' ? 1 : 0);
        }),
      );
    });

    it('leaves an audit record: who, when, why, the record before and what it became', async () => {
      await using nodes = new Nodes(backend, { alone: true });
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
      const again = duplicateOf(request);
      await bring(store, 'in_doubt', again);
      wallMs += 5000;
      expect(await resolve(store, again, completed())).toBe('ok');
      const { merchant, operation, key } = request;
      const from = { state: 'in_doubt', merchant, operation, key };
      const [createdAtMs, laterMs] = [wallMs - 10_000, wallMs - 5000];
      expect(await other.audit(request.scope)).toEqual([
        {
          ...{ atMs: laterMs, by: 'grace', reason: 'a', to: { as: 'released' } },
          from: { ...from, requestId: request.requestId, createdAtMs, changedAtMs: createdAtMs },
        },
        {
          ...{ atMs: wallMs, ...note, to: { as: 'completed', kind: 'response', status: 201 } },
          from: { ...from, requestId: again.requestId, createdAtMs: laterMs, changedAtMs: laterMs },
        },
      ]);
      expect(await other.audit(newRequest().scope)).toEqual([]);
      const { records } = await all(other, { inDoubt: false });
      expect(records.map(({ scope }) => scope)).toEqual([request.scope]);
    });

    it('restarts the lifetime of the record, and its audit record is kept longer', async () => {
      await using nodes = new Nodes(backend);
      const inDoubtRetentionMs = 4000;
      const store = await nodes.open({ inDoubtRetentionMs, retentionMs: 100 });
      const [owner, control] = [await bring(store, 'in_doubt'), await bring(store, 'in_doubt')];
      await sleep(600);
      const resolvedMs = performance.now();
      expect(await resolve(store, owner, completed())).toBe('ok');
      await until(async () => (await store.get(control.scope)) === undefined);
      await until(async () => (await store.get(owner.scope)) === undefined);
      expect(performance.now() - resolvedMs).toBeGreaterThanOrEqual(inDoubtRetentionMs - 1);
      expect(await store.audit(owner.scope)).toMatchObject([note]);
    });
  });
}
