import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { newVersion, openEnvironment } from '../../src/idempotency/stores/lmdb/environment.ts';
import { openStore, type StorePlace } from '../support/open-store.ts';
import { newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { Worker } from '../support/worker.ts';

async function openCommits() {
  const path = mkdtempSync(join(tmpdir(), 'lmdb-commits-'));
  const told: StoreUnavailable[] = [];
  const { records, commits, close } = await openEnvironment(path, (failure) => told.push(failure));
  onTestFinished(async () => {
    await close();
    rmSync(path, { recursive: true, force: true });
  });
  const issued: string[] = [];
  const write = (name: string) =>
    commits.write(() => {
      issued.push(name);
      return records.ifNoExists(Buffer.from(name), () => {
        void records.put(Buffer.from(name), Buffer.from(name), newVersion());
      });
    });
  const broken = () => commits.write(() => Promise.reject(new Error('no room')));
  return { commits, told, issued, write, broken, close };
}

const refused = (message: string, maybeWritten: boolean, forGood = true) =>
  expect.objectContaining({ name: 'StoreUnavailable', message, maybeWritten, forGood });

describe('commits', () => {
  it('take what came while one was under way together, and begin when it is done', async () => {
    const { issued, write } = await openCommits();
    const first = write('a');
    await Promise.resolve();
    expect(issued).toEqual(['a']);
    const [second, third] = [write('b'), write('c')];
    expect(await first).toBe(true);
    expect(await Promise.all([second, third, write('a')])).toEqual([true, true, false]);
    expect(issued).toEqual(['a', 'b', 'c', 'a']);
  });

  it('end with the first that fails: nobody knows of those beside it, and none is issued after it', async () => {
    const { issued, told, write, broken } = await openCommits();
    const group = [write('a'), broken(), broken()];
    await Promise.resolve();
    const later = write('b');
    const ends = await Promise.allSettled([...group, later]);
    const unknown = refused('lmdb could not write: no room', true);
    const surelyNot = refused('lmdb could not write: no room', false);
    expect(ends.map((end) => end.status === 'rejected' && end.reason)).toEqual([
      ...[unknown, unknown, unknown],
      surelyNot,
    ]);
    await expect(write('c')).rejects.toEqual(surelyNot);
    expect(issued).toEqual(['a']);
    expect(told).toEqual([expect.any(StoreUnavailable)]);
  });

  it('are refused once it is closed, and what was taken before is committed', async () => {
    const { commits, told, issued, write } = await openCommits();
    const first = write('a');
    await Promise.resolve();
    const second = write('b');
    const ended = commits.end();
    await expect(write('c')).rejects.toEqual(refused('lmdb is closed', false, false));
    await ended;
    expect([issued, await first, await second]).toEqual([['a', 'b'], true, true]);
    expect(told).toEqual([]);
  });

  it('that another process holds up make the store unhealthy, until it goes on', async () => {
    const place: StorePlace = { kind: 'lmdb', path: mkdtempSync(join(tmpdir(), 'lmdb-commits-')) };
    onTestFinished(() => rmSync(place.path, { recursive: true, force: true }));
    const store = await openStore(place, { timeoutMs: 100 });
    onTestFinished(() => store.close());
    const stopped = new Worker(place, { kind: 'stop_within_commit' });
    onTestFinished(() => stopped.kill());
    await stopped.hears('stops');
    expect(await store.health()).toMatchObject({ ok: true });
    await expect(store.claim(newRequest())).rejects.toMatchObject({ name: 'StoreUnavailable' });
    const { detail } = await until(async () => {
      const health = await store.health();
      return health.ok ? undefined : health;
    });
    expect(detail).toMatch(/^lmdb: no commit has ended for \d+ ms: /);
    process.kill(stopped.pid, 'SIGCONT');
    await until(async () => (await store.health()).ok);
    const claimed = await until(() => store.claim(newRequest()).catch(() => undefined));
    expect(claimed).toEqual({ kind: 'claimed', tookOver: false });
  });
});
