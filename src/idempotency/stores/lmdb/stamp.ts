import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Clock } from '../../../kernel/clock.ts';

/**
 * When a record was claimed, and when its owner last showed life.
 *
 * Within a boot only the monotonic clock counts, so that a jump of the wall clock ages nothing. Monotonic times of
 * another boot mean nothing; there, and where the boot is not known, the wall clock has to do.
 */
export interface Stamp {
  boot: Buffer;
  claimedMonotonicMs: number;
  claimedWallMs: number;
  aliveMonotonicMs: number;
  aliveWallMs: number;
}

/** 16 bytes of boot and four f64 (milliseconds, big-endian), in the order of {@link Stamp}. */
export const STAMP_BYTES = 48;

export function encodeStamp(stamp: Stamp): Buffer {
  const bytes = Buffer.alloc(STAMP_BYTES);
  stamp.boot.copy(bytes, 0);
  bytes.writeDoubleBE(stamp.claimedMonotonicMs, 16);
  bytes.writeDoubleBE(stamp.claimedWallMs, 24);
  bytes.writeDoubleBE(stamp.aliveMonotonicMs, 32);
  bytes.writeDoubleBE(stamp.aliveWallMs, 40);
  return bytes;
}

export function decodeStamp(bytes: Buffer): Stamp {
  return {
    boot: bytes.subarray(0, 16),
    claimedMonotonicMs: bytes.readDoubleBE(16),
    claimedWallMs: bytes.readDoubleBE(24),
    aliveMonotonicMs: bytes.readDoubleBE(32),
    aliveWallMs: bytes.readDoubleBE(40),
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
    const [monotonicMs, wallMs] = [this.#clock.monotonicMs(), this.#clock.wallMs()];
    return {
      boot: this.#boot,
      claimedMonotonicMs: monotonicMs,
      claimedWallMs: wallMs,
      aliveMonotonicMs: monotonicMs,
      aliveWallMs: wallMs,
    };
  }

  /** The same claim, alive now. Only ever written by the boot that the owner runs in. */
  alive(stamp: Stamp): Stamp {
    const now = this.now();
    const { aliveMonotonicMs, aliveWallMs } = now;
    if (stamp.boot.equals(this.#boot)) return { ...stamp, aliveMonotonicMs, aliveWallMs };
    const ageMs = this.sinceClaimMs(stamp);
    // A boot has passed: the claim's age is carried over to this boot's clock.
    return { ...now, claimedMonotonicMs: now.claimedMonotonicMs - ageMs, claimedWallMs: stamp.claimedWallMs };
  }

  /** The same claim, whose owner shows no life: it has given up, or is taken for gone. */
  gone(stamp: Stamp): Stamp {
    return { ...stamp, aliveMonotonicMs: Number.NEGATIVE_INFINITY, aliveWallMs: Number.NEGATIVE_INFINITY };
  }

  /** Milliseconds since the first claim. A wall clock that went back makes a record younger, never older. */
  sinceClaimMs(stamp: Stamp): number {
    if (this.#sameBoot(stamp)) return this.#clock.monotonicMs() - stamp.claimedMonotonicMs;
    return Math.max(0, this.#clock.wallMs() - stamp.claimedWallMs);
  }

  /** Milliseconds since the owner last showed life. An owner of another boot is gone. */
  sinceAliveMs(stamp: Stamp): number {
    if (this.#sameBoot(stamp)) return this.#clock.monotonicMs() - stamp.aliveMonotonicMs;
    if (this.#bootKnown) return Number.POSITIVE_INFINITY;
    return Math.max(0, this.#clock.wallMs() - stamp.aliveWallMs);
  }

  #sameBoot(stamp: Stamp): boolean {
    return this.#bootKnown && stamp.boot.equals(this.#boot);
  }
}
