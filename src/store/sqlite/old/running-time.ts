import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import type { Clock } from '../../../lib/clock.ts';
import { StoreUnavailable } from '../../contract.ts';

/**
 * The store's clock, in milliseconds. Records age by running time only, so that no step of the wall clock makes a record
 * expire.
 *
 * Within one boot of the machine, running time follows the monotonic clock, which all processes share. After a reboot it
 * continues from the last value in the database. Downtime does not count, so records can live longer, but never shorter.
 */
export interface ClockState {
  /** Running time minus the monotonic clock. */
  offsetMs: number;
  /** Running time when this boot began. An owner that did not start or renew since then is dead. */
  bootBeganAt: number;
}

/** Identifies the current boot of the machine. Undefined: the system has no boot id. */
export function bootId(file = '/proc/sys/kernel/random/boot_id'): Buffer | undefined {
  try {
    return createHash('sha256').update(readFileSync(file)).digest().subarray(0, 16);
  } catch {
    return undefined;
  }
}

export class RunningTime implements ClockState {
  readonly bootBeganAt: number;
  offsetMs: number;
  readonly #clock: Clock;

  constructor(state: ClockState, clock: Clock) {
    this.bootBeganAt = state.bootBeganAt;
    this.offsetMs = state.offsetMs;
    this.#clock = clock;
  }

  now(): Now {
    return {
      runningMs: this.#clock.monotonicMs() + this.offsetMs,
      wallMs: Math.trunc(this.#clock.wallMs()),
      bootBeganAt: this.bootBeganAt,
    };
  }

  /** Without a boot id, processes cannot know that they share a clock, so each follows the one that is ahead. */
  catchUpWith(observedAt: number): void {
    const behindMs = observedAt - this.now().runningMs;
    if (behindMs > 0) this.offsetMs += behindMs;
  }
}

/** One reading of all clocks. A batch of writes uses one reading, taken before the batch is sent to the writer. */
export interface Now {
  runningMs: number;
  /** Unix milliseconds. Stored for people to read; no decision depends on it. */
  wallMs: number;
  bootBeganAt: number;
}

interface StoredClock {
  boot: Uint8Array | null;
  offset_ms: number;
  boot_began_at: number;
  observed_at: number;
}

const readStored = (database: DatabaseSync): StoredClock | undefined =>
  database.prepare('SELECT boot, offset_ms, boot_began_at, observed_at FROM clock WHERE id = 1').get() as
    | StoredClock
    | undefined;

/** The clock of this boot. Undefined: no process of this boot has opened the store yet. Only reads. */
export function knownClock(database: DatabaseSync, boot: Uint8Array | undefined): ClockState | undefined {
  const stored = readStored(database);
  if (!stored || !boot || !stored.boot || Buffer.compare(boot, stored.boot) !== 0) return undefined;
  return { offsetMs: stored.offset_ms, bootBeganAt: stored.boot_began_at };
}

/** Sets the clock for this boot. Must run within a write transaction. */
export function enterBoot(
  database: DatabaseSync,
  boot: Uint8Array | undefined,
  monotonicMs: number,
): ClockState {
  // Another process may have set it before this transaction began.
  const known = knownClock(database, boot);
  if (known) return known;
  const stored = readStored(database);
  if (!stored) {
    database
      .prepare('INSERT INTO clock (id, boot, offset_ms, boot_began_at, observed_at) VALUES (1, ?, 0, 0, ?)')
      .run(boot ?? null, Math.floor(monotonicMs));
    return { offsetMs: 0, bootBeganAt: 0 };
  }
  if (![stored.boot_began_at, stored.observed_at].every(Number.isSafeInteger))
    throw new StoreUnavailable('the table "clock" is damaged', { maybeWritten: false });
  const observedAt = stored.observed_at;
  const offsetMs = observedAt - monotonicMs;
  // Two boot ids that differ prove that the owners of the earlier boot are dead. Without both ids, owners count as alive
  // until their lease is over.
  const isAnotherBoot = boot !== undefined && stored.boot !== null;
  const bootBeganAt = isAnotherBoot ? observedAt : stored.boot_began_at;
  if (isAnotherBoot) {
    // Owners that renewed after the running time was last stored would seem to have renewed in this boot.
    database
      .prepare(
        "UPDATE records SET alive_at = ?1 - 1 WHERE state <> 'completed' AND typeof(alive_at) = 'integer' AND alive_at >= ?1",
      )
      .run(observedAt);
  }
  database
    .prepare('UPDATE clock SET boot = ?, offset_ms = ?, boot_began_at = ?')
    .run(boot ?? null, offsetMs, bootBeganAt);
  return { offsetMs, bootBeganAt };
}
