import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { closeSync, fchmodSync, fchownSync, openSync, readFileSync, statSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { messageOf } from '../../lib/files.ts';
import { isBusy, type Tables, unavailable, versionOf } from './database.ts';
import { OWNER_IS_DEAD } from './records.ts';

/*
 * The store's clock counts running time, in milliseconds. Records age by running time only, so that no step of the wall clock
 * makes a record expire.
 *
 * Within one boot of the machine, running time is the monotonic clock, which all processes share, and an offset. After a reboot it
 * continues from the last value in the database. Downtime does not count, so records can live longer, but never shorter.
 */

/**
 * Identifies the current boot of the machine, by a file on Linux or a setting of the kernel on macOS. On a system that has neither,
 * processes cannot know that they share a clock.
 */
export function bootId(file = '/proc/sys/kernel/random/boot_id'): Buffer | undefined {
  const sources = [
    () => readFileSync(file),
    () => execFileSync('sysctl', ['-n', 'kern.bootsessionuuid'], { stdio: ['ignore', 'pipe', 'ignore'] }),
  ];
  for (const read of sources) {
    try {
      return createHash('sha256').update(read()).update(clockOffset()).digest().subarray(0, 16);
    } catch {
      // The next one may know it.
    }
  }
  return undefined;
}

/** How far the monotonic clock of this process is from the machine's, if a time namespace of Linux moves it. Otherwise empty. */
function clockOffset(): string {
  try {
    return /^monotonic.*[1-9].*/m.exec(readFileSync('/proc/self/timens_offsets', 'latin1'))?.[0] ?? '';
  } catch {
    return '';
  }
}

/** Makes the file of the lock if it is missing. As SQLite's own files, it has the mode and, by a command of root, the owner of the database. */
function lockFileOf(file: string): string {
  const path = `${file}-lock`;
  const { mode, uid, gid } = statSync(file);
  try {
    const fd = openSync(path, 'wx', mode & 0o777);
    // The umask has taken bits away, and another user of the file must be able to write the next boot id.
    fchmodSync(fd, mode & 0o777);
    if (process.getuid?.() === 0) fchownSync(fd, uid, gid);
    closeSync(fd);
  } catch {
    // It is there, or SQLite says why it cannot be used.
  }
  return path;
}

/** How long the main thread waits at start-up for processes that open the store too. */
const LOCK_WITHIN_MS = 1000;

/**
 * Only processes that see the same boot id know that they share a clock. One whose clock is behind takes living owners for dead, and so
 * does one that sees another boot id, as containers of LXC do. So all of one boot id share a lock, and one without a boot id has it alone.
 *
 * @returns the connection that holds the lock, until it is closed or the process ends
 */
export function lockClock(file: string, boot: Buffer | undefined): DatabaseSync {
  const path = lockFileOf(file);
  const lock = new DatabaseSync(path, { timeout: LOCK_WITHIN_MS / 50 });
  const seen = boot?.readInt32BE();
  for (const startedMs = performance.now(); performance.now() - startedMs < LOCK_WITHIN_MS; )
    try {
      // A transaction that has read holds a lock that others can share.
      lock.exec(boot ? 'BEGIN' : 'BEGIN EXCLUSIVE');
      if (!boot || versionOf(lock) === seen) return lock;
      // Succeeds only while no other process shares the lock. Another one may write its boot id before the next BEGIN, so it is read again.
      lock.exec(`ROLLBACK; BEGIN EXCLUSIVE; PRAGMA user_version = ${seen}; COMMIT`);
    } catch (error) {
      if (lock.isTransaction) lock.exec('ROLLBACK');
      if (isBusy(error)) continue;
      lock.close();
      // Otherwise an operator would take the database for damaged, and restore an older one.
      throw new Error(`${path}: ${messageOf(error)}`, { cause: error });
    }
  lock.close();
  throw new Error('another process uses it, and does not see the same boot id, so their clocks may differ');
}

type StoredClock = [boot: Uint8Array | null, offsetMs: number, observedAt: number | null];

/**
 * Begins or continues running time in this boot. Returns running time minus the monotonic clock.
 *
 * @throws SQLITE_BUSY if another process holds the write lock, and this one is the first of its boot
 */
export function enterBoot(database: Tables, boot: Uint8Array | undefined, monotonicMs: number): number {
  const select = database.prepare('SELECT boot, offset_ms, observed_at FROM store');
  select.setReturnArrays(true);
  const stored = () => select.get() as unknown as StoredClock;
  const isKnown = ([known]: StoredClock) => boot && known && Buffer.compare(boot, known) === 0;
  let clock = stored();
  if (!isKnown(clock)) {
    database.exec('BEGIN IMMEDIATE');
    // Another process may have set it since it was read.
    if (!isKnown(stored())) beginBoot(database, boot, monotonicMs, stored());
    database.exec('COMMIT');
    clock = stored();
  }
  if (!Number.isFinite(clock[1])) throw damaged();
  return clock[1];
}

function beginBoot(
  database: Tables,
  boot: Uint8Array | undefined,
  monotonicMs: number,
  [earlierBoot, , observedMs]: StoredClock,
): void {
  const observedAt = observedMs ?? Math.floor(monotonicMs);
  if (!Number.isSafeInteger(observedAt)) throw damaged();
  // Two boot ids that differ prove that the owners of the earlier boot are dead. Their records get an age of one lease: those that
  // are younger, or that were written after the running time was last stored. Without both ids, owners count as alive until then.
  if (boot && earlierBoot)
    database.prepare("UPDATE records SET lease_until = ? WHERE state IS NOT 'completed'").run(OWNER_IS_DEAD);
  database
    .prepare('UPDATE store SET boot = ?, offset_ms = ?, observed_at = ?')
    .run(boot ?? null, observedAt - monotonicMs, observedAt);
}

const damaged = () => unavailable('the clock in table "store" is damaged');
