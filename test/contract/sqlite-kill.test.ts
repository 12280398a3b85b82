import { expect, it } from 'vitest';
import { newRequest } from '../support/requests.ts';
import { openSqlite, RemoteLoad, RemoteStore, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';

const ROUNDS = 3;
const LANES = 8;

it('the store keeps every acknowledged write when its process is killed, and starts nothing twice', async () => {
  const path = storeFolder();
  const loads: RemoteLoad[] = [];
  // Each round begins with the keys of the round before.
  for (let round = 0; round < ROUNDS; round++) {
    const store = await RemoteStore.open(path);
    const load = new RemoteLoad([store], LANES);
    await until(() => load.completed.length >= 50);
    await store.kill();
    loads.push(load);
  }
  for (const load of loads) await load.expectKept(path);
  const started = loads.flatMap((load) => load.started.map(({ key }) => key));
  expect(new Set(started).size).toBe(started.length);
});

it('the store works for another process as soon as the writing process is killed', async () => {
  const path = storeFolder();
  const writing = await RemoteStore.open(path);
  const load = new RemoteLoad([writing], LANES);
  await until(() => load.started.length > 50);
  const store = await openSqlite(path);
  await writing.kill();
  expect(await store.start(newRequest())).toEqual({ kind: 'started' });
});
