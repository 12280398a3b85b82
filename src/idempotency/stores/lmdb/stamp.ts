import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Clock } from '../../../kernel/clock.ts';

/**
 * The 40 bytes before each record: when it was claimed and when its state last showed life.
 *
 *   0   boot, 16 bytes     24  claimed at, wall clock, f64 ms
 *   16  claimed at, monotonic clock, f64 ms     32  alive at, monotonic clock, f64 ms
 *
 * Within a boot only the monotonic clock counts, so that a jump of the wall clock ages nothing. Monotonic times of
 * another boot mean nothing; there the wall clock has to do.
 */
export interface Stamp {
  boot: Buffer;
  claimedMonotonicMs: number;
  claimedWallMs: number;
  aliveMonotonicMs: number;
}

export const STAMP_BYTES = 40;

export function encodeStamp(stamp: Stamp): Buffer {
  const bytes = Buffer.alloc(STAMP_BYTES);
  stamp.boot.copy(bytes, 0);
  bytes.writeDoubleBE(stamp.claimedMonotonicMs, 16);
  bytes.writeDoubleBE(stamp.claimedWallMs, 24);
  bytes.writeDoubleBE(stamp.aliveMonotonicMs, 32);
  return bytes;
}

export function decodeStamp(bytes: Buffer): Stamp {
  return {
    boot: bytes.subarray(0, 16),
    claimedMonotonicMs: bytes.readDoubleBE(16),
    claimedWallMs: bytes.readDoubleBE(24),
    aliveMonotonicMs: bytes.readDoubleBE(32),
  };
}

/** Identifies the boot of the machine; all zeros where the system does not tell, and then only the wall clock is used. */
export function currentBoot(file = '/proc/sys/kernel/random/boot_id'): Buffer {
  try {
    return createHash('sha256').update(readFileSync(file)).digest().subarray(0, 16);
  } catch {
    return Buffer.alloc(16);
  }
}

/** Reads ages off stamps, against one boot and clock. */
export class Ages {
  readonly #boot: Buffer;
  readonly #clock: Clock;
  readonly #bootKnown: boolean;

  constructor(boot: Buffer, clock: Clock) {
    this.#boot = boot;
    this.#clock = clock;
    this.#bootKnown = !boot.equals(Buffer.alloc(16));
  }

  /** A stamp for a claim made now. */
  now(): Stamp {
    const monotonicMs = this.#clock.monotonicMs();
    return {
      boot: this.#boot,
      claimedMonotonicMs: monotonicMs,
      claimedWallMs: this.#clock.wallMs(),
      aliveMonotonicMs: monotonicMs,
    };
  }

  /** The same claim, alive now. Only ever written by the boot that the owner runs in. */
  alive(stamp: Stamp): Stamp {
    if (this.#sameBoot(stamp)) return { ...stamp, aliveMonotonicMs: this.#clock.monotonicMs() };
    const ageMs = this.sinceClaimMs(stamp);
    const now = this.now();
    // A boot has passed: the claim's age is carried over to this boot's clock.
    return { ...now, claimedMonotonicMs: now.claimedMonotonicMs - ageMs, claimedWallMs: stamp.claimedWallMs };
  }

  /** Milliseconds since the first claim. A wall clock that went back makes a record younger, never older. */
  sinceClaimMs(stamp: Stamp): number {
    if (this.#sameBoot(stamp)) return this.#clock.monotonicMs() - stamp.claimedMonotonicMs;
    return Math.max(0, this.#clock.wallMs() - stamp.claimedWallMs);
  }

  /** Milliseconds since the owner last showed life. An owner of another boot is gone. */
  sinceAliveMs(stamp: Stamp): number {
    if (this.#sameBoot(stamp)) return this.#clock.monotonicMs() - stamp.aliveMonotonicMs;
    return Number.POSITIVE_INFINITY;
  }

  #sameBoot(stamp: Stamp): boolean {
    return this.#bootKnown && stamp.boot.equals(this.#boot);
  }
}
