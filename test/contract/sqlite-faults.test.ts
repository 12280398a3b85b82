/** Disks that fail under the SQLite store: no acknowledged write is lost, and service resumes when writes succeed. */
import { execFileSync, spawnSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Execution } from '../../src/idempotency/store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import {
  expectIntact,
  fiu,
  openSqlite,
  RemoteStore,
  storeFolder,
  underFiu,
} from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { replayOf } from './states.ts';

const EIO = 5;
const EROFS = 30;
const SYNC = 'posix/io/sync/*';
const PWRITE = 'posix/io/rw/pwrite';

/** Starts and completes keys until a write is refused. Returns the completed ones and the refusal. */
async function fill(store: RemoteStore) {
  const completed: Execution[] = [];
  for (;;) {
    const request = newRequest();
    for (const call of ['start', 'complete'] as const) {
      const reply = await store.ask(call, request);
      if ('refused' in reply) return { completed, request, call, ...reply.refused };
    }
    completed.push(request);
  }
}

async function expectReplays(store: RemoteStore, completed: Execution[]): Promise<void> {
  for (const request of completed.slice(-3))
    expect(await store.answer('start', duplicateOf(request))).toBe('completed');
}

/** While no write succeeds, replays are answered, starts are refused at once, and the health check says why. */
async function expectRefusing(store: RemoteStore, completed: Execution[]): Promise<void> {
  await expectReplays(store, completed);
  expect(await store.ask('start', newRequest())).toMatchObject({ refused: { maybeWritten: false } });
  expect(await store.answer('refusing')).toEqual(expect.any(String));
  expect(await store.answer('health')).toMatchObject({ ok: false });
}

/** The store finds out that writes succeed again, without any request. */
async function expectResumed(store: RemoteStore): Promise<void> {
  await until(async () => (await store.answer('refusing')) === null);
  const request = newRequest();
  expect(await store.answer('start', request)).toBe('started');
  expect(await store.answer('complete', request)).toBe('ok');
  expect(await store.answer('health')).toEqual({ ok: true, detail: 'sqlite', warnings: [] });
}

async function expectKept(path: string, completed: Execution[]): Promise<void> {
  expectIntact(path);
  const store = await openSqlite(path);
  for (const request of completed)
    expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid(request.key), request));
}

describe('a full disk', () => {
  it('by a limit on the size of files: refuses, replays, and resumes', async () => {
    const path = storeFolder();
    const store = await RemoteStore.open(path);
    const limit = (bytes: string) =>
      execFileSync('prlimit', ['--pid', `${store.pid}`, `--fsize=${bytes}:unlimited`]);
    limit('600000');
    const { completed, request } = await fill(store);
    await expectReplays(store, completed);
    limit('1');
    expect(await store.ask('complete', newRequest())).toMatchObject({ refused: { maybeWritten: true } });
    await expectRefusing(store, completed);
    limit('unlimited');
    await expectResumed(store);
    expect(await store.answer('release', request)).toMatch(/ok|stale/);
    await expectKept(path, completed);
  });

  it('on a small file system: refuses, replays, and resumes when there is space', async (context) => {
    const folder = storeFolder();
    const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', folder]).status === 0;
    if (!mounted) return context.skip('mounting is not permitted here');
    onTestFinished(() => void spawnSync('umount', ['-l', folder]));
    const ballast = join(folder, 'ballast');
    writeFileSync(ballast, Buffer.alloc(1_000_000));
    const path = join(folder, 'data');
    const store = await RemoteStore.open(path, { keepFreeBytes: 0 });
    const { completed } = await fill(store);
    await expectReplays(store, completed);
    rmSync(ballast);
    await expectResumed(store);
    await expectKept(path, completed);
    await store.kill();
  });
});

it('a read-only file system is refused at open, and the error names the path', async (context) => {
  const path = storeFolder();
  const store = await RemoteStore.open(path);
  expect(await store.answer('start', newRequest())).toBe('started');
  await store.kill();
  const mounted = spawnSync('mount', ['--bind', path, path]).status === 0;
  if (!mounted) return context.skip('mounting is not permitted here');
  onTestFinished(() => void spawnSync('umount', ['-l', path]));
  execFileSync('mount', ['-o', 'remount,bind,ro', path]);
  await expect(openSqlite(path)).rejects.toMatchObject({
    name: 'StoreUnavailable',
    message: expect.stringContaining(path),
  });
});

describe('an I/O error', () => {
  it.each([
    ['a sync', SYNC, EIO],
    ['a write', PWRITE, EIO],
    ['a write to a file system that became read-only', PWRITE, EROFS],
  ])('of %s: refuses, replays, and resumes', async (_, name, errno) => {
    const path = storeFolder();
    const store = await RemoteStore.open(path, {}, underFiu);
    const before = newRequest();
    expect(await store.answer('start', before)).toBe('started');
    expect(await store.answer('complete', before)).toBe('ok');
    const sent = newRequest();
    expect(await store.answer('start', sent)).toBe('started');
    fiu(store, `enable name=${name},failinfo=${errno}`);
    const { completed, call, maybeWritten } = await fill(store);
    expect({ completed, call, maybeWritten }).toEqual({ completed: [], call: 'start', maybeWritten: true });
    // A complete is tried although the store refuses starts.
    expect(await store.ask('complete', sent)).toMatchObject({ refused: { maybeWritten: true } });
    await expectRefusing(store, [before]);
    fiu(store, `disable name=${name}`);
    await expectResumed(store);
    expect(await store.answer('complete', sent)).toBe('ok');
    await expectKept(path, [before, sent]);
  });
});

describe('after a failed sync and a kill -9', () => {
  /** A start whose COMMIT failed, although its frames are in the WAL. */
  async function failedStart(path: string) {
    const store = await RemoteStore.open(path, {}, underFiu);
    expect(await store.answer('start', newRequest())).toBe('started');
    fiu(store, `enable name=${SYNC},failinfo=${EIO}`);
    const request = newRequest();
    expect(await store.ask('start', request)).toMatchObject({ refused: { maybeWritten: true } });
    return { store, request };
  }

  it('the frames of a start are valid, so the start counts as maybe written', async () => {
    const path = storeFolder();
    const { store, request } = await failedStart(path);
    await store.kill();
    expectIntact(path);
    const next = await openSqlite(path);
    // This shows that the start may be written. If it fails, a newer SQLite removes the frames of a failed COMMIT.
    expect(await next.get(request.scope)).toMatchObject({ state: 'executing', token: request.token });
    expect(await next.start(duplicateOf(request))).toEqual({ kind: 'in_flight' });
  });

  it('the frames of a start are gone if a release under its token was answered before the kill', async () => {
    const path = storeFolder();
    const { store, request } = await failedStart(path);
    fiu(store, `disable name=${SYNC}`);
    // There is no record to release, but the voided token is written, over the frames of the start.
    expect(await store.answer('release', request)).toBe('stale');
    await store.kill();
    expectIntact(path);
    const next = await openSqlite(path);
    expect(await next.get(request.scope)).toBeUndefined();
    await expect(next.start(request)).rejects.toMatchObject({ maybeWritten: false });
    expect(await next.start(duplicateOf(request))).toEqual({ kind: 'started' });
  });

  it('the frames of a start are gone if another process wrote before the kill', async () => {
    const path = storeFolder();
    const { store, request } = await failedStart(path);
    const other = await RemoteStore.open(path);
    const successor = duplicateOf(request);
    expect(await other.answer('start', successor)).toBe('started');
    await Promise.all([store.kill(), other.kill()]);
    expectIntact(path);
    const next = await openSqlite(path);
    expect(await next.get(request.scope)).toMatchObject({ state: 'executing', token: successor.token });
  });
});
