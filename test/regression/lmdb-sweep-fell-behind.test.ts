import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { LmdbStore } from '../../src/idempotency/stores/lmdb/lmdb-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { countLmdb } from '../support/lmdb-files.ts';
import { LONG } from '../support/open-store.ts';
import { newRequest } from '../support/requests.ts';
import { until } from '../support/until.ts';

// It removed 200 records a second at most: with more new keys than that, the store grew for as long as they came.
test('three thousand keys that expire at once are gone within seconds', async () => {
  const path = mkdtempSync(join(tmpdir(), 'lmdb-fell-behind-'));
  let monotonicMs = 1_000_000;
  const clock = { ...systemClock, monotonicMs: () => monotonicMs };
  const store = await LmdbStore.open({ path, ...LONG, retentionMs: 1000, timeoutMs: 20_000, clock });
  onTestFinished(async () => {
    await store.close();
    rmSync(path, { recursive: true, force: true });
  });
  await Promise.all(Array.from({ length: 3_000 }, () => store.claim(newRequest())));
  expect(await countLmdb(path)).toBe(3_000);
  monotonicMs += 1000;
  // At 200 a second it would be fifteen seconds.
  await until(async () => (await countLmdb(path)) === 0, 8_000);
});
