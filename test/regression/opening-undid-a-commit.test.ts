import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { scopeOf } from '../../src/idempotency/fingerprint.ts';
import { nameOfThisProcess } from '../../src/idempotency/stores/lmdb/process-id.ts';
import { openStore, type StorePlace } from '../support/open-store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { Worker } from '../support/worker.ts';

function newPlace(): StorePlace & { kind: 'lmdb' } {
  const path = mkdtempSync(join(tmpdir(), 'opening-'));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  return { kind: 'lmdb', path };
}

/** A process that writes all the time; it has begun to. */
async function writer(place: StorePlace): Promise<Worker> {
  const worker = new Worker(place, { kind: 'ledger', lanes: 4 });
  await until(() => worker.said.length > 50);
  return worker;
}

const saidOf = (workers: Worker[], word: string): string[] =>
  workers.flatMap(({ said }) => said.filter(([spoken]) => spoken === word).map(([, key]) => key as string));

describe('opening an LMDB store undid the last commit of another process', () => {
  it('while stores are opened and closed all the time, nothing is lost and nothing is won twice', async () => {
    const place = newPlace();
    const writers = [await writer(place), await writer(place)];
    const openers = Array.from({ length: 4 }, () => new Worker(place, { kind: 'reopen' }));
    await until(() => openers.every(({ said }) => said.length >= 10), 25_000);
    await Promise.all([...writers, ...openers].map((worker) => worker.kill()));

    const claimed = saidOf(writers, 'claimed');
    expect(claimed.length).toBeGreaterThan(100);
    expect(new Set(claimed).size).toBe(claimed.length);
    expect(writers.flatMap(({ said }) => said.filter(([word]) => word.includes('stale')))).toEqual([]);
    const store = await openStore(place);
    onTestFinished(() => store.close());
    for (const key of claimed) expect(await store.get(scopeOf('M-1', key))).toBeDefined();
    for (const key of saidOf(writers, 'settle ok')) {
      const claim = await store.claim(duplicateOf(newRequest({ key })));
      expect(claim).toEqual({ kind: 'settled', settlement: paid(key) });
    }
  });

  it('a process that writes holds back as long as another one opens', async () => {
    const place = newPlace();
    const worker = await writer(place);
    const folder = join(place.path, 'processes');
    const opening = `${nameOfThisProcess()}.${'1'.padStart(20, '0')}`;
    writeFileSync(join(folder, `${opening}.opening`), '');
    await until(() => readdirSync(folder).some((name) => name.startsWith(`${opening}.holds.${worker.pid}.`)));
    // Lines that were under way have arrived when nothing more comes for several turns.
    let held = worker.said.length;
    await until(() => {
      const same = worker.said.length === held;
      held = worker.said.length;
      return same;
    });
    const silence = performance.now() + 300;
    await until(() => performance.now() > silence);
    expect(worker.said.length).toBe(held);
    rmSync(join(folder, `${opening}.opening`));
    await until(() => worker.said.length > held + 50);
  });

  it('who opens waits for a process that stands still, and not for one that is dead; others write on', async () => {
    const place = newPlace();
    // Idle: one that stood still within a commit would keep LMDB's own lock.
    const worker = new Worker(place, { kind: 'race', keys: [] });
    await worker.hears('ready');
    const other = await writer(place);
    process.kill(worker.pid, 'SIGSTOP');
    let isOpen = false;
    const opening = openStore(place).then((store) => {
      isOpen = true;
      return store;
    });
    const folder = join(place.path, 'processes');
    await until(() => readdirSync(folder).some((name) => name.includes(`.listens.${other.pid}.`)));
    const before = other.said.length;
    await until(() => other.said.length > before + 100);
    expect(isOpen).toBe(false);
    await worker.kill();
    const store = await opening;
    onTestFinished(() => store.close());
    expect(await store.claim(newRequest())).toMatchObject({ kind: 'claimed' });
  });

  it('what dead processes left behind holds nobody up, and is taken away', async () => {
    const place = newPlace();
    const folder = join(place.path, 'processes');
    mkdirSync(folder, { mode: 0o700 });
    // Process numbers end well below; and this process with another start time is another process.
    const dead = ['999999999.1', `${process.pid}.1`];
    for (const name of dead) {
      for (const file of [`${name}.here`, `${name}.1.opening`]) writeFileSync(join(folder, file), '');
    }
    const store = await openStore(place);
    onTestFinished(() => store.close());
    expect(await store.claim(newRequest())).toMatchObject({ kind: 'claimed' });
    expect(readdirSync(folder)).toEqual([`${nameOfThisProcess()}.here`]);
  });
});
