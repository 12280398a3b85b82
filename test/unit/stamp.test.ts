import { describe, expect, it } from 'vitest';
import {
  Ages,
  currentBoot,
  decodeStamp,
  encodeStamp,
  STAMP_BYTES,
} from '../../src/idempotency/stores/lmdb/stamp.ts';

const BOOT = Buffer.alloc(16, 1);
const NEXT_BOOT = Buffer.alloc(16, 2);
const UNKNOWN_BOOT = Buffer.alloc(16);
const DAY_MS = 86_400_000;

/** A clock set by hand. */
const clockAt = (wallMs: number, monotonicMs: number) => ({
  wallMs: () => wallMs,
  monotonicMs: () => monotonicMs,
});

const agesAt = (boot: Buffer, wallMs: number, monotonicMs: number) =>
  new Ages(boot, clockAt(wallMs, monotonicMs));

describe('a stamp', () => {
  it('is read as it was written', () => {
    const claimed = { claimedMonotonicMs: 12.5, claimedWallMs: 1.7e12 };
    const stamp = { boot: BOOT, ...claimed, aliveMonotonicMs: 99.75, aliveWallMs: 1.7e12 + 87 };
    expect(encodeStamp(stamp)).toHaveLength(STAMP_BYTES);
    expect(decodeStamp(encodeStamp(stamp))).toEqual(stamp);
  });

  it('ages by the monotonic clock within a boot, wherever the wall clock goes', () => {
    const stamp = agesAt(BOOT, 1.7e12, 1000).now();
    for (const jumpMs of [-DAY_MS, 0, DAY_MS]) {
      const ages = agesAt(BOOT, 1.7e12 + jumpMs, 1400);
      expect(ages.sinceClaimMs(stamp)).toBe(400);
      expect(ages.sinceAliveMs(stamp)).toBe(400);
    }
  });

  it('shows life without becoming younger', () => {
    const stamp = agesAt(BOOT, 1.7e12, 1000).now();
    const alive = agesAt(BOOT, 1.7e12 + DAY_MS, 1300).alive(stamp);
    const ages = agesAt(BOOT, 1.7e12, 1350);
    expect(ages.sinceAliveMs(alive)).toBe(50);
    expect(ages.sinceClaimMs(alive)).toBe(350);
  });

  it('of another boot ages by the wall clock, and its owner is gone', () => {
    const stamp = agesAt(BOOT, 1.7e12, 5_000_000).now();
    const ages = agesAt(NEXT_BOOT, 1.7e12 + 60_000, 10);
    expect(ages.sinceClaimMs(stamp)).toBe(60_000);
    expect(ages.sinceAliveMs(stamp)).toBe(Number.POSITIVE_INFINITY);
  });

  it('of another boot is kept longer where the wall clock went back, never shorter', () => {
    const stamp = agesAt(BOOT, 1.7e12, 5_000_000).now();
    expect(agesAt(NEXT_BOOT, 1.7e12 - DAY_MS, 10).sinceClaimMs(stamp)).toBe(0);
  });

  it('takes its age along when it shows life in another boot', () => {
    const stamp = agesAt(BOOT, 1.7e12, 5_000_000).now();
    const alive = agesAt(NEXT_BOOT, 1.7e12 + 60_000, 10).alive(stamp);
    expect(alive.claimedWallMs).toBe(1.7e12);
    const ages = agesAt(NEXT_BOOT, 1.7e12 + DAY_MS, 1010);
    expect(ages.sinceClaimMs(alive)).toBe(61_000);
    expect(ages.sinceAliveMs(alive)).toBe(1000);
  });

  it('ages by the wall clock where the boot is not known, and its owner is not gone at once', () => {
    const stamp = agesAt(UNKNOWN_BOOT, 1.7e12, 1000).now();
    const ages = agesAt(UNKNOWN_BOOT, 1.7e12 + 100, 50);
    expect(ages.sinceClaimMs(stamp)).toBe(100);
    expect(ages.sinceAliveMs(stamp)).toBe(100);
    const alive = ages.alive(stamp);
    const later = agesAt(UNKNOWN_BOOT, 1.7e12 + 250, 60);
    expect(later.sinceClaimMs(alive)).toBe(250);
    expect(later.sinceAliveMs(alive)).toBe(150);
    expect(agesAt(UNKNOWN_BOOT, 1.7e12 - DAY_MS, 60).sinceAliveMs(stamp)).toBe(0);
  });
});

describe('the boot', () => {
  it('is the same each time it is asked for, and unknown where the system does not tell', () => {
    expect(currentBoot()).toEqual(currentBoot());
    expect(currentBoot()).toHaveLength(16);
    expect(currentBoot('/nowhere/boot_id')).toEqual(UNKNOWN_BOOT);
  });
});
