/** Disks that are full or read-only under the SQLite store: no acknowledged write is lost, and service resumes when writes succeed. */
import { execFileSync, spawnSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { newRequest } from '../support/requests.ts';
import { openSqlite, RemoteStore, storeFolder } from '../support/sqlite-files.ts';
import { expectKept, expectReplays, expectResumed, fill } from './failing-disk.ts';

it('a full disk: refuses, replays, and resumes when there is space', async (context) => {
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
