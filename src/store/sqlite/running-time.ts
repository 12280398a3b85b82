import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import { StoreUnavailable } from '../contract.ts';

/*
 * The store's clock counts running time, in milliseconds. Records age by running time only, so that no step of the wall clock
 * makes a record expire.
 *
 * Within one boot of the machine, running time is the monotonic clock, which all processes share, and an offset. After a reboot it
 * continues from the last value in the database. Downtime does not count, so records can live longer, but never shorter.
 */

/**
 * Identifies the current boot of the machine: Linux has a file, macOS a setting of its kernel. Undefined: the system has neither,
 * so processes cannot know that they share a clock.
 */
export function bootId(file = '/proc/sys/kernel/random/boot_id'): Buffer | undefined {
  const sources = [
    () => readFileSync(file),
    () => execFileSync('sysctl', ['-n', 'kern.bootsessionuuid'], { stdio: ['ignore', 'pipe', 'ignore'] }),
  ];
  for (const read of sources) {
    try {
      return createHash('sha256').update(read()).digest().subarray(0, 16);
    } catch {
      // The next one may know it.
    }
  }
  return undefined;
}

type StoredClock = [boot: Uint8Array | null, offsetMs: number, observedAt: number | null];

function readStored(database: DatabaseSync): StoredClock {
  const select = database.prepare('SELECT boot, offset_ms, observed_at FROM store');
  select.setReturnArrays(true);
  return select.get() as unknown as StoredClock;
}

/** Running time minus the monotonic clock. Undefined: no process of this boot has opened the store yet. Only reads. */
export function knownOffsetMs(database: DatabaseSync, boot: Uint8Array | undefined): number | undefined {
  const [stored, offsetMs] = readStored(database);
  return boot && stored && Buffer.compare(boot, stored) === 0 ? offsetMs : undefined;
}

/** Begins or continues running time in this boot, and returns the offset. Must run within a write transaction. */
export function enterBoot(database: DatabaseSync, boot: Uint8Array | undefined, monotonicMs: number): number {
  // Another process may have set it before this transaction began.
  const known = knownOffsetMs(database, boot);
  if (known !== undefined) return known;
  const [storedBoot, , stored] = readStored(database);
  const observedAt = stored ?? Math.floor(monotonicMs);
  if (!Number.isSafeInteger(observedAt))
    throw new StoreUnavailable('the clock in table "store" is damaged', { maybeWritten: false });
  const offsetMs = observedAt - monotonicMs;
  // Two boot ids that differ prove that the owners of the earlier boot are dead. Their records get an age of one lease: those that
  // are younger, or that were written after the running time was last stored. Without both ids, owners count as alive until then.
  if (boot && storedBoot) {
    database.exec(
      "UPDATE records SET lease_until = NULL WHERE state IS NOT 'completed' AND lease_until IS NOT NULL",
    );
    database
      .prepare(
        `UPDATE records SET in_doubt_retention_ms = expires_at - ?1 + lease_ms
         WHERE state IS NOT 'completed' AND expires_at - ?1 + lease_ms > in_doubt_retention_ms`,
      )
      .run(observedAt);
  }
  database
    .prepare('UPDATE store SET boot = ?, offset_ms = ?, observed_at = ?')
    .run(boot ?? null, offsetMs, observedAt);
  return offsetMs;
}
