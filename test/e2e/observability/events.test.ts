import { afterAll, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { leaseOf, Names } from '../../../src/store/redis/commands.ts';
import { send, withdraw } from '../../support/client.ts';
import { idle, scrape } from '../../support/metrics.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const redis = await startRedis({ args: ['--appendfsync', 'everysec'] });
const stack = await openStack({
  ...onRedis(redis, 1000),
  lock: { leaseMs: 2000 },
  idempotency: { undeclared: 'pass' },
  operations: [
    {
      name: 'withdraw',
      match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
      idempotency: { key: 'optional' },
    },
  ],
});
afterAll(() => stack.close());

it('a gateway on Redis shows how it is configured, its warnings, and nothing of SQLite', async () => {
  const shown = await until(async () => {
    const one = await scrape(stack.adminUrl);
    return one.value('oncegate_config_warnings', { about: 'operations' }) ? one : undefined;
  });
  expect(shown.value('oncegate_store_disk_free_bytes')).toBeUndefined();
  expect(shown.value('oncegate_sqlite_wal_bytes')).toBe(0);
  expect(shown.value('oncegate_sqlite_commit_duration_seconds_count')).toBe(0);
  expect(shown.table('oncegate_config_info', 'mode', 'undeclared', 'store', 'keys')).toEqual({
    'protect pass redis file': 1,
  });
  const ready = await send(stack.adminUrl, { path: '/readyz' });
  expect(ready.status).toBe(200);
  const { checks } = ready.json<{ checks: { name: string; warnings?: string[] }[] }>();
  const warnings = Object.fromEntries(checks.map((check) => [check.name, check.warnings?.length ?? 0]));
  for (const about of ['operations', 'store']) {
    expect(warnings[about], about).toBeGreaterThan(0);
    expect(shown.value('oncegate_config_warnings', { about }), about).toBe(warnings[about]);
  }
  expect(shown.value('oncegate_config_warnings', { about: 'certificates' })).toBe(0);
  // A key that has expired and is not revoked.
  expect(shown.value('oncegate_config_warnings', { about: 'keys' })).toBeGreaterThan(0);
});

it('a lease that lapsed while its owner was alive is counted and logged', async () => {
  const answer = withdraw(stack.url, { key: 'lease-lost', fault: 'delay=60000' });
  const lease = leaseOf(new Names('oncegate').recordOf(recordIdOf('gateway', 'M-ALPHA', 'lease-lost')));
  // The first renewal takes it.
  await until(async () => (await redis.admin.exists(lease)) === 1);
  await redis.admin.del(lease);
  const logged = () => stack.log.filter(({ msg }) => msg === 'a lease lapsed while its owner was alive');
  await until(() => logged().length > 0);
  stack.sandbox.endDelays('lease-lost');
  expect((await answer).status).toBe(201);
  const after = await idle(stack.adminUrl);
  expect(after.value('oncegate_lease_lost_total')).toBe(1);
  expect(after.value('oncegate_stale_total')).toBe(0);
  expect(logged()).toHaveLength(1);
});
