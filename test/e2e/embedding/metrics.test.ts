import { statfsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { idempotency, sqliteStore } from '../../../src/index.ts';
import { temporaryFolder } from '../../support/config.ts';
import { closeAfterTest, embed } from '../../support/embedded.ts';
import { until } from '../../support/until.ts';

it('idempotency() counts a key in doubt once for all handlers with the same metrics, and pages nobody at once', async () => {
  const store = await sqliteStore({ path: temporaryFolder(), timeoutMs: 5000 });
  closeAfterTest(() => store.close());
  const { post } = await embed(
    // 502 leaves the key in doubt.
    (app, protect) => app.post('/payouts', protect, (_req, res) => void res.status(502).end()),
    { store },
  );
  expect((await post('k-1')).status).toBe(502);

  const first = idempotency({ store, operation: 'withdraw', merchant: () => 'M-ALPHA' });
  const { metrics } = first;
  const second = idempotency({ store, operation: 'refund', merchant: () => 'M-ALPHA', metrics });
  for (const { close } of [first, second]) closeAfterTest(() => close(1000));
  const valuesOf = async (name: string) =>
    [...(await metrics.text()).matchAll(new RegExp(`^oncegate_${name}(?:\\{.*\\})? (.+)$`, 'gm'))].map(
      ([, value]) => Number(value),
    );
  const sum = async (name: string) => (await valuesOf(name)).reduce((all, value) => all + value, 0);
  await until(async () => (await sum('doubts_counted_timestamp_seconds')) > 0);
  expect(await sum('keys_in_doubt')).toBe(1);
  expect(await sum('oldest_in_doubt_seconds')).toBeLessThan(60);
  // OncegateInDoubtOld compares the age with this.
  expect(await valuesOf('in_doubt_page_after_seconds')).toEqual([3600]);
});

it('idempotency() shows what SQLite uses and commits, once for all handlers with the same metrics', async () => {
  const path = temporaryFolder();
  const store = await sqliteStore({ path, timeoutMs: 5000 });
  closeAfterTest(() => store.close());
  const { post, protect } = await embed(
    (app, first) => {
      const second = idempotency({
        ...{ store, operation: 'refund', merchant: () => 'M-ALPHA', metrics: first.metrics },
      });
      closeAfterTest(() => second.close(1000));
      app.post('/payouts', first, (_req, res) => void res.status(201).end());
    },
    { store },
  );
  const shown = async (name: string) => {
    const text = await protect.metrics.text();
    return Number(new RegExp(`^oncegate_${name} (.+)$`, 'm').exec(text)?.[1]);
  };
  const before = await shown('sqlite_commit_duration_seconds_count');
  expect((await post('k-1')).status).toBe(201);
  // The start and the complete, and perhaps the running time of SQLite's clock.
  expect([2, 3]).toContain((await shown('sqlite_commit_duration_seconds_count')) - before);
  const { bavail, bsize } = statfsSync(path);
  expect(Math.abs((await shown('store_disk_free_bytes')) / (bavail * bsize) - 1)).toBeLessThan(0.2);
  await until(async () => (await shown('sqlite_wal_bytes')) === statSync(join(path, 'records.db-wal')).size);
  expect(await shown('sqlite_writer_queue')).toBe(0);
});
