import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { scopeOf } from '../../src/idempotency/fingerprint.ts';
import { openStore, type StorePlace } from '../support/open-store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { type Said, Worker } from '../support/worker.ts';

const ROUNDS = 3;
const LANES = 8;

const saidOf = (said: Said[], word: string): string[] =>
  said.filter(([spoken]) => spoken === word).map(([, key]) => key as string);

/** A process that claims, begins and settles, killed in the middle of it. */
async function killedProcess(place: StorePlace): Promise<Said[]> {
  const worker = new Worker(place, { kind: 'ledger', lanes: LANES });
  await until(() => saidOf(worker.said, 'settle ok').length >= 50);
  await worker.kill();
  return worker.said;
}

it('keeps every acknowledged write when its process is killed, and gives nothing twice', async () => {
  const path = mkdtempSync(join(tmpdir(), 'lmdb-kill-'));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  const place: StorePlace = { kind: 'lmdb', path };
  const said: Said[] = [];
  // Each round starts with the keys of the one before.
  for (let round = 0; round < ROUNDS; round++) said.push(...(await killedProcess(place)));

  const claimed = saidOf(said, 'claimed');
  expect(new Set(claimed).size).toBe(claimed.length);
  const store = await openStore(place);
  onTestFinished(() => store.close());
  const states = new Map<string, string | undefined>();
  for (const key of claimed) states.set(key, (await store.get(scopeOf('M-1', key)))?.state);
  expect(claimed.filter((key) => states.get(key) === undefined)).toEqual([]);
  expect(saidOf(said, 'begin ok').filter((key) => states.get(key) === 'claimed')).toEqual([]);
  for (const key of saidOf(said, 'settle ok')) {
    const claim = await store.claim(duplicateOf(newRequest({ key })));
    expect(claim).toEqual({ kind: 'settled', settlement: paid(key) });
  }
  expect(said.filter(([word]) => word.includes('stale') || word === 'mismatch')).toEqual([]);
});
