import { expect, test } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { newRequest } from '../support/requests.ts';
import { countRecords, openSqlite, storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';

// The sweep removed at most 200 records a second. With more new keys than that, the store grew without bound.
test('three thousand keys that expire at once are gone within seconds', async () => {
  const path = storeFolder();
  let monotonicMs = 1_000_000;
  const clock = { ...systemClock, monotonicMs: () => monotonicMs };
  const store = await openSqlite(path, { inDoubtRetentionMs: 1000, timeoutMs: 20_000, clock });
  await Promise.all(Array.from({ length: 3_000 }, () => store.start(newRequest())));
  expect(countRecords(path)).toBe(3_000);
  monotonicMs += 1000;
  // At 200 a second it would take fifteen seconds.
  await until(() => countRecords(path) === 0, 8_000);
});
