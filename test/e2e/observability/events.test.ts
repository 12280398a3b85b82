import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Store } from '../../../src/ledger/ledger.ts';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { leaseOf, Names } from '../../../src/store/redis/commands.ts';
import { send, withdraw } from '../../support/client.ts';
import { idle, scrape } from '../../support/metrics.ts';
import { openStore } from '../../support/open-store.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const LEASE_MS = 2000;
const STORE_TIMEOUT_MS = 1000;

let redis: RedisServer;
let stack: Stack;
/** A client of the same store, as another gateway has it. */
let another: Store;

beforeAll(async () => {
  redis = await startRedis({ args: ['--appendfsync', 'everysec'] });
  stack = await openStack({
    ...onRedis(redis, STORE_TIMEOUT_MS),
    lock: { leaseMs: LEASE_MS },
    idempotency: { completeRetryMs: 400, undeclared: 'pass' },
    operations: [
      {
        name: 'withdraw',
        match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
        idempotency: { key: 'optional' },
      },
    ],
  });
  another = await openStore({ kind: 'redis', url: redis.url, prefix: 'oncegate' }, { leaseMs: LEASE_MS });
});
afterAll(async () => {
  await another.close();
  await stack.close();
});

/** A payout that the backend holds until the test ends its delay, and the names of its record and its lease in Redis. */
async function held(key: string) {
  const answer = withdraw(stack.url, { key, fault: 'delay=60000' });
  await until(() => stack.sandbox.requests.ofKey(key) > 0);
  const name = new Names('oncegate').recordOf(recordIdOf('gateway', 'M-ALPHA', key));
  // The first renewal takes the lease.
  const names = [name, leaseOf(name)];
  await until(async () => (await redis.admin.exists(...names)) === 2);
  return { answer, names };
}

const logged = (msg: string) => stack.log.filter((line) => line.msg === msg);

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

describe('a rare event is counted and logged', () => {
  it('a lease that lapsed while its owner was alive', async () => {
    const { answer, names } = await held('lease-lost');
    await redis.admin.del(names.filter((name) => name.endsWith(':lease')));
    await until(() => logged('a lease lapsed while its owner was alive').length > 0);
    stack.sandbox.endDelays('lease-lost');
    expect((await answer).status).toBe(201);
    const after = await idle(stack.adminUrl);
    expect(after.value('oncegate_lease_lost_total')).toBe(1);
    expect(after.value('oncegate_stale_total')).toBe(0);
    expect(logged('a lease lapsed while its owner was alive')).toHaveLength(1);
  });
});
