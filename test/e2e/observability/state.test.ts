import { statfsSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { parsedConfig } from '../../support/config.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { type Scrape, scrape } from './support/scrape.ts';

const infoIn = (shown: Scrape) =>
  shown.samples.filter(({ name }) => name === 'oncegate_config_info').map(({ labels }) => labels);

describe('a gateway on SQLite', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({ upstream: { maxConnections: 7 } });
  });
  afterAll(() => stack.close());
  const now = () => scrape(stack.adminUrl);
  const path = () => {
    const { store } = parsedConfig(stack.config);
    return store.kind === 'sqlite' ? store.path : '';
  };

  it('measures each transaction that changed something', async () => {
    const count = async () => (await now()).value('oncegate_sqlite_commit_duration_seconds_count') ?? 0;
    const before = await count();
    expect((await withdraw(stack.url, { key: 'measured' })).status).toBe(201);
    expect(await count()).toBeGreaterThanOrEqual(before + 2);
    const sum = (await now()).value('oncegate_sqlite_commit_duration_seconds_sum') ?? 0;
    expect(sum).toBeGreaterThan(0);
    expect(sum).toBeLessThan(10);
  });

  it('shows the size of the write-ahead log and the free space of the disk', async () => {
    const wal = await until(async () => (await now()).value('oncegate_sqlite_wal_bytes'));
    expect(wal).toBeGreaterThan(4096);
    const { bavail, bsize } = statfsSync(path());
    const free = (await now()).value('oncegate_store_disk_free_bytes') ?? 0;
    expect(free / (bavail * bsize)).toBeGreaterThan(0.9);
    expect(free / (bavail * bsize)).toBeLessThan(1.1);
  });

  it('shows how many commands wait while another process holds the write lock', async () => {
    expect((await now()).value('oncegate_sqlite_writer_queue')).toBe(0);
    const other = new DatabaseSync(join(path(), 'records.db'));
    other.exec('BEGIN IMMEDIATE');
    const first = withdraw(stack.url, { key: 'held-1' });
    // From here on the writer thread tries to begin a transaction with the first payout.
    await until(async () => (await now()).value('oncegate_in_flight') === 1);
    const second = withdraw(stack.url, { key: 'held-2' });
    await until(async () => (await now()).value('oncegate_sqlite_writer_queue') === 1);
    expect((await now()).value('oncegate_sqlite_writer_queue')).toBe(1);
    other.exec('ROLLBACK');
    other.close();
    expect([(await first).status, (await second).status]).toEqual([201, 201]);
    expect((await now()).value('oncegate_sqlite_writer_queue')).toBe(0);
  });

  it('shows how many slots there are', async () => {
    expect((await now()).value('oncegate_upstream_slots')).toBe(7);
  });

  it('says how it is configured', async () => {
    expect(infoIn(await now())).toEqual([
      { mode: 'protect', undeclared: 'protect', store: 'sqlite', keys: 'file', workers: '1' },
    ]);
  });
});

describe('a gateway on Redis', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({
      ...onRedis(await startRedis({ args: ['--appendfsync', 'everysec'] })),
      idempotency: { undeclared: 'pass' },
      operations: [
        {
          name: 'withdraw',
          match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
          idempotency: { key: 'optional', inDoubt: 'retry' },
        },
      ],
    });
  });
  afterAll(() => stack.close());

  it('shows no free space, because the disk is another machine’s', async () => {
    const shown = await scrape(stack.adminUrl);
    expect(shown.value('oncegate_store_disk_free_bytes')).toBeUndefined();
    expect(shown.value('oncegate_sqlite_wal_bytes')).toBe(0);
    expect(shown.value('oncegate_sqlite_commit_duration_seconds_count')).toBe(0);
    expect(infoIn(shown)).toMatchObject([{ undeclared: 'pass', store: 'redis' }]);
  });

  it('counts its warnings, as /readyz shows them', async () => {
    const shown = await until(async () => {
      const one = await scrape(stack.adminUrl);
      return one.value('oncegate_config_warnings', { about: 'operations' }) ? one : undefined;
    });
    const { checks } = (await send(stack.adminUrl, { path: '/readyz' })).json<{
      checks: { name: string; warnings?: string[] }[];
    }>();
    const warnings = Object.fromEntries(checks.map((check) => [check.name, check.warnings?.length ?? 0]));
    for (const about of ['operations', 'store']) {
      expect(warnings[about], about).toBeGreaterThan(0);
      expect(shown.value('oncegate_config_warnings', { about }), about).toBe(warnings[about]);
    }
    expect(shown.value('oncegate_config_warnings', { about: 'certificates' })).toBe(0);
    // A key that has expired and is not revoked.
    expect(shown.value('oncegate_config_warnings', { about: 'keys' })).toBeGreaterThan(0);
  });
});
