import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

let redis: RedisServer;
let stack: Stack;
beforeAll(async () => {
  redis = await startRedis();
  stack = await openStack({ ...onRedis(redis, 1000), idempotency: { settleRetryMs: 300 } });
});
afterAll(() => stack?.close());

/** Asks until the key is settled; on the way there is no answer but these. */
async function untilSettled(key: string): Promise<TestAnswer> {
  return await until(async () => {
    const answer = await withdraw(stack.url, { key, headers: { Prefer: 'wait=1' } });
    if (answer.headers['idempotent-replayed']) return answer;
    const { code } = answer.json<{ error: { code: string } }>().error;
    expect(['store_unavailable', 'request_in_flight', 'outcome_unknown']).toContain(code);
    return undefined;
  });
}

it.each([
  { what: 'a payout', fault: 'delay=400', status: 201, payouts: 1 },
  { what: 'a failure behind a payout', fault: 'delay=400,500-after', status: 500, payouts: 1 },
])(
  'when Redis dies while the backend works, $what is answered, and replayed when Redis is back',
  async (row) => {
    const { url, sandbox } = stack;
    const key = randomUUID();
    const first = withdraw(url, { key, fault: row.fault });
    await until(() => sandbox.requests.ofKey(key) === 1);
    await redis.kill();
    try {
      const executed = await first;
      expect(executed.status).toBe(row.status);
      expect(executed.json()).toHaveProperty(row.status === 201 ? 'data.transaction_id' : 'error');
      expect(sandbox.ledger.payouts({ key })).toBe(row.payouts);
      const retry = await withdraw(url, { key });
      expectProblem(retry, { status: 503, code: 'store_unavailable', retryAfter: 1 });

      await redis.restart();
      const settled = await untilSettled(key);
      expect([settled.status, settled.body]).toEqual([executed.status, executed.body]);
    } finally {
      await redis.restart();
    }
    expect(sandbox.ledger.payouts({ key })).toBe(row.payouts);
    expect(sandbox.requests.ofKey(key)).toBe(1);
  },
);

it('what the merchant got before Redis had it is counted', async () => {
  expect(await metric(stack.adminUrl, 'oncegate_settle_late_total', { operation: 'withdraw' })).toBe(2);
});

it('when Redis dies before a release, the key is free once Redis is back', async () => {
  const { url, sandbox } = stack;
  const key = randomUUID();
  const first = withdraw(url, { key, fault: 'delay=400,status=429' });
  await until(() => sandbox.requests.ofKey(key) === 1);
  await redis.kill();
  try {
    expect((await first).status).toBe(429);
  } finally {
    await redis.restart();
  }
  const executed = await until(async () => {
    const answer = await withdraw(url, { key });
    return answer.status === 201 ? answer : undefined;
  });
  expect(executed.headers).not.toHaveProperty('idempotent-replayed');
  expect(sandbox.ledger.payouts({ key })).toBe(1);
});
