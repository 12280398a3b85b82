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
  stack = await openStack({ ...onRedis(redis, 1000), idempotency: { completeRetryMs: 300 } });
});
afterAll(() => stack?.close());

/** What the backend does while Redis dies, and what the merchant still gets. */
const rows = [
  { what: 'a payout', fault: 'delay=60000', status: 201, has: 'data.transaction_id' },
  { what: 'a failure behind a payout', fault: 'delay=60000,500-after', status: 500, has: 'error.code' },
];

/** Retries until there is a result. Until then, only these answers are allowed. */
async function untilResult(key: string): Promise<TestAnswer> {
  return await until(async () => {
    const answer = await withdraw(stack.url, { key, headers: { Prefer: 'wait=1' } });
    if (answer.headers['content-type'] !== 'application/problem+json') return answer;
    const { code } = answer.json<{ error: { code: string } }>().error;
    expect(['store_unavailable', 'request_in_flight', 'outcome_unknown']).toContain(code);
    return undefined;
  });
}

it('when Redis dies while the backend executes, merchants are answered, and later retries get the same', async () => {
  const { url, sandbox } = stack;
  const payouts = rows.map((row) => ({ ...row, key: randomUUID() }));
  const released = randomUUID();
  const answers = payouts.map(({ key, fault }) => withdraw(url, { key, fault }));
  const refused = withdraw(url, { key: released, fault: 'delay=60000,status=429' });
  for (const key of [...payouts.map((payout) => payout.key), released]) {
    await until(() => sandbox.requests.ofKey(key) === 1);
  }
  await redis.kill();
  for (const key of [...payouts.map((payout) => payout.key), released]) sandbox.endDelays(key);

  const executed = await Promise.all(answers);
  for (const [at, { key, status, has }] of payouts.entries()) {
    expect(executed[at]?.status).toBe(status);
    expect(executed[at]?.json()).toHaveProperty(has);
    const retry = await withdraw(url, { key });
    expectProblem(retry, { status: 503, code: 'store_unavailable', retryAfter: 1 });
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  }
  const late = await metric(stack.adminUrl, 'oncegate_complete_late_total', { operation: 'withdraw' });
  expect(late).toBe(payouts.length);
  expect((await refused).status).toBe(429);

  await redis.restart();
  for (const [at, { key }] of payouts.entries()) {
    const replayed = await untilResult(key);
    expect([replayed.status, replayed.body]).toEqual([executed[at]?.status, executed[at]?.body]);
    expect(replayed.headers['idempotent-replayed']).toBe('true');
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(sandbox.requests.ofKey(key)).toBe(1);
  }
  // Certainly not executed: the record is released as soon as Redis is back.
  const retried = await untilResult(released);
  expect([retried.status, retried.headers['idempotent-replayed']]).toEqual([201, undefined]);
  expect(sandbox.ledger.payouts({ key: released })).toBe(1);
});
