import { expect, it } from 'vitest';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import { openStore, type StorePlace } from '../support/open-store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { expectIntact, openSqlite, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { replayOf } from './states.ts';
import { type Said, Worker } from './worker.ts';

const ROUNDS = 3;
const LANES = 8;

const saidOf = (said: Said[], word: string): string[] =>
  said.filter(([spoken]) => spoken === word).map(([, key]) => key as string);

/** Runs a process that starts and completes keys, and kills it in the middle. */
async function killedProcess(place: StorePlace): Promise<Said[]> {
  const worker = new Worker(place, { kind: 'ledger', lanes: LANES });
  await until(() => saidOf(worker.said, 'complete ok').length >= 50);
  await worker.kill();
  return worker.said;
}

it('the store keeps every acknowledged write when its process is killed, and starts nothing twice', async () => {
  const path = storeFolder();
  const said: Said[] = [];
  // Each round begins with the keys of the round before.
  for (let round = 0; round < ROUNDS; round++) said.push(...(await killedProcess({ kind: 'sqlite', path })));

  expectIntact(path);
  const started = saidOf(said, 'started');
  expect(new Set(started).size).toBe(started.length);
  const store = await openSqlite(path);
  for (const key of started) expect(await store.get(recordIdOf('gateway', 'M-1', key))).toBeDefined();
  for (const key of saidOf(said, 'complete ok'))
    expect(await store.start(duplicateOf(newRequest({ key })))).toEqual(
      replayOf(paid(key), { requestId: key }),
    );
  expect(said.filter(([word]) => word.includes('stale') || word === 'mismatch')).toEqual([]);
});

it('the store works for another process as soon as the writing process is killed', async () => {
  const path = storeFolder();
  const worker = new Worker({ kind: 'sqlite', path }, { kind: 'ledger', lanes: LANES });
  await until(() => worker.said.length > 50);
  const store = await openStore({ kind: 'sqlite', path });
  await worker.kill();
  expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  await store.close();
});
