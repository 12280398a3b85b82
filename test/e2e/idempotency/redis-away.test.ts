import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, expect, it } from 'vitest';
import { BEARER, send, type TestAnswer, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRedis } from '../../support/redis-server.ts';
import { gatewayForTest, openStack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const unavailable = { status: 503, code: 'store_unavailable', retryAfter: 1 } as const;
/** Long enough for a loaded machine, because this limit is for requests that are never answered. */
const TIMEOUT_MS = 1000;

const redis = await startRedis();
const wire = await startProxy(redis.port);
const stack = await openStack({
  ...onRedis(wire, TIMEOUT_MS),
  upstream: { maxConnections: 4 },
  idempotency: { completeRetryMs: 300 },
});
afterAll(() => stack?.close());

const readiness = async () => (await send(stack.adminUrl, { path: '/readyz' })).status;
afterEach(() => until(async () => (await readiness()) === 200));

/** Retries until there is a result. Until then, only these answers are allowed. */
async function untilResult(key: string): Promise<TestAnswer> {
  return await until(async () => {
    const answer = await withdraw(stack.url, { key, headers: { Prefer: 'wait=1' } });
    if (answer.headers['content-type'] !== 'application/problem+json') return answer;
    expect(['store_unavailable', 'request_in_flight', 'outcome_unknown']).toContain(codeOf(answer));
    return undefined;
  });
}

it('while Redis gets everything and is not heard, a request with a key is not sent, one without passes, and a retry is executed once', async () => {
  const { url, sandbox } = stack;
  const [completed, key] = [randomUUID(), randomUUID()];
  const before = await withdraw(url, { key: completed });
  expect(before.status).toBe(201);

  wire.swallowReplies(true);
  const unready = readiness();
  for (const answer of await Promise.all([withdraw(url, { key }), withdraw(url, { key: completed })]))
    expectProblem(answer, unavailable);
  expect(await unready).toBe(503);
  expect(sandbox.requests.ofKey(key)).toBe(0);
  const payouts = sandbox.ledger.payouts();
  expect((await withdraw(url)).status).toBe(201);
  expect(sandbox.ledger.payouts()).toBe(payouts + 1);
  const safe = { ...BEARER, 'x-service-idempotency': key };
  expect((await send(url, { path: '/v2/get_balance', headers: safe })).status).toBe(200);

  wire.swallowReplies(false);
  const executed = await untilResult(key);
  expect([executed.status, executed.headers['idempotent-replayed']]).toEqual([201, undefined]);
  expect((await withdraw(url, { key })).body).toEqual(executed.body);
  expect((await withdraw(url, { key: completed })).body).toEqual(before.body);
  for (const one of [key, completed]) expect(sandbox.ledger.payouts({ key: one })).toBe(1);
});

it('when Redis dies while the backend executes, merchants are answered, and later retries get the same', async () => {
  const { url, sandbox } = stack;
  const other = await gatewayForTest(stack.config);
  const payouts = [
    { key: randomUUID(), fault: 'delay=60000', status: 201 },
    { key: randomUUID(), fault: 'delay=60000,500-after', status: 500 },
  ];
  const refused = { key: randomUUID(), fault: 'delay=60000,status=429', status: 429 };
  const all = [...payouts, refused];
  const answers = all.map(({ key, fault }) => withdraw(url, { key, fault }));
  for (const { key } of all) await until(() => sandbox.requests.ofKey(key) === 1);
  const [{ key: waited }] = payouts as [(typeof payouts)[number]];
  const [here, there] = [withdraw(url, { key: waited }), withdraw(other.url, { key: waited })];
  for (const { adminUrl } of [stack, other])
    await until(async () => (await metric(adminUrl, 'oncegate_waiting')) === 1);
  await redis.kill();
  // The other gateway polls the record, and its reads fail.
  expectProblem(await there, unavailable);
  for (const { key } of all) sandbox.endDelays(key);

  const executed = await Promise.all(answers);
  expect(executed.map(({ status }) => status)).toEqual(all.map(({ status }) => status));
  // In the same gateway the duplicate waits for the first request, whose result is not stored.
  expectProblem(await here, unavailable);
  for (const { key } of payouts) expectProblem(await withdraw(url, { key }), unavailable);
  const late = await metric(stack.adminUrl, 'oncegate_complete_late_total', { operation: 'withdraw' });
  expect(late).toBe(payouts.length);

  await redis.restart();
  for (const [at, { key }] of payouts.entries()) {
    const replayed = await untilResult(key);
    expect([replayed.status, replayed.body]).toEqual([executed[at]?.status, executed[at]?.body]);
    expect(replayed.headers['idempotent-replayed']).toBe('true');
    expect([sandbox.ledger.payouts({ key }), sandbox.requests.ofKey(key)]).toEqual([1, 1]);
  }
  // Certainly not executed: the record is released as soon as Redis is back.
  const retried = await untilResult(refused.key);
  expect([retried.status, retried.headers['idempotent-replayed']]).toEqual([201, undefined]);
  expect(sandbox.ledger.payouts({ key: refused.key })).toBe(1);
});
