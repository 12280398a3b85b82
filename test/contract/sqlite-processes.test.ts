/** Many processes on one file: they may open, close and read it at any moment. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { countRecords, expectIntact, openSqlite, RemoteStore, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { replayOf } from './states.ts';
import { Worker } from './worker.ts';

/** How much work the openers must have disturbed before it is judged. */
const STARTED = 100;
const COMPLETED = 50;

const saidOf = (workers: Worker[], word: string): string[] =>
  workers.flatMap(({ said }) => said.filter(([spoken]) => spoken === word).map(([, key]) => key as string));

it('while four processes open and close the store and another one reads it, no payout is lost or started twice', async () => {
  const path = storeFolder();
  const place = { kind: 'sqlite' as const, path };
  const writers = Array.from({ length: 2 }, () => new Worker(place, { kind: 'ledger', lanes: 4 }));
  const openers = Array.from({ length: 4 }, () => new Worker(place, { kind: 'reopen' }));
  const areOpened = (times: number) => openers.every(({ said }) => said.length >= times);
  const hear = (word: string) => saidOf(writers, word).length;
  await until(() => areOpened(1) && hear('started') > 0, 25_000);
  await until(() => {
    expect(countRecords(path)).toBeGreaterThan(0);
    return areOpened(5) && hear('started') > STARTED && hear('complete ok') > COMPLETED;
  }, 25_000);
  await Promise.all([...writers, ...openers].map((worker) => worker.kill()));

  expectIntact(path);
  const started = saidOf(writers, 'started');
  expect(started.length).toBeGreaterThan(STARTED);
  expect(new Set(started).size).toBe(started.length);
  const store = await openSqlite(path);
  for (const key of started) expect(await store.get(recordIdOf('gateway', 'M-1', key))).toBeDefined();
  const completed = saidOf(writers, 'complete ok');
  expect(completed.length).toBeGreaterThan(COMPLETED);
  for (const key of completed)
    expect(await store.start(duplicateOf(newRequest({ key })))).toEqual(
      replayOf(paid(key), { requestId: key }),
    );
  const words = new Set([...writers, ...openers].flatMap(({ said }) => said.map(([word]) => word)));
  expect([...words].filter((word) => word.includes('stale') || word === 'mismatch')).toEqual([]);
});

it('processes that make the same new folder at once share one store', async () => {
  const path = join(storeFolder(), 'new', 'data');
  const stores = await Promise.all(Array.from({ length: 4 }, () => RemoteStore.open(path)));
  const request = newRequest();
  const answers = await Promise.all(stores.map((store) => store.answer('start', duplicateOf(request))));
  expect(answers.toSorted()).toEqual(['in_flight', 'in_flight', 'in_flight', 'started']);
  expectIntact(path);
});

it('the last process to close leaves one file, and the next process finds every record', async () => {
  const path = storeFolder();
  const stores = [await openSqlite(path), await openSqlite(path)];
  const request = newRequest();
  expect(await stores[0]?.start(request)).toEqual({ kind: 'started' });
  for (const store of stores) await store.close();
  expect(readdirSync(path)).toEqual(['records.db']);
  expect(await (await openSqlite(path)).peek(request)).toEqual({ kind: 'in_flight' });
  expectIntact(path);
});

// Each may see that the other is still open, so that neither empties the WAL. Then the next process reads it.
it('processes that close at once lose nothing', async () => {
  const path = storeFolder();
  const stores = [await openSqlite(path), await openSqlite(path)];
  const requests = Array.from({ length: 20 }, () => newRequest());
  for (const request of requests) expect(await stores[0]?.start(request)).toEqual({ kind: 'started' });
  await Promise.all(stores.map((store) => store.close()));
  expectIntact(path);
  const store = await openSqlite(path);
  for (const request of requests) expect(await store.peek(request)).toEqual({ kind: 'in_flight' });
});
