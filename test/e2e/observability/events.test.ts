import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { Store } from '../../../src/idempotency/store.ts';
import { withdraw } from '../../support/client.ts';
import { openStore } from '../../support/open-store.ts';
import { payoutBody } from '../../support/payout.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { newRequest } from '../../support/requests.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { type Scrape, scrape } from './support/scrape.ts';
import { idle } from './support/traffic.ts';

const LEASE_MS = 2000;
const STORE_TIMEOUT_MS = 1000;

let redis: RedisServer;
let stack: Stack;
/** A client of the same store, as another gateway has it. */
let another: Store;

beforeAll(async () => {
  redis = await startRedis();
  stack = await openStack({
    ...onRedis(redis, STORE_TIMEOUT_MS),
    lock: { leaseMs: LEASE_MS },
    idempotency: { completeRetryMs: 400 },
  });
  another = await openStore({ kind: 'redis', url: redis.url, prefix: 'oncegate' }, { leaseMs: LEASE_MS });
});
afterAll(async () => {
  await another.close();
  await stack.close();
});

let before: Scrape;
beforeEach(async () => {
  before = await idle(stack.adminUrl);
});

const counters = ['stale', 'lease_lost', 'complete_late', 'in_doubt', 'idempotency_conflicts'];

/** How much the counters of rare events have grown in this test. */
async function counted(): Promise<Record<string, number>> {
  const after = await idle(stack.adminUrl);
  const grown = counters.map((name) => {
    const metric = `oncegate_${name}_total`;
    return [name, (after.value(metric) ?? 0) - (before.value(metric) ?? 0)] as const;
  });
  return Object.fromEntries(grown.filter(([, count]) => count > 0));
}

/** A payout that the backend holds until the test ends its delay. */
const held = (key: string) => withdraw(stack.url, { key, fault: 'delay=60000' });
const reached = (key: string) => until(() => stack.sandbox.requests.ofKey(key) > 0);

/** The same payout as another gateway would start it. */
const payoutOf = (key: string) => {
  const payout = payoutBody();
  return newRequest({ merchant: 'M-ALPHA', key, body: JSON.stringify(payout) });
};

/** The new keys in Redis: a record, and perhaps its lease. */
async function added(before: string[]): Promise<string[]> {
  const keys = (await redis.admin.keys('oncegate:*')).filter((key) => !before.includes(key));
  expect(keys.filter((key) => !key.endsWith(':lease'))).toHaveLength(1);
  return keys;
}

const logged = (msg: string) => stack.log.filter((line) => line.msg === msg);

describe('a rare event is counted and logged', () => {
  it('a retry of a key that a dead gateway left in doubt', async () => {
    expect(await another.start(payoutOf('left-behind'))).toEqual({ kind: 'started' });
    expect((await withdraw(stack.url, { key: 'left-behind' })).status).toBe(409);
    const labels = { operation: 'withdraw', kind: 'in_doubt' };
    const after = await idle(stack.adminUrl);
    expect(after.value('oncegate_idempotency_conflicts_total', labels)).toBe(1);
    expect(await counted()).toEqual({ idempotency_conflicts: 1 });
  });

  it('a lease that lapsed while its owner was alive', async () => {
    const answer = held('lease-lost');
    await until(async () => (await redis.admin.keys('oncegate:*:lease')).length === 1);
    await redis.admin.del(await redis.admin.keys('oncegate:*:lease'));
    await until(() => logged('a lease lapsed while its owner was alive').length > 0);
    stack.sandbox.endDelays('lease-lost');
    expect((await answer).status).toBe(201);
    expect(await counted()).toEqual({ lease_lost: 1 });
    expect(logged('a lease lapsed while its owner was alive')).toHaveLength(1);
  });

  it('a result whose record had disappeared: it is stored nevertheless, because the backend has executed', async () => {
    const records = await redis.admin.keys('oncegate:*');
    const answer = held('gone');
    await reached('gone');
    await redis.admin.del(await added(records));
    stack.sandbox.endDelays('gone');
    expect((await answer).status).toBe(201);
    const after = await idle(stack.adminUrl);
    expect(after.value('oncegate_stale_total', { write: 'complete' })).toBe(0);
    const replay = await withdraw(stack.url, { key: 'gone', fault: 'delay=60000' });
    expect(replay.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.payouts({ key: 'gone' })).toBe(1);
  });

  it('a result that was refused because another execution owned the record', async () => {
    const records = await redis.admin.keys('oncegate:*');
    const answer = held('refused');
    await reached('refused');
    await redis.admin.del(await added(records));
    expect(await another.start(payoutOf('refused'))).toEqual({ kind: 'started' });
    stack.sandbox.endDelays('refused');
    expect((await answer).status).toBe(502);
    const after = await idle(stack.adminUrl);
    expect(after.value('oncegate_stale_total', { write: 'complete' })).toBe(1);
    expect(logged('a write was refused: another execution owns the record')).not.toHaveLength(0);
    expect(logged('a late response was not stored: the key has another result')).toHaveLength(1);
  });

  it('a response that was sent before it was stored', async () => {
    const answer = held('late');
    await reached('late');
    redis.freeze();
    stack.sandbox.endDelays('late');
    try {
      expect((await answer).status).toBe(201);
      const shown = await idle(stack.adminUrl);
      expect(shown.value('oncegate_complete_late_total', { operation: 'withdraw' })).toBe(1);
      expect(logged('the response was sent before it was stored')).toHaveLength(1);
    } finally {
      redis.thaw();
    }
    const replay = await until(async () => {
      const retry = await withdraw(stack.url, { key: 'late', fault: 'delay=60000' });
      return retry.status === 201 ? retry : undefined;
    });
    expect(replay.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.payouts({ key: 'late' })).toBe(1);
  });

  it('an unreachable store: failed commands, and requests that were not sent', async () => {
    await redis.kill();
    try {
      expect((await withdraw(stack.url, { key: 'no-store' })).status).toBe(503);
      expect((await withdraw(stack.url)).status).toBe(201);
      const after = await scrape(stack.adminUrl);
      const grown = (name: string, labels: Record<string, string>) =>
        (after.value(name, labels) ?? 0) - (before.value(name, labels) ?? 0);
      const failed = (command: string) =>
        grown('oncegate_store_duration_seconds_count', { command, result: 'failed' });
      // While the store is known to refuse writes, the gateway reads from it and starts nothing.
      expect(failed('start') + failed('peek')).toBeGreaterThan(0);
      expect(grown('oncegate_requests_total', { outcome: 'store_unavailable' })).toBe(1);
      expect(grown('oncegate_upstream_duration_seconds_count', {})).toBe(1);
      expect(stack.sandbox.requests.ofKey('no-store')).toBe(0);
    } finally {
      // Before it exits, the gateway releases the start, in case Redis has executed it.
      await redis.restart();
    }
  });
});
