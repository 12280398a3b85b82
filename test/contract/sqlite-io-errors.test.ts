/** Disks that fail under the SQLite store, by libfiu: no acknowledged write is lost, and service resumes when writes succeed. */
import { execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { duplicateOf, newRequest } from '../support/requests.ts';
import { expectIntact, openSqlite, RemoteStore, storeFolder } from '../support/sqlite-files.ts';
import { expectKept, expectRefusing, expectResumed, fill } from './failing-disk.ts';

const EIO = 5;
const EROFS = 30;
const SYNC = 'posix/io/sync/*';
const PWRITE = 'posix/io/rw/pwrite';

/** libfiu creates two pipes with this beginning for each process. */
const PIPES = join(tmpdir(), 'oncegate-fiu');

/** A store in a process in which libfiu makes system calls fail. */
async function openUnderFiu(path: string): Promise<RemoteStore> {
  const store = await RemoteStore.open(path, {}, ['fiu-run', '-x', '-f', PIPES]);
  // A process that is killed leaves them behind.
  onTestFinished(() => {
    for (const end of ['in', 'out']) rmSync(`${PIPES}-${store.pid}.${end}`, { force: true });
  });
  return store;
}

/** For example `enable name=posix/io/sync/fdatasync,failinfo=5` (EIO), or `disable name=…`. */
function fiu({ pid }: { pid: number }, command: string): void {
  execFileSync('fiu-ctrl', ['-f', PIPES, '-c', command, `${pid}`]);
}

describe('an I/O error', () => {
  it.each([
    ['a sync', SYNC, EIO],
    ['a write', PWRITE, EIO],
    ['a write to a file system that became read-only', PWRITE, EROFS],
  ])('of %s: refuses, replays, and resumes', async (_, name, errno) => {
    const path = storeFolder();
    const store = await openUnderFiu(path);
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
    const store = await openUnderFiu(path);
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
    expect(await next.get(request.recordId)).toMatchObject({ state: 'executing', token: request.token });
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
    expect(await next.get(request.recordId)).toBeUndefined();
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
    expect(await next.get(request.recordId)).toMatchObject({ state: 'executing', token: successor.token });
  });
});
