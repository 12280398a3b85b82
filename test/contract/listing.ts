import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { Scope } from '../../src/lib/brands.ts';
import { type ListedRecord, type ListFilter, UnknownCursor } from '../../src/store/contract.ts';
import { newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Backend, Nodes } from './nodes.ts';
import { bring, stages } from './states.ts';

/** Lists all pages. */
export async function all(store: Store, filter: Pick<ListFilter, 'inDoubt'> & { limit?: number }) {
  const [records, sizes]: [ListedRecord[], number[]] = [[], []];
  let cursor: string | undefined;
  do {
    const page = await store.list({ limit: 100, ...filter, cursor });
    records.push(...page.records);
    sizes.push(page.records.length);
    cursor = page.cursor;
  } while (cursor !== undefined);
  return { records, sizes };
}

const scopesOf = (records: readonly { scope: string }[]) => records.map(({ scope }) => scope).toSorted();

export function listing(backend: Backend): void {
  describe('a listing', () => {
    it('has all records, without their results, and nothing else', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const [store, other] = [await nodes.open(), await nodes.open()];
      expect((await all(store, { inDoubt: false })).records).toEqual([]);
      const owners = await Promise.all(stages.map((stage) => bring(store, stage)));
      const { records } = await all(other, { inDoubt: false });
      const expected = await Promise.all(
        owners.map(async ({ scope }) => {
          const { completion, ...head } = (await store.get(scope)) ?? {};
          return { ...head, scope, ownerGone: false };
        }),
      );
      expect(records).toHaveLength(stages.length);
      expect(records).toEqual(expect.arrayContaining(expected));
    });

    it('of records in doubt has no others', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      for (const stage of stages) await bring(store, stage);
      const owner = await bring(store, 'in_doubt');
      const { records } = await all(store, { inDoubt: true });
      expect(records.map(({ unreadable }) => unreadable)).toEqual([undefined, undefined]);
      expect(records).toMatchObject([{ state: 'in_doubt' }, { state: 'in_doubt' }]);
      expect(scopesOf(records)).toContain(owner.scope);
    });

    it('of records in doubt has executing records whose owner is dead, and none whose owner is alive', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open({ leaseMs: 4000 });
      const gone = await bring(store, 'executing');
      const alive = await bring(store, 'executing');
      const renewal = setInterval(() => void store.renew(alive).catch(() => {}), 50);
      try {
        const { records } = await until(async () => {
          const found = await all(store, { inDoubt: true });
          return found.records.length > 0 ? found : undefined;
        });
        expect(records).toMatchObject([{ scope: gone.scope, state: 'executing', ownerGone: true }]);
        const { records: both } = await all(store, { inDoubt: false });
        const ofAlive = both.find(({ scope }) => scope === alive.scope);
        expect(ofAlive).toMatchObject({ state: 'executing', ownerGone: false });
      } finally {
        clearInterval(renewal);
      }
    });

    it.each([1, 7, 100])('in pages of %i has each record once', async (limit) => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      const owners = await Promise.all(
        Array.from({ length: 40 }, (_, number) => bring(store, number % 4 ? 'executing' : 'in_doubt')),
      );
      const everything = await all(store, { inDoubt: false, limit });
      expect(scopesOf(everything.records)).toEqual(scopesOf(owners));
      // Pages may be short, but never too long.
      expect(Math.max(...everything.sizes)).toBeLessThanOrEqual(limit);
      const doubtful = await all(store, { inDoubt: true, limit });
      expect(scopesOf(doubtful.records)).toEqual(scopesOf(owners.filter((_, number) => number % 4 === 0)));
    });

    it('reads a bounded number of records for one page', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      await Promise.all(Array.from({ length: 2500 }, () => store.start(newRequest())));
      const owner = await bring(store, 'in_doubt');
      const { records, sizes } = await all(store, { inDoubt: true });
      expect(scopesOf(records)).toEqual([owner.scope]);
      expect(sizes.length).toBeGreaterThan(2);
    });

    it('includes records that cannot be read, with the reason, and continues after them', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open();
      const damaged = await Promise.all(
        backend.damages.map(([, , from]) => bring(store, from?.[0] ?? 'executing')),
      );
      const owner = await bring(store, 'in_doubt');
      for (const [number, [, damage]] of backend.damages.entries())
        await damage(nodes.place, damaged[number]?.scope as Scope);
      for (const inDoubt of [true, false]) {
        const { records } = await all(store, { inDoubt });
        // Of a completed record, or one that says so, the index of open records knows nothing.
        const isKnown = (at: number) => !/^(?:a )?completed/.test(backend.damages[at]?.[0] ?? '');
        const expected = damaged.filter((_, at) => !inDoubt || isKnown(at));
        expect(scopesOf(records)).toEqual(scopesOf([...expected, owner]));
        const unreadable = records.filter((record) => record.unreadable !== undefined);
        expect(scopesOf(unreadable)).toEqual(scopesOf(expected));
        for (const record of unreadable) expect(record.unreadable).toMatch(/\w/);
      }
    });

    it('leaves out expired records', async () => {
      await using nodes = new Nodes(backend, { alone: true });
      const store = await nodes.open({ retentionMs: 4000, inDoubtRetentionMs: 4000 });
      for (const stage of stages) await bring(store, stage);
      await until(async () => (await all(store, { inDoubt: false })).records.length === 0);
    });

    it.each(['', 'x', '-', 'zz'.repeat(32)])('refuses %j as a cursor', async (cursor) => {
      await using nodes = new Nodes(backend);
      const store = await nodes.open();
      await expect(store.list({ inDoubt: false, limit: 1, cursor })).rejects.toThrow(UnknownCursor);
    });
  });
}
