import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import type { Clock } from '../../../kernel/clock.ts';
import { StoreUnavailable } from '../../store.ts';

/**
 * Running time: milliseconds that the gateways of this store have been running and watching. Records age by it and by
 * nothing else, so that no jump of the wall clock makes a record expire.
 *
 * Within one boot of the machine it follows the monotonic clock, which all processes share. In the next boot it continues
 * from the last value that was stored. The time in between does not count, so records live longer, never shorter.
 */
export interface ClockState {
  /** Running time minus monotonic time. */
  offsetMs: number;
  /** Running time at the beginning of this boot. Owners that showed life only before it are dead. */
  bootBeganAt: number;
}

/** Identifies the boot of the machine; undefined if the system does not say. */
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

  /** Without a boot id, processes cannot know whether they share a clock: all follow the one that is ahead. */
  catchUpWith(observedAt: number): void {
    const behindMs = observedAt - this.now().runningMs;
    if (behindMs > 0) this.offsetMs += behindMs;
  }
}

/** One reading of all clocks. A batch of writes uses one reading, taken before it was sent to the writer. */
export interface Now {
  runningMs: number;
  /** Unix milliseconds, for people. */
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

/** This boot's line of running time, if a process of this boot has begun it. A read. */
export function knownClock(database: DatabaseSync, boot: Uint8Array | undefined): ClockState | undefined {
  const stored = readStored(database);
  if (!stored || !boot || !stored.boot || Buffer.compare(boot, stored.boot) !== 0) return undefined;
  return { offsetMs: stored.offset_ms, bootBeganAt: stored.boot_began_at };
}

/** Begins the line of running time of this boot. Within a write transaction. */
export function enterBoot(
  database: DatabaseSync,
  boot: Uint8Array | undefined,
  monotonicMs: number,
): ClockState {
  // Another process may have begun it since.
  const known = knownClock(database, boot);
  if (known) return known;
  const stored = readStored(database);
  if (!stored) {
    database.prepare('INSERT INTO clock VALUES (1, ?, 0, 0, ?)').run(boot ?? null, Math.floor(monotonicMs));
    return { offsetMs: 0, bootBeganAt: 0 };
  }
  if (![stored.boot_began_at, stored.observed_at].every(Number.isSafeInteger))
    throw new StoreUnavailable('the table "clock" is damaged', { maybeWritten: false });
  const observedAt = stored.observed_at;
  const offsetMs = observedAt - monotonicMs;
  // Only two known boots prove that the owners of before are dead. Otherwise they count as alive for their lease.
  const isProven = boot !== undefined && stored.boot !== null;
  const bootBeganAt = isProven ? observedAt : stored.boot_began_at;
  if (isProven) {
    // What owners wrote after the running time was last stored would look like life in this boot.
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
