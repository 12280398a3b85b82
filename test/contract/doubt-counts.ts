import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { type Resolution, UnreadableRecord } from '../../src/store/contract.ts';
import type { DoubtCount } from '../../src/store/doubt-count.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring } from './states.ts';

const note = { by: 'ada', reason: 'the backend’s books show it' };
const NONE = { operations: {}, oldestSinceMs: undefined };

/** Counts now, by another node than the one that wrote. */
export async function counted(store: Store) {
  const { operations, oldestSinceMs, resolutions } = await store.countDoubts();
  return { operations: Object.fromEntries(operations), oldestSinceMs, resolutions };
}

const numbers = ({ resolutions }: Pick<DoubtCount, 'resolutions'>) =>
  resolutions.map(({ as, by, number }) => `${as} ${by} ${number}`).toSorted();

export function doubtCounts(backend: Backend): void {
  describe('a count of the keys in doubt', () => {
    it('has those in doubt and those of dead owners by operation, and since when the oldest is', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const [store, other] = [await nodes.open({ leaseMs: 4000 }), await nodes.open()];
      expect(await counted(other)).toEqual({ ...NONE, resolutions: [] });
      const [gone, alive] = [await bring(store, 'executing'), await bring(store, 'executing')];
      const renewal = setInterval(() => void store.renew(alive).catch(() => {}), 50);
      try {
        const doubtful = await bring(store, 'in_doubt', newRequest({ operation: 'checkout' }));
        await bring(store, 'in_doubt', newRequest({ operation: 'checkout' }));
        await bring(store, 'completed');
        const before = await store.get(doubtful.scope);
        expect(await counted(other)).toEqual({
          operations: { checkout: { inDoubt: 2, ownerGone: 0 } },
          oldestSinceMs: before?.createdAtMs,
          resolutions: [],
        });
        const found = await until(async () => {
          const all = await counted(other);
          return 'withdraw' in all.operations ? all : undefined;
        });
        expect(found).toEqual({
          operations: {
            checkout: { inDoubt: 2, ownerGone: 0 },
            withdraw: { inDoubt: 1, ownerGone: 1 },
          },
          oldestSinceMs: (await store.get(gone.scope))?.createdAtMs,
          resolutions: [],
        });
        // A retry marks it in doubt, and the merchant has waited no shorter for that.
        await store.start(duplicateOf(gone));
        const marked = await counted(other);
        expect(marked.operations).toMatchObject({ withdraw: { inDoubt: 1, ownerGone: 0 } });
        expect(marked.oldestSinceMs).toBe(found.oldestSinceMs);
      } finally {
        clearInterval(renewal);
      }
    });

    it('loses a key when it is completed, released, resolved or executed again, and not before', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const [store, other] = [await nodes.open(), await nodes.open()];
      const [completed, released, byHand, discarded, again] = await Promise.all(
        Array.from({ length: 5 }, () => bring(store, 'in_doubt')),
      );
      const inDoubt = async () => (await counted(other)).operations.withdraw?.inDoubt;
      if (!completed || !released || !byHand || !discarded || !again) throw new Error('unreachable');
      expect(await store.complete(duplicateOf(completed), paid())).toBe('stale');
      expect(await store.release(duplicateOf(completed))).toBe('stale');
      expect(await store.start(otherOf(completed))).toEqual({ kind: 'mismatch' });
      expect(await inDoubt()).toBe(5);
      for (let times = 0; times < 2; times++) expect(await store.complete(completed, paid())).toBe('ok');
      expect(await inDoubt()).toBe(4);
      expect(await store.release(released)).toBe('ok');
      expect(await inDoubt()).toBe(3);
      const resolution: Resolution = { as: 'completed', completion: paid('by hand') };
      expect(await store.resolve(byHand.scope, byHand.token, resolution, note)).toBe('ok');
      expect(await inDoubt()).toBe(2);
      expect(await store.resolve(discarded.scope, discarded.token, { as: 'released' }, note)).toBe('ok');
      expect(await inDoubt()).toBe(1);
      const heir = duplicateOf(again);
      expect(await store.restart(heir)).toBe('ok');
      expect(await inDoubt()).toBeUndefined();
      expect(await store.markInDoubt(heir)).toBe('ok');
      expect(await inDoubt()).toBe(1);
      // Its key is free again, and in doubt again.
      await bring(store, 'in_doubt', duplicateOf(released));
      expect(await inDoubt()).toBe(2);
    });

    it('loses keys whose records have expired', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open({ leaseMs: 100, retentionMs: 300, inDoubtRetentionMs: 4000 });
      await bring(store, 'in_doubt');
      await bring(store, 'executing');
      expect((await counted(store)).operations).toMatchObject({ withdraw: { inDoubt: 1 } });
      await until(async () => (await counted(store)).oldestSinceMs === undefined);
      expect(await counted(store)).toEqual({ ...NONE, resolutions: [] });
    });

    it('counts a start that no record holds as nothing: voided, refused or repeated', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open({ leaseMs: 50 });
      const [voided, repeated] = [newRequest(), await bring(store, 'executing')];
      await store.takeBack(voided);
      await expect(store.start(voided)).rejects.toThrow('given up');
      expect(await store.start(repeated)).toEqual({ kind: 'started' });
      await until(async () => (await counted(store)).operations.withdraw?.ownerGone === 1);
    });

    it('has the number of resolutions by what they said and through what they came', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const [store, other] = [await nodes.open(), await nodes.open()];
      const completed: Resolution = { as: 'completed', completion: paid('by hand') };
      const [operator, lookup, line] = ['operator', 'lookup', 'command_line'] as const;
      for (const [resolution, source] of [
        ...([
          [completed, undefined],
          [completed, operator],
          [{ as: 'released' }, operator],
        ] as const),
        ...([
          [completed, lookup],
          [{ as: 'released' }, line],
          [{ as: 'released' }, line],
        ] as const),
      ] as const) {
        const { scope, token } = await bring(store, 'in_doubt');
        const counts = source ? { ...note, source } : note;
        expect(await store.resolve(scope, token, resolution, counts)).toBe('ok');
        expect(await store.resolve(scope, token, resolution, counts)).toBe('changed');
      }
      const alive = await bring(store, 'executing');
      expect(await store.resolve(alive.scope, alive.token, { as: 'released' }, note)).toBe('alive');
      expect(numbers(await counted(other))).toEqual([
        'completed lookup 1',
        'completed operator 2',
        'released command_line 2',
        'released operator 1',
      ]);
    });

    it('reads thousands of keys in small steps, and ends when it is told to', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      await Promise.all(
        Array.from({ length: 1200 }, (_, number) =>
          bring(store, number % 2 ? 'in_doubt' : 'executing', newRequest({ operation: `op-${number % 3}` })),
        ),
      );
      const { operations } = await counted(store);
      const sums = Object.values(operations).map(({ inDoubt, ownerGone }) => [inDoubt, ownerGone]);
      expect(sums).toEqual(Array(3).fill([200, 0]));
      const gone = new AbortController();
      const counting = store.countDoubts({ signal: gone.signal });
      gone.abort();
      await expect(counting).rejects.toThrow('aborted');
    });

    it('goes on although records cannot be read', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      const damaged = await Promise.all(
        backend.damages.map(([, , from]) => bring(store, from?.[0] ?? 'in_doubt')),
      );
      await bring(store, 'in_doubt', newRequest({ operation: 'checkout' }));
      for (const [number, [, damage]] of backend.damages.entries()) {
        const { scope } = damaged[number] as (typeof damaged)[number];
        await damage(nodes.place, scope);
        await expect(store.get(scope)).rejects.toThrow(UnreadableRecord);
      }
      expect((await counted(store)).operations.checkout).toEqual({ inDoubt: 1, ownerGone: 0 });
    });
  });
}
