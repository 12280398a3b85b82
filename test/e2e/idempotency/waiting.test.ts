import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { payoutBytes, rawExchange } from '../../support/raw.ts';
import { startRedis } from '../../support/redis-server.ts';
import { connectionsOf, openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const inFlight = { status: 409, code: 'request_in_flight', retryAfter: 1 } as const;
const upstream = { responseTimeoutMs: 20_000 };
const isReplay = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';

/** A payout that the backend has received, and does not execute before `end` is called. */
async function begin({ url, sandbox }: Stack, key: string, fault = 'delay=60000') {
  const answer = withdraw(url, { key, fault });
  await until(() => sandbox.requests.ofKey(key) === 1);
  const end = async () => {
    sandbox.endDelays(key);
    return await answer;
  };
  return { answer, end };
}

const waiting = ({ adminUrl }: Stack, count: number) =>
  until(async () => (await metric(adminUrl, 'oncegate_waiting')) === count);

describe('a duplicate', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({ upstream, idempotency: { maxWaiters: 100 } });
  });
  afterAll(() => stack.close());

  it('waits for the result of the first request', async () => {
    const key = randomUUID();
    const first = await begin(stack, key);
    const duplicates = [{}, { Prefer: 'wait=9' }].map((headers) => withdraw(stack.url, { key, headers }));
    await waiting(stack, 2);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
    const executed = await first.end();
    for (const again of await Promise.all(duplicates)) {
      expect([again.status, isReplay(again)]).toEqual([201, true]);
      expect(again.body).toEqual(executed.body);
    }
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('with Prefer: wait=0 is answered at once', async () => {
    const key = randomUUID();
    const first = await begin(stack, key);
    for (const prefer of ['wait=0', 'respond-async, wait=0', 'Wait="0"; foo'])
      expectProblem(await withdraw(stack.url, { key, headers: { Prefer: prefer } }), inFlight);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
    expect((await first.end()).status).toBe(201);
    // After the first request there is nothing to wait for.
    expect(isReplay(await withdraw(stack.url, { key, headers: { Prefer: 'wait=0' } }))).toBe(true);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('with Prefer: wait=1 is answered after a second', async () => {
    const key = randomUUID();
    const first = await begin(stack, key);
    const startedMs = performance.now();
    expectProblem(await withdraw(stack.url, { key, headers: { Prefer: 'wait=1' } }), inFlight);
    expect(performance.now() - startedMs).toBeGreaterThan(950);
    expect((await first.end()).status).toBe(201);
  });

  it('stops waiting when its merchant disconnects, and the first request is not affected', async () => {
    const key = randomUUID();
    const first = await begin(stack, key);
    const leaving = new AbortController();
    const left = withdraw(stack.url, { key, signal: leaving.signal }).catch((error: Error) => error.name);
    await waiting(stack, 1);
    leaving.abort();
    expect(await left).toBe('AbortError');
    await waiting(stack, 0);
    expect((await first.end()).status).toBe(201);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('is one of 50 at once: one is executed, and all get the same bytes', async () => {
    const key = randomUUID();
    const burst = Array.from({ length: 50 }, () => withdraw(stack.url, { key, fault: 'delay=150' }));
    const answers = await Promise.all(burst);
    expect(new Set(answers.map(({ status, body }) => `${status} ${body}`)).size).toBe(1);
    expect(answers.filter(isReplay)).toHaveLength(49);
    expect([stack.sandbox.ledger.payouts({ key }), stack.sandbox.requests.ofKey(key)]).toEqual([1, 1]);
  });

  it('on the same connection, sent before the first request is answered, gets its result', async () => {
    const key = randomUUID();
    const lines = [`x-service-idempotency: ${key}`, 'X-Sandbox-Fault: delay=100'];
    const bytes = [payoutBytes({ lines: ['Connection: keep-alive', ...lines] }), payoutBytes({ lines })];
    const [first, second, ...more] = await rawExchange(stack.port, Buffer.concat(bytes));
    expect([first?.status, second?.status, more.length]).toEqual([201, 201, 0]);
    expect(second?.body).toEqual(first?.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('with another amount, at the same time, is refused', async () => {
    const key = randomUUID();
    const amounts = Array.from({ length: 20 }, (_, at) => at + 1);
    const answers = await Promise.all(
      amounts.map((amount) => withdraw(stack.url, { key, amount, fault: 'delay=100' })),
    );
    const refused = answers.filter(({ status }) => status !== 201);
    expect(refused).toHaveLength(19);
    for (const answer of refused) expectProblem(answer, { status: 422, code: 'idempotency_key_reused' });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('is executed if the first one is released, and the others get its result', async () => {
    const key = randomUUID();
    const first = await begin(stack, key, 'status=429,delay=60000');
    const duplicates = Array.from({ length: 8 }, () => withdraw(stack.url, { key }));
    await waiting(stack, 8);
    expect((await first.end()).status).toBe(429);
    const answers = await Promise.all(duplicates);
    expect(new Set(answers.map(({ status, body }) => `${status} ${body}`)).size).toBe(1);
    expect(answers.filter(isReplay)).toHaveLength(7);
    expect([stack.sandbox.ledger.payouts({ key }), stack.sandbox.requests.ofKey(key)]).toEqual([1, 2]);
  });
});

it('no duplicate waits longer than waitMs, whatever its Prefer header says, nor above maxWaiters', async () => {
  const match = { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } };
  const stack = await openStack({
    upstream,
    operations: [{ name: 'withdraw', match, idempotency: { waitMs: 1500 } }],
    idempotency: { maxWaiters: 3 },
  });
  onTestFinished(() => stack.close());
  const key = randomUUID();
  const first = await begin(stack, key);
  const startedMs = performance.now();
  const duplicates = ['wait=10', 'wait=20', 'wait=nonsense'].map((prefer) =>
    withdraw(stack.url, { key, headers: { Prefer: prefer } }),
  );
  await waiting(stack, 3);
  expectProblem(await withdraw(stack.url, { key }), inFlight);
  for (const answer of await Promise.all(duplicates)) expectProblem(answer, inFlight);
  expect(performance.now() - startedMs).toBeGreaterThan(1480);
  expect((await first.end()).status).toBe(201);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});

it('a duplicate does not begin to wait if its merchant has already disconnected', async () => {
  const redis = await startRedis();
  const stack = await openStack({ ...onRedis(redis), upstream });
  onTestFinished(() => stack.close());
  const key = randomUUID();
  const first = await begin(stack, key);
  redis.freeze();
  const leaving = new AbortController();
  const left = withdraw(stack.url, { key, signal: leaving.signal }).catch((error: Error) => error.name);
  const open = (count: number) =>
    until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === count);
  await open(2);
  leaving.abort();
  expect(await left).toBe('AbortError');
  await until(async () => (await connectionsOf(stack.gateway.server)) === 1);
  redis.thaw();
  await open(1);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
  expect((await first.end()).status).toBe(201);
});
