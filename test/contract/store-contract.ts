import { setImmediate as immediate } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import { type Execution, StoreUnavailable, UnreadableRecord } from '../../src/store/types.ts';
import { eachRowInTurn } from '../support/each-row.ts';
import type { StorePlace } from '../support/open-store.ts';
import { duplicateOf, newRequest, otherOf, paid } from '../support/requests.ts';
import { storeForTest } from '../support/stores.ts';
import { until } from '../support/until.ts';
import { bring, type Damage, stages } from './states.ts';

const RACES = 40;
const note = { by: 'ada', reason: 'the backend’s books show it' };

/** What the contract needs from the tests of one store. */
export interface Backend {
  name: string;
  /** The address of a new store without records, for one test. */
  place(): StorePlace | Promise<StorePlace>;
  /** At least two. Each must change the record, or throw. */
  damages: readonly Damage[];
}

/** What it gets done, or undefined if it was refused. */
const unlessRefused = <T>(act: Promise<T>): Promise<T | undefined> =>
  act.catch((error: unknown) => {
    if (!(error instanceof StoreUnavailable)) throw error;
    return undefined;
  });

/**
 * What only whole stores show. What an event does to a key is proved by test/unit/rules, what the ledger adds by
 * test/unit/ledger.test.ts, and what a register promises by test/registers.
 */
export function storeContract(backend: Backend): void {
  describe(`${backend.name} as a store`, () => {
    it('keeps what it has answered for a store that opens later', async () => {
      const place = await backend.place();
      const store = await storeForTest(place);
      const owners = await Promise.all(stages.map((stage) => bring(store, stage)));
      const [executing = newRequest()] = owners;
      const [resolved, lost] = [await bring(store, 'in_doubt'), newRequest()];
      expect(await store.renew(executing)).toBe('ok');
      expect(await store.resolve(resolved.recordId, resolved.token, { as: 'released' }, note)).toBe('ok');
      expect(await store.takeBack(lost)).toBe('stale');
      const { id, count } = await store.visit('protect');
      const before = await Promise.all(owners.map(({ recordId }) => store.get(recordId)));
      await store.close();
      const later = await storeForTest(place);
      expect(await Promise.all(owners.map(({ recordId }) => later.get(recordId)))).toEqual(before);
      const answers = await Promise.all(owners.map((owner) => later.start(duplicateOf(owner))));
      expect(answers.map(({ kind }) => kind)).toEqual(['in_flight', 'in_doubt', 'completed']);
      expect(await later.audit(resolved.recordId)).toMatchObject([note]);
      await expect(later.start(lost)).rejects.toMatchObject({ maybeWritten: false });
      expect(await later.visit('protect')).toMatchObject({ id, count: count + 1 });
      const { id: another } = await later.visit('protect', id);
      expect(another).not.toBe(id);
      // An acceptance that was repeated, or another operator's, replaces the id once.
      expect(await later.visit('protect', id)).toMatchObject({ id: another, count: count + 3 });
      expect(await later.readIdentity('protect')).toMatchObject({ id: another, count: count + 3 });
    });

    it('lets one win: a start, or what voids its token or completes it without a record', async () => {
      const place = await backend.place();
      const [store, other] = [await storeForTest(place), await storeForTest(place)];
      const race = (number: number, ...acts: (() => Promise<unknown>)[]) =>
        Promise.all((number % 2 ? acts : acts.toReversed()).map((act) => act()));
      await Promise.all(
        Array.from({ length: RACES }, async (_, number) => {
          const [taken, completed] = [newRequest(), newRequest()];
          const retry = duplicateOf(completed);
          await race(
            number,
            () => unlessRefused(store.start(taken)),
            () => other.takeBack(taken),
            () => store.start(retry),
            () => other.complete(completed, paid('late')),
          );
          expect(await store.get(taken.recordId)).toBeUndefined();
          await expect(store.start(taken)).rejects.toMatchObject({ maybeWritten: false });
          const { state, token } = (await store.get(completed.recordId)) ?? {};
          expect(token).toEqual(state === 'completed' ? completed.token : retry.token);
        }),
      );
    });

    it('accepts an answer that arrived while the process was paused', async () => {
      const store = await storeForTest(await backend.place(), { timeoutMs: 500 });
      const starting = store.start(newRequest());
      // It is sent meanwhile.
      for (let turn = 0; turn < 5; turn++) await immediate();
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 700);
      expect(await starting).toEqual({ kind: 'started' });
    });

    it('lets an owner count as dead, and records expire, by its own clock', async () => {
      // Long enough for five writes to a disk that is busy.
      const [leaseMs, retentionMs, inDoubtRetentionMs] = [500, 1500, 3000];
      const store = await storeForTest(await backend.place(), { leaseMs, retentionMs, inDoubtRetentionMs });
      const startedMs = performance.now();
      const owners = await Promise.all(stages.map((stage) => bring(store, stage)));
      await until(async () => (await store.peek(owners[0] as Execution)).kind === 'in_doubt');
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(leaseMs - 1);
      for (const owner of owners.toReversed()) await until(async () => !(await store.get(owner.recordId)));
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(inDoubtRetentionMs - 1);
      expect(await store.list({ inDoubt: false, limit: 100 })).toEqual({ records: [] });
    });

    it('lists and counts thousands of records in small steps', async () => {
      const store = await storeForTest(await backend.place());
      const doubtful = await Promise.all(Array.from({ length: 1200 }, () => bring(store, 'in_doubt')));
      await Promise.all(Array.from({ length: 300 }, () => store.start(newRequest())));
      expect((await store.countDoubts()).operations.get('withdraw')).toEqual({ inDoubt: 1200, ownerGone: 0 });
      const ids = doubtful.map(({ recordId }) => recordId).toSorted();
      for (const [limit, inDoubt] of [
        [100, true],
        [7, true],
        [500, false],
      ] as const) {
        const records = await everyPage(store, limit, inDoubt);
        const found = records.filter((record) => 'state' in record && record.state === 'in_doubt');
        expect(found.map(({ recordId }) => recordId).toSorted()).toEqual(ids);
        expect(records).toHaveLength(inDoubt ? 1200 : 1500);
      }
    });
  });

  const damaged = backend.damages.flatMap(([what, damage, from = stages]) =>
    from.map((stage) => ({ what, stage, damage })),
  );

  describe(`a record in ${backend.name} that cannot be read`, () => {
    it('is never treated as absent, and never taken over', async () => {
      const place = await backend.place();
      // With such a short lease every owner counts as dead.
      const store = await storeForTest(place, { leaseMs: 1 });
      await eachRowInTurn(damaged, async ({ stage, damage }) => {
        const owner = await bring(store, stage);
        const { recordId, token } = owner;
        await damage(place, recordId);
        const acts = [duplicateOf(owner), otherOf(owner)].flatMap((request) => [
          store.start(request),
          store.peek(request),
          store.restart(request),
          store.renew(request),
          store.complete(request, paid()),
          store.release(request),
          store.leaveInDoubt(request),
        ]);
        const resolving = store.resolve(recordId, token, { as: 'released' }, note);
        const answers = await Promise.allSettled([...acts, resolving, store.get(recordId)]);
        for (const answer of answers)
          expect(answer).toEqual({ status: 'rejected', reason: expect.any(UnreadableRecord) });
      });
    });

    it('is listed with the reason, and does not stop a list or a count', async () => {
      const place = await backend.place();
      const store = await storeForTest(place);
      const owners: RecordId[] = [];
      for (const { stage, damage } of damaged) {
        const { recordId } = await bring(store, stage);
        owners.push(recordId);
        await damage(place, recordId);
      }
      const readable = await bring(store, 'in_doubt', newRequest({ operation: 'checkout' }));
      const records = await everyPage(store, 10, false);
      expect(records.map(({ recordId }) => recordId).toSorted()).toEqual(
        [...owners, readable.recordId].toSorted(),
      );
      for (const { recordId, unreadable } of records)
        expect(unreadable).toEqual(recordId === readable.recordId ? undefined : expect.stringMatching(/\w/));
      const open = new Set((await everyPage(store, 10, true)).map(({ recordId }) => recordId));
      expect(open).toContain(readable.recordId);
      // Of a completed record, or one that says so, the index of open records knows nothing.
      for (const [number, { what, stage }] of damaged.entries())
        if (stage !== 'completed' && !what.startsWith('completed')) expect(open).toContain(owners[number]);
      const { operations } = await store.countDoubts();
      expect(operations.get('checkout')).toEqual({ inDoubt: 1, ownerGone: 0 });
    });
  });
}

export async function everyPage(store: Store, limit: number, inDoubt: boolean) {
  const records: Awaited<ReturnType<Store['list']>>['records'] = [];
  let cursor: string | undefined;
  do {
    const page = await store.list({ limit, inDoubt, cursor });
    expect(page.records.length).toBeLessThanOrEqual(limit);
    records.push(...page.records);
    cursor = page.cursor;
  } while (cursor !== undefined);
  return records;
}
