import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { AUDIT_RETENTION_MS } from '../../src/idempotency/resolution.ts';
import { StoreUnavailable } from '../../src/idempotency/store.ts';
import { LmdbStore } from '../../src/idempotency/stores/lmdb/lmdb-store.ts';
import { STAMP_BYTES } from '../../src/idempotency/stores/lmdb/stamp.ts';
import { type Clock, systemClock } from '../../src/kernel/clock.ts';
import { countLmdb, rewriteLmdb, sweepLmdb } from '../support/lmdb-files.ts';
import { LONG, type StoreTimes } from '../support/open-store.ts';
import { duplicateOf, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring, stages } from './states.ts';

async function openLmdb(
  times: Partial<StoreTimes>,
  clock: Clock = systemClock,
): Promise<{ path: string; store: LmdbStore }> {
  const path = mkdtempSync(join(tmpdir(), 'lmdb-sweep-'));
  const store = await LmdbStore.open({ path, ...LONG, ...times, clock });
  onTestFinished(async () => {
    await store.close();
    rmSync(path, { recursive: true, force: true });
  });
  return { path, store };
}

describe('the sweep', () => {
  it('removes records past their retention, and no others', async () => {
    let monotonicMs = 1_000_000;
    const clock = { ...systemClock, monotonicMs: () => monotonicMs };
    const { path, store } = await openLmdb({ retentionMs: 1000 }, clock);
    // More than one step's worth, so that it has to go on where it stopped.
    for (let number = 0; number < 30; number++) for (const stage of stages) await bring(store, stage);
    monotonicMs += 999;
    const kept = await Promise.all(Array.from({ length: 20 }, () => bring(store, 'executing')));
    expect(await countLmdb(path)).toBe(140);
    monotonicMs += 1;
    await until(async () => (await countLmdb(path)) === kept.length);
    for (const { scope, token } of kept) expect(await store.get(scope)).toMatchObject({ token });
  });
});

describe('audit records', () => {
  it('outlive the record that they tell about, and no longer than they are kept', async () => {
    let monotonicMs = 1_000_000;
    const clock = { ...systemClock, monotonicMs: () => monotonicMs };
    const { path, store } = await openLmdb({ retentionMs: 1000 }, clock);
    const owner = await bring(store, 'in_doubt');
    const note = { by: 'ada', reason: 'not in the books' };
    expect(await store.resolve(owner.scope, owner.token, { as: 'released' }, note)).toBe('ok');
    const control = await bring(store, 'in_doubt');
    monotonicMs += AUDIT_RETENTION_MS - 1;
    await until(async () => (await countLmdb(path)) === 1);
    expect(await store.get(control.scope)).toBeUndefined();
    expect(await store.audit(owner.scope)).toMatchObject([note]);
    monotonicMs += 1;
    await until(async () => (await countLmdb(path)) === 0);
  });
});

describe('a stored value that was damaged', () => {
  const noise = Buffer.from(Array.from({ length: 200 }, (_, number) => (number * 151 + 7) % 256));
  const damages: [what: string, damage: (stored: Buffer) => Buffer][] = [
    ['zeros', (stored) => Buffer.alloc(stored.length)],
    ['ones', (stored) => Buffer.alloc(stored.length, 0xff)],
    ['noise', () => noise],
    ['nothing', () => Buffer.alloc(0)],
    ['a stamp without record', (stored) => stored.subarray(0, STAMP_BYTES)],
    // Each stands in the stamp, from which the age is read.
    ...[0, 4, 20, 28, 36, 44].map((at): (typeof damages)[number] => [
      `eight zeros at ${at}`,
      (stored) => Buffer.concat([stored.subarray(0, at), Buffer.alloc(8), stored.subarray(at + 8)]),
    ]),
  ];

  it.each(damages)('(%s) is never absent, never won and not swept away', async (_, damage) => {
    const { path, store } = await openLmdb({ leaseMs: 1 });
    const owner = await bring(store, 'executing');
    await rewriteLmdb(path, owner.scope, damage);
    expect(await sweepLmdb(path, LONG.retentionMs)).toBe(0);
    await expect(store.claim(duplicateOf(owner))).rejects.toThrow(StoreUnavailable);
    await expect(store.get(owner.scope)).rejects.toThrow(StoreUnavailable);
    await expect(store.settle(owner, paid())).rejects.toThrow(StoreUnavailable);
  });

  it('is not swept away when its time is over', async () => {
    const { path, store } = await openLmdb({});
    const [owner, control] = [await bring(store, 'executing'), await bring(store, 'executing')];
    await rewriteLmdb(path, owner.scope, (stored) => stored.fill(0, 60, 61));
    expect(await sweepLmdb(path, 0)).toBe(1);
    expect(await store.get(control.scope)).toBeUndefined();
    await expect(store.claim(duplicateOf(owner))).rejects.toThrow(StoreUnavailable);
  });
});
