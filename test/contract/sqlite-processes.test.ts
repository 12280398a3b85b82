/** Many processes on one file: they may open, close and read it, and be killed, at any moment. */
import { readdirSync } from 'node:fs';
import { expect, it } from 'vitest';
import { newRequest } from '../support/requests.ts';
import {
  countRecords,
  expectIntact,
  openSqlite,
  RemoteLoad,
  RemoteStore,
  storeFolder,
} from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';

/** How much is paid before it is judged. */
const STARTED = 100;
const COMPLETED = 50;

it('the store keeps every acknowledged write when its process is killed, and starts nothing twice', async () => {
  const path = storeFolder();
  const loads: RemoteLoad[] = [];
  // Each round begins with the keys of the round before.
  for (let round = 0; round < 3; round++) {
    const writing = await RemoteStore.open(path);
    // In the first rounds no other process has the store open, so the next one finds what the killed one left.
    const beside = round === 2 ? await openSqlite(path) : undefined;
    const load = new RemoteLoad([writing], 8);
    await until(() => load.completed.length >= COMPLETED);
    await writing.kill();
    // Others can write at once.
    if (beside) expect(await beside.start(newRequest())).toEqual({ kind: 'started' });
    loads.push(load);
  }
  for (const load of loads) await load.expectKept(path);
  const started = loads.flatMap((load) => load.started.map(({ key }) => key));
  expect(new Set(started).size).toBe(started.length);
});

it('while four processes open and close the store and another one reads it, no payout is lost or started twice', async () => {
  const path = storeFolder();
  const openAll = (count: number) => Promise.all(Array.from({ length: count }, () => RemoteStore.open(path)));
  const [writers, openers] = [await openAll(2), await openAll(4)];
  const load = new RemoteLoad(writers, 4);
  const opened = openers.map(() => 0);
  const opening = openers.map((opener, at) =>
    opener.untilKilled(async () => {
      await opener.answer('reopen');
      opened[at] = (opened[at] ?? 0) + 1;
    }),
  );
  await until(() => load.started.length > 0);
  await until(() => {
    expect(countRecords(path)).toBeGreaterThan(0);
    return Math.min(...opened) >= 5 && load.started.length > STARTED && load.completed.length > COMPLETED;
  }, 25_000);
  await Promise.all([...writers, ...openers].map((store) => store.kill()));
  await Promise.all(opening);
  await load.expectKept(path);
});

it('the last process to close leaves the database and its lock file, and the next process finds every record', async () => {
  const path = storeFolder();
  const stores = [await openSqlite(path), await openSqlite(path)];
  const request = newRequest();
  expect(await stores[0]?.start(request)).toEqual({ kind: 'started' });
  for (const store of stores) await store.close();
  expect(readdirSync(path)).toEqual(['records.db', 'records.db-lock']);
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
