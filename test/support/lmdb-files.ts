import { open, type RootDatabase } from 'lmdb';
import { openEnvironment } from '../../src/idempotency/stores/lmdb/environment.ts';
import { settledKey, unsettledKey } from '../../src/idempotency/stores/lmdb/keys.ts';
import { Ages, currentBoot } from '../../src/idempotency/stores/lmdb/stamp.ts';
import { Sweep } from '../../src/idempotency/stores/lmdb/sweep.ts';
import type { Scope } from '../../src/kernel/brands.ts';
import { systemClock } from '../../src/kernel/clock.ts';

/** The database as the store lays it out: key → stamp and record, versioned. */
function openFiles(path: string): RootDatabase<Buffer, Buffer> {
  const options = { path, encoding: 'binary', keyEncoding: 'binary', useVersions: true, cache: false };
  return open<Buffer, Buffer>(options as Parameters<typeof open>[0] & { path: string }) as RootDatabase<
    Buffer,
    Buffer
  >;
}

/** Replaces what is stored under a scope, stamp included, behind the store's back. */
export async function rewriteLmdb(
  path: string,
  scope: Scope,
  change: (stored: Buffer) => Buffer,
): Promise<void> {
  const files = openFiles(path);
  const key = [settledKey(scope), unsettledKey(scope)].find((place) => files.doesExist(place));
  const stored = key && files.get(key);
  if (!stored) throw new Error('no record stands there');
  await files.put(key, change(stored), 1);
  await files.close();
}

/** How many records the files hold, those past their retention included. */
export async function countLmdb(path: string): Promise<number> {
  const files = openFiles(path);
  const count = files.getCount();
  await files.close();
  return count;
}

/** One step of a sweep of its own. Resolves to the number of records removed. */
export async function sweepLmdb(path: string, retentionMs: number, mayWrite = true): Promise<number> {
  const environment = await openEnvironment(path);
  const aged = { ...environment, ages: new Ages(currentBoot(), systemClock) };
  const sweep = new Sweep(aged, retentionMs, () => mayWrite);
  sweep.stop();
  const removed = await sweep.step();
  await environment.close();
  return removed;
}
