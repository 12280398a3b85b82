import { expect } from 'vitest';
import type { RecordId } from '../../src/lib/brands.ts';
import { systemRandom } from '../../src/lib/random.ts';
import type { Listed, Register } from '../../src/store/register.ts';
import {
  type KeyRecord,
  UnknownCursor,
  UnreadableRecord,
  VISIT_LASTS_MS,
  VOID_TOKEN_MS,
} from '../../src/store/types.ts';
import { EXACT_MS, type Place, STEP_MS } from './places.ts';
import {
  completed,
  completions,
  creation,
  everyPage,
  holding,
  inDoubt,
  LIFE_MS,
  newId,
  newRecord,
  nextOf,
  plain,
  replacement,
} from './records.ts';

const DONE = { done: true };
const NOT_WRITTEN = { name: 'StoreUnavailable', maybeWritten: false };
const LEASE_MS = 2.5 * STEP_MS;

/** Expects a refusal that shows what is there: this record, or nothing. */
async function expectRefused(reply: Promise<object>, record: KeyRecord | undefined): Promise<void> {
  const { done, held } = (await reply) as { done: boolean; held?: { record: KeyRecord } };
  expect(done).toBe(false);
  expect(held?.record).toEqual(record);
}

const expectLeft = async (register: Register, id: RecordId, ms: number) =>
  expect(Math.abs(((await register.read(id))?.expiresInMs ?? 0) - ms)).toBeLessThan(EXACT_MS);

const audit = (by: string) => ({
  ...{ atMs: 1_700_000_000_000, by, reason: 'ä "reason"' },
  from: {
    ...({ state: 'in_doubt', merchant: 'Händler', operation: 'o', key: 'k', requestId: 'r' } as const),
    ...{ createdAtMs: 1, changedAtMs: 2 },
  },
  to: { as: 'completed', kind: 'response', status: 201 } as const,
});

/** What a register promises, each with how it is shown. A case begins with an empty store. */
export const contract: [promise: string, show: (place: Place) => Promise<void>][] = [
  [
    'a record is read as it was written, by every gateway',
    async ({ nodes: [one, other] }) => {
      const records = [
        newRecord(),
        newRecord({ wasInDoubt: true, restarted: true, cause: 'ü'.repeat(255), key: 'k'.repeat(255) }),
        newRecord({ extension: Buffer.from([1, 0, 255]), merchant: '', createdAtMs: 0, changedAtMs: 1 }),
      ];
      for (const record of records) {
        const id = newId();
        expect(await one.create(id, creation(record))).toEqual(DONE);
        const seen = await other.read(id);
        expect(plain(seen)).toEqual(record);
        expect(seen?.isLeased).toBe(false);
        const doubtful = inDoubt(record, { ownerGaveUp: true });
        expect(await one.replace(id, replacement(record, doubtful))).toEqual(DONE);
        expect(plain(await other.read(id, true))).toEqual(doubtful);
      }
      for (const completion of completions) {
        const record = newRecord();
        const id = await holding(one, record);
        expect(await other.replace(id, replacement(record, completed(record, completion)))).toEqual(DONE);
        expect((await one.read(id))?.record.completion).toEqual(completion);
      }
      expect(await one.read(newId())).toBeUndefined();
    },
  ],
  [
    'create writes only where nothing is, and once',
    async ({ nodes: [one, other] }) => {
      const record = newRecord();
      const id = await holding(one, record);
      expect(await other.create(id, creation(record))).toEqual(DONE);
      await expectRefused(other.create(id, creation(newRecord())), record);
      const result = completed(record);
      await one.replace(id, replacement(record, result));
      await expectRefused(other.create(id, creation(newRecord())), result);
      expect(plain(await one.read(id))).toEqual(result);
      const raced = newId();
      const racers = Array.from({ length: 20 }, (_, n) =>
        (n % 2 ? one : other).create(raced, creation(newRecord())),
      );
      expect((await Promise.all(racers)).filter(({ done }) => done)).toHaveLength(1);
    },
  ],
  [
    'replace writes only over the revision that it names, and once',
    async ({ nodes: [one, other] }) => {
      const [record, another] = [newRecord(), newRecord()];
      const id = await holding(one, record);
      await expectRefused(other.replace(id, replacement(another, nextOf(another))), record);
      await expectRefused(other.replace(id, replacement(undefined, another)), record);
      await expectRefused(other.replace(id, replacement(another, undefined)), record);
      const next = inDoubt(record);
      const write = replacement(record, next);
      expect(await other.replace(id, write)).toEqual(DONE);
      // The reply was lost, and it is sent again.
      expect(await one.replace(id, write)).toEqual(DONE);
      await expectRefused(one.replace(id, replacement(record, nextOf(record))), next);
      expect(await one.replace(id, replacement(next, undefined))).toEqual(DONE);
      await expectRefused(one.replace(id, replacement(next, undefined)), undefined);
      await expectRefused(one.replace(id, write), undefined);
      expect(await one.read(id)).toBeUndefined();
      const result = completed(record);
      expect(await one.replace(id, replacement(undefined, result))).toEqual(DONE);
      expect(plain(await other.read(id))).toEqual(result);
      const racers = Array.from({ length: 20 }, (_, n) =>
        (n % 2 ? one : other).replace(id, replacement(result, nextOf(result))),
      );
      expect((await Promise.all(racers)).filter(({ done }) => done)).toHaveLength(1);
    },
  ],
  [
    'a record lives as long as its write said, and is nothing then',
    async ({ nodes: [one, other], pass }) => {
      const record = newRecord();
      const id = await holding(one, record, 3.5 * STEP_MS);
      await pass(STEP_MS);
      await expectLeft(other, id, 2.5 * STEP_MS);
      const kept = nextOf(record);
      await one.replace(id, replacement(record, kept, { expiresInMs: 'unchanged' }));
      await expectLeft(other, id, 2.5 * STEP_MS);
      const longer = nextOf(kept);
      const lengthened = replacement(kept, longer, { expiresInMs: 5.5 * STEP_MS });
      await one.replace(id, lengthened);
      await pass(STEP_MS);
      // It is there already, so it does not begin to live again.
      await one.replace(id, lengthened);
      await expectLeft(other, id, 4.5 * STEP_MS);
      const shorter = inDoubt(longer, { createdAtMs: 1 });
      await one.replace(id, replacement(longer, shorter, { expiresInMs: 1.5 * STEP_MS }));
      await pass(2 * STEP_MS);
      expect(await other.read(id)).toBeUndefined();
      await expectRefused(one.replace(id, replacement(shorter, nextOf(shorter))), undefined);
      expect(await everyPage(one, true)).toEqual([]);
      expect(await everyPage(one, false)).toEqual([]);
      expect(await one.create(id, creation(record))).toEqual(DONE);
    },
  ],
  [
    "a lease is its owner's until it lapses, and says nothing of the record",
    async ({ nodes: [one, other], pass }) => {
      const record = newRecord();
      const { token } = record;
      const stranger = systemRandom.token();
      const id = await holding(one, record);
      expect(await one.renew(id, token, LEASE_MS)).toBe('taken');
      expect(await one.renew(id, token, LEASE_MS)).toBe('kept');
      expect(await other.renew(id, stranger, LEASE_MS)).toBe('lost');
      await other.endLease(id, stranger);
      expect(await other.read(id)).toMatchObject({ record, isLeased: true });
      await expectLeft(other, id, LIFE_MS);
      await pass(2 * STEP_MS);
      expect(await one.renew(id, token, LEASE_MS)).toBe('kept');
      await pass(2 * STEP_MS);
      expect((await other.create(id, creation(newRecord()))) as object).toMatchObject({
        held: { isLeased: true },
      });
      await one.endLease(id, token);
      expect((await other.read(id))?.isLeased).toBe(false);
      expect(await other.renew(id, stranger, LEASE_MS)).toBe('taken');
      await pass(3 * STEP_MS);
      expect((await other.read(id))?.isLeased).toBe(false);
      expect(await one.renew(id, token, LEASE_MS)).toBe('taken');
      await one.endLease(id, token);
      expect((await other.read(id))?.isLeased).toBe(false);
    },
  ],
  [
    'a write is refused while anybody has the lease, if it asks for that',
    async ({ nodes: [one, other], pass }) => {
      const record = newRecord();
      const id = await holding(one, record);
      const [marked, unlessLeased] = [inDoubt(record), { unlessLeased: true }];
      await one.renew(id, record.token, LEASE_MS);
      await expectRefused(other.replace(id, replacement(record, marked, unlessLeased)), record);
      await pass(3 * STEP_MS);
      expect(await other.replace(id, replacement(record, marked, unlessLeased))).toEqual(DONE);
    },
  ],
  [
    "an owner's last write ends its lease, and no other lease, even if it is refused",
    async ({ nodes: [one, other] }) => {
      const record = newRecord();
      const id = await holding(one, record);
      await one.renew(id, record.token, LEASE_MS);
      await other.replace(id, replacement(newRecord(), newRecord(), { endLeaseOf: systemRandom.token() }));
      expect((await other.read(id))?.isLeased).toBe(true);
      await expectRefused(
        one.replace(id, replacement(newRecord(), newRecord(), { endLeaseOf: record.token })),
        record,
      );
      expect((await other.read(id))?.isLeased).toBe(false);
      await one.renew(id, record.token, LEASE_MS);
      await one.replace(id, replacement(record, completed(record), { endLeaseOf: record.token }));
      expect((await other.read(id))?.isLeased).toBe(false);
    },
  ],
  [
    'a void token creates nothing for an hour, even if the write that voided it was refused',
    async ({ nodes: [one, other], pass }) => {
      const [record, next] = [newRecord(), newRecord()];
      const id = newId();
      const voiding = replacement(record, undefined, { voidToken: record.token });
      await expectRefused(one.replace(id, voiding), undefined);
      await expect(other.create(id, creation(record))).rejects.toMatchObject(NOT_WRITTEN);
      expect(await other.read(id)).toBeUndefined();
      expect(await everyPage(other, true)).toEqual([]);
      expect(await other.create(id, creation(next))).toEqual(DONE);
      expect(await one.replace(id, replacement(next, undefined, { voidToken: next.token }))).toEqual(DONE);
      await expect(other.create(id, creation(nextOf(next)))).rejects.toMatchObject(NOT_WRITTEN);
      // A result is written all the same.
      const result = completed(next);
      expect(await one.replace(id, replacement(undefined, result))).toEqual(DONE);
      await one.replace(id, replacement(result, undefined));
      await pass(VOID_TOKEN_MS - STEP_MS);
      await expect(other.create(id, creation(record))).rejects.toMatchObject(NOT_WRITTEN);
      await pass(2 * STEP_MS);
      expect(await other.create(id, creation(record))).toEqual(DONE);
    },
  ],
  [
    'a resolution leaves its trail and its count with the write, and never without it',
    async ({ nodes: [one, other] }) => {
      const record = newRecord({ state: 'in_doubt' });
      const id = await holding(one, record);
      const released = { as: 'released', by: 'operator' } as const;
      const completedBy = { as: 'completed', by: 'lookup' } as const;
      const first = replacement(record, nextOf(record), { audit: audit('ada'), counted: released });
      expect(await one.replace(id, first)).toEqual(DONE);
      expect(await one.replace(id, first)).toEqual(DONE);
      await one.replace(id, replacement(record, nextOf(record), { audit: audit('eve'), counted: released }));
      const second = replacement(first.record, undefined, { audit: audit('bob'), counted: completedBy });
      expect(await other.replace(id, second)).toEqual(DONE);
      expect(await other.replace(id, second)).toMatchObject({ done: false });
      expect(await other.audit(id)).toEqual([audit('ada'), audit('bob')]);
      expect(await one.audit(newId())).toEqual([]);
      const { resolutions } = await one.countOpen({ executingSinceMs: 0 });
      expect(resolutions.toSorted((a, b) => (a.as < b.as ? -1 : 1))).toEqual([
        { ...completedBy, number: 1 },
        { ...released, number: 1 },
      ]);
    },
  ],
  [
    'lists have every record once, in pages, without results',
    async ({ nodes: [one, other], damage }) => {
      const open = [newRecord(), inDoubt(newRecord()), newRecord({ restarted: true })];
      const openIds = await Promise.all(open.map((record) => holding(one, record)));
      await one.renew(openIds[0] as never, (open[0] as KeyRecord).token, LEASE_MS);
      const closed = completions.map((completion) => ({ ...completed(newRecord(), completion) }));
      const closedIds = await Promise.all(
        closed.map(async (record) => {
          const id = newId();
          await one.replace(id, replacement(undefined, record));
          return id;
        }),
      );
      const damaged = await holding(one);
      await damage(damaged);
      const all = await everyPage(other, false, 2);
      expect(all.map(({ id }) => id).toSorted()).toEqual([...openIds, ...closedIds, damaged].toSorted());
      const listed = new Map(all.map((one) => [one.id, one]));
      for (const [n, id] of [...openIds, ...closedIds].entries()) {
        const { completion, ...head } = [...open, ...closed][n] as KeyRecord;
        const keyId = completion?.kind === 'encrypted' ? { encryptionKeyId: completion.keyId } : {};
        const seen = listed.get(id) as Listed & { unreadable?: undefined };
        expect(plain({ ...seen, record: seen.head })).toEqual({ ...head, ...keyId });
        expect(seen.isLeased).toBe(n === 0);
        expect(Math.abs(seen.expiresInMs - LIFE_MS)).toBeLessThan(EXACT_MS);
      }
      expect(listed.get(damaged)).toEqual({ id: damaged, unreadable: expect.any(String) });
      const openListed = (await everyPage(one, true, 2)).map(({ id }) => id);
      expect(openListed.toSorted()).toEqual([...openIds, damaged].toSorted());
      await expect(one.list({ open: true, limit: 2, cursor: 'no cursor' })).rejects.toThrow(UnknownCursor);
      await expect(one.list({ open: false, limit: 2, cursor: 'no cursor' })).rejects.toThrow(UnknownCursor);
    },
  ],
  [
    'ids are found by their first digits, those of audit trails too',
    async ({ nodes: [one, other], damage, pass }) => {
      const record = newRecord();
      const id = await holding(one, record);
      // With the first 16 digits in common only the neighbours of an id in the name of its partition are told apart.
      const [first, second] = [0, 1].map(
        (digit) => `${id.slice(0, 5)}${digit}${newId().slice(6)}` as RecordId,
      );
      await one.replace(first as RecordId, replacement(undefined, completed(newRecord())));
      const resolved = newRecord();
      await one.create(second as RecordId, creation(resolved));
      await one.replace(second as RecordId, replacement(resolved, undefined, { audit: audit('ada') }));
      const ended = `${id.slice(0, 5)}2${newId().slice(6)}` as RecordId;
      await one.create(ended, creation(newRecord(), STEP_MS));
      await pass(3 * STEP_MS);
      const found = async (digits: string) => (await other.idsOf(digits)).toSorted();
      for (const length of [4, 5])
        expect(await found(id.slice(0, length))).toEqual([id, first, second].toSorted());
      for (const each of [id, first, second] as RecordId[])
        for (const length of [16, 17, 48]) expect(await found(each.slice(0, length))).toEqual([each]);
      for (const length of [16, 48]) expect(await found(newId().slice(0, length))).toEqual([]);
      await damage(id);
      expect(await found(id.slice(0, 16))).toEqual([id]);
    },
  ],
  [
    'the count of open records follows every write',
    async ({ nodes: [one, other] }) => {
      const count = async () => {
        const { inDoubt: doubts, old } = await other.countOpen({ executingSinceMs: 5000 });
        return [Object.fromEntries(doubts), old];
      };
      const operation = 'with draw:ü';
      const record = newRecord({ operation, createdAtMs: 4999 });
      const id = await holding(one, record);
      await holding(one, newRecord({ createdAtMs: 5000 }));
      expect(await count()).toEqual([{}, [id]]);
      const marked = inDoubt(record);
      await one.replace(id, replacement(record, marked));
      const oldest = inDoubt(newRecord({ operation, createdAtMs: 4000 }));
      const oldestId = newId();
      await one.replace(oldestId, replacement(undefined, oldest));
      const youngest = inDoubt(newRecord({ operation, createdAtMs: 6000 }));
      const result = newId();
      await one.replace(result, replacement(undefined, youngest));
      expect(await count()).toEqual([{ [operation]: { number: 3, oldestMs: 4000 } }, []]);
      await one.replace(oldestId, replacement(oldest, undefined));
      await one.replace(result, replacement(youngest, completed(youngest)));
      expect(await count()).toEqual([{ [operation]: { number: 1, oldestMs: 4999 } }, []]);
      const again = nextOf(marked, { state: 'executing', restarted: true });
      await one.replace(id, replacement(marked, again));
      expect(await count()).toEqual([{}, [id]]);
      await one.replace(id, replacement(again, completed(again)));
      expect(await count()).toEqual([{}, []]);
      const signal = AbortSignal.abort();
      await expect(one.countOpen({ executingSinceMs: 0, signal })).rejects.toThrow();
    },
  ],
  [
    'a store that is closed to starts refuses them, and what says so; one that is closed refuses every write',
    async ({ nodes: [one, other], closeTo }) => {
      const record = newRecord();
      const id = await holding(one, record);
      await one.renew(id, record.token, LEASE_MS);
      const marked = inDoubt(record);
      const next = nextOf(marked);
      const refusals = async () => {
        await expect(one.create(newId(), creation(newRecord()))).rejects.toMatchObject(NOT_WRITTEN);
        const resolution = replacement(marked, next, { unlessClosed: true, audit: audit('ada') });
        await expect(other.replace(id, resolution)).rejects.toMatchObject(NOT_WRITTEN);
        expect(await one.audit(id)).toEqual([]);
        expect((await one.health()).isClosed).toBe(true);
      };
      await closeTo('starts');
      expect(await other.replace(id, replacement(record, marked))).toEqual(DONE);
      await refusals();
      await closeTo('all');
      const along = { endLeaseOf: record.token, voidToken: record.token };
      await expect(one.replace(id, replacement(marked, undefined, along))).rejects.toMatchObject(NOT_WRITTEN);
      await refusals();
      expect(await other.read(id)).toMatchObject({ record: marked, isLeased: false });
      await closeTo('no');
      await one.replace(id, replacement(marked, undefined));
      await expect(one.create(id, creation(nextOf(record)))).rejects.toMatchObject(NOT_WRITTEN);
      expect(await one.create(newId(), creation(newRecord()))).toEqual(DONE);
    },
  ],
  [
    'what is no record is never taken for nothing, and only a write over its revision replaces it',
    async ({ nodes: [one, other], damage }) => {
      const record = newRecord();
      const id = await holding(one, record);
      await damage(id);
      await expect(one.read(id)).rejects.toThrow(UnreadableRecord);
      await expect(other.create(id, creation(newRecord()))).rejects.toThrow(UnreadableRecord);
      await expect(other.replace(id, replacement(undefined, newRecord()))).rejects.toThrow(UnreadableRecord);
      await expect(other.replace(id, replacement(newRecord(), undefined))).rejects.toThrow(UnreadableRecord);
      const result = completed(record);
      expect(await other.replace(id, replacement(record, result))).toEqual(DONE);
      expect(plain(await one.read(id))).toEqual(result);
      const removed = await holding(one, record);
      await damage(removed);
      expect(await other.replace(removed, replacement(record, undefined))).toEqual(DONE);
      expect(await one.read(removed)).toBeUndefined();
    },
  ],
  [
    'an identity tells the store from others, counts visits, and knows the other mode',
    async (place) => {
      const { nodes, pass, reset } = place;
      const [one, other] = nodes;
      expect(await one.readIdentity('protect')).toBeUndefined();
      const { id } = await one.visit('protect');
      expect(id).toMatch(/^[0-9a-f]{32}$/);
      expect(await other.visit('protect')).toEqual({ id, count: 2, otherMode: false });
      expect(await other.visit('observe')).toEqual({ id, count: 3, otherMode: true });
      expect(await one.readIdentity('protect')).toEqual({ id, count: 3, otherMode: true });
      await pass(VISIT_LASTS_MS + STEP_MS);
      expect(await one.readIdentity('protect')).toEqual({ id, count: 3, otherMode: false });
      await reset();
      expect((await place.nodes[0].visit('protect')).id).not.toBe(id);
    },
  ],
];
