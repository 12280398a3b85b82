import { expect, it } from 'vitest';
import type { RecordView, SortedRequest } from '../../src/doubts/record-view.ts';
import { SortedDoubts } from '../../src/doubts/sorted.ts';
import { pause, systemClock } from '../../src/lib/clock.ts';

const START_MS = Date.parse('2026-01-01T00:00:00Z');

/** 5,000 keys in doubt, one for each second, in no order, as stores list them. The last one cannot be read. */
function doubts(number = 5000): RecordView[] {
  const views = Array.from({ length: number }, (_, i): RecordView => {
    const seconds = (i * 2657) % number;
    return {
      ...{ recordId: String(seconds), state: 'in_doubt', merchant: `M-${seconds % 3}` },
      ...{ operation: seconds % 10 === 0 ? 'checkout' : 'withdraw', cause: `status ${503 + (seconds % 2)}` },
      createdAt: new Date(START_MS + seconds * 1000).toISOString(),
    };
  });
  return [...views, { recordId: 'damaged', state: 'unreadable', reason: 'damaged' }];
}

function open(records: RecordView[]) {
  const store = { reads: 0, most: 0 };
  // A list that was read at once is not kept.
  const clock = { ...systemClock, wallMs: () => START_MS + 5_000_000, monotonicMs: () => 0 };
  const list = async (limit: number, cursor = '0') => {
    const from = Number(cursor);
    store.reads++;
    store.most = Math.max(store.most, limit);
    const more = from + limit < records.length ? { cursor: String(from + limit) } : {};
    return { records: records.slice(from, from + limit), ...more };
  };
  const sorted = new SortedDoubts(list, clock);
  const ask = (request: Partial<SortedRequest> = {}) =>
    sorted.page({ sort: 'oldest', page: 1, limit: 50, ...request });
  return { store, sorted, ask };
}

it('5,000 keys in doubt are sorted over all pages, whatever order the store has', async () => {
  const { ask, store } = open(doubts());
  const first = await ask();
  expect(first).toMatchObject({ page: 1, pages: 101, matching: 5001, inAll: 5001, isCut: false });
  expect(first.records.map(({ recordId }) => recordId)).toEqual(Array.from({ length: 50 }, (_, i) => `${i}`));
  expect((await ask({ page: 100 })).records.at(-1)?.recordId).toBe('4999');
  // What has no time comes last, in both orders. A page behind the last one is the last one.
  for (const sort of ['oldest', 'newest'] as const)
    expect(await ask({ sort, page: 999 })).toMatchObject({ page: 101, records: [{ recordId: 'damaged' }] });
  expect((await ask({ sort: 'newest' })).records[0]?.recordId).toBe('4999');
  const byMerchant = (await ask({ sort: 'merchant', page: 2, limit: 1000 })).records;
  expect([byMerchant[0]?.merchant, byMerchant.at(-1)?.merchant]).toEqual(['M-0', 'M-1']);
  // In small steps, so that no request waits long behind a reading.
  expect([store.most, store.reads % 21]).toEqual([250, 0]);
});

it('keys in doubt are filtered by merchant, operation, cause and age', async () => {
  const { ask } = open(doubts());
  const matching = async (filter: Partial<SortedRequest>) => (await ask(filter)).matching;
  expect(await matching({ operation: 'checkout' })).toBe(500);
  expect(await matching({ cause: 'status 504' })).toBe(2500);
  expect(await matching({ merchant: 'M-2' })).toBe(1666);
  // The clock shows 5,000 seconds after the first.
  expect(await matching({ olderThanMs: 4_001_000 })).toBe(1000);
  expect(await matching({ operation: 'checkout', cause: 'status 504' })).toBe(0);
  expect(await ask({ operation: 'none' })).toMatchObject({
    ...{ page: 1, pages: 1, matching: 0, inAll: 5001, records: [] },
    operations: [
      { name: 'withdraw', keys: 4500 },
      { name: 'checkout', keys: 500 },
    ],
    causes: [
      { name: 'status 503', keys: 2500 },
      { name: 'status 504', keys: 2500 },
    ],
  });
});

it('at most 10,000 keys in doubt are read, and the page says that there are more', async () => {
  const { ask, store } = open(doubts(12_000));
  expect(await ask()).toMatchObject({ inAll: 10_000, isCut: true });
  expect(store.reads).toBe(40);
});

it('keys in doubt are read once for several who ask at the same time, and again after a resolution', async () => {
  const records = doubts(10);
  const { ask, store, sorted } = open(records);
  await Promise.all([ask(), ask({ page: 2 }), ask({ sort: 'newest' })]);
  expect(store.reads).toBe(1);
  records.shift();
  sorted.forget();
  expect((await ask()).inAll).toBe(10);
  await pause(systemClock, 5);
  records.shift();
  expect((await ask()).inAll).toBe(9);
});

it('a store that does not answer is asked again', async () => {
  let isAway = true;
  const list = async () => {
    if (isAway) throw new Error('away');
    return { records: doubts(1) };
  };
  const sorted = new SortedDoubts(list, systemClock);
  const request = { sort: 'oldest', page: 1, limit: 1 } as const;
  await expect(sorted.page(request)).rejects.toThrow('away');
  isAway = false;
  expect((await sorted.page(request)).matching).toBe(2);
});
