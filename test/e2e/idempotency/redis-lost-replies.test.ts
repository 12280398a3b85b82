import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { startProxy, type TcpProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';

const unavailable = { status: 503, code: 'store_unavailable', retryAfter: 1 } as const;
/** Long enough to act before a reply is delivered, short enough to cause no timeout. */
const REPLY_MS = 1800;

let redis: RedisServer;
let wire: TcpProxy;
let stack: Stack;
beforeAll(async () => {
  redis = await startRedis();
  wire = await startProxy(redis.port);
  stack = await openStack({ ...onRedis(wire, 2000), idempotency: { completeRetryMs: 300 } });
  // From now on Redis knows the scripts, so a start is one command.
  expect((await withdraw(stack.url, { key: randomUUID() })).status).toBe(201);
});
afterAll(() => stack?.close());
afterEach(() => {
  wire.delayReplies(0);
  wire.refuse(false);
  wire.swallowReplies(false);
});

const scripts = () => redis.commandCount('evalsha');

async function untilExecuted(key: string): Promise<TestAnswer> {
  return await until(async () => {
    const answer = await withdraw(stack.url, { key });
    if (answer.status === 201) return answer;
    expectProblem(answer, unavailable);
    return undefined;
  });
}

async function expectExecutedOnce(key: string): Promise<void> {
  const executed = await untilExecuted(key);
  expect(executed.headers).not.toHaveProperty('idempotent-replayed');
  const replayed = await withdraw(stack.url, { key });
  expect(replayed.headers['idempotent-replayed']).toBe('true');
  expect(replayed.body).toEqual(executed.body);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  expect(stack.sandbox.requests.ofKey(key)).toBe(1);
}

it('a start whose reply is lost sends nothing, and is released', async () => {
  const key = randomUUID();
  wire.delayReplies(REPLY_MS);
  const before = await scripts();
  const refused = withdraw(stack.url, { key });
  // Redis has executed the start, and its reply is not yet delivered.
  await until(async () => (await scripts()) > before);
  wire.cut();
  expectProblem(await refused, unavailable);
  expect(stack.sandbox.requests.ofKey(key)).toBe(0);
  wire.delayReplies(0);
  await expectExecutedOnce(key);
});

it('a start that cannot be released at once is released when Redis can be reached again', async () => {
  const key = randomUUID();
  wire.delayReplies(REPLY_MS);
  const before = await scripts();
  const refused = withdraw(stack.url, { key });
  // Redis has executed the start and taken the lease, and its reply is not yet delivered.
  await until(async () => (await scripts()) > before);
  wire.refuse(true);
  wire.cut();
  expectProblem(await refused, unavailable);
  expectProblem(await withdraw(stack.url, { key }), unavailable);
  expect(stack.sandbox.requests.ofKey(key)).toBe(0);
  wire.refuse(false);
  wire.delayReplies(0);
  await expectExecutedOnce(key);
});

it('a complete whose reply is lost is repeated, and the merchant already has the answer', async () => {
  const key = randomUUID();
  const first = withdraw(stack.url, { key, fault: 'delay=60000' });
  await until(() => stack.sandbox.requests.ofKey(key) === 1);
  wire.swallowReplies(true);
  stack.sandbox.endDelays(key);
  const executed = await first;
  expect(executed.status).toBe(201);
  expect(
    stack.log.filter(({ msg }) => `${msg}`.includes('the response was sent before it was stored')),
  ).toHaveLength(1);
  wire.swallowReplies(false);
  const replayed = await untilExecuted(key);
  expect(replayed.headers['idempotent-replayed']).toBe('true');
  expect(replayed.body).toEqual(executed.body);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  expect(stack.sandbox.requests.ofKey(key)).toBe(1);
});

it('a key that Redis could not mark is still in doubt once the lease has lapsed', async () => {
  const short = await openStack({ ...onRedis(wire, 2000), lock: { leaseMs: 600 } });
  try {
    const key = randomUUID();
    const first = withdraw(short.url, { key, fault: 'delay=60000,execute-then-reset' });
    await until(() => short.sandbox.requests.ofKey(key) === 1);
    wire.refuse(true);
    wire.cut();
    short.sandbox.endDelays(key);
    expectProblem(await first, { status: 502, code: 'outcome_unknown' });
    expectProblem(await withdraw(short.url, { key }), unavailable);
    wire.refuse(false);
    const retry = await until(async () => {
      const answer = await withdraw(short.url, { key });
      return answer.status === 503 ? undefined : answer;
    });
    expectProblem(retry, { status: 409, code: 'outcome_unknown' });
    expect(short.sandbox.ledger.payouts({ key })).toBe(1);
    expect(short.sandbox.requests.ofKey(key)).toBe(1);
  } finally {
    wire.refuse(false);
    await short.close();
  }
});
