import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { BEARER, isReplay, send, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { type Stack, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const LOOKUP_TOKEN = 'token-of-the-gateway-itself';
const overloaded = { status: 503, code: 'overloaded', retryAfter: 1 } as const;

const queued = ({ adminUrl }: Stack) => metric(adminUrl, 'oncegate_upstream_slots_queued');
const inUse = ({ adminUrl }: Stack) => metric(adminUrl, 'oncegate_upstream_slots_in_use');
const balance = (url: string) => send(url, { path: '/v2/get_balance', headers: BEARER });
const newKeys = (count: number) => Array.from({ length: count }, () => randomUUID() as string);

it('while all slots are taken, a lookup and streams have connections, and a new key gets 503 overloaded', async () => {
  const lookup = {
    path: '/v1/transactions?merchant={merchant}&key={key}',
    headers: { authorization: `Bearer ${LOOKUP_TOKEN}` },
    completedStatus: 201,
    firstAfterMs: 60_000,
  };
  const match = { method: 'POST', path: '/v1/index.php' };
  const operations = [{ name: 'withdraw', match, idempotency: { inDoubt: 'lookup' as const, lookup } }];
  const upstream = { maxConnections: 1, maxQueued: 0, responseTimeoutMs: 20_000 };
  const stack = await stackForTest({ operations, upstream }, { lookupToken: LOOKUP_TOKEN });
  const { url, sandbox } = stack;
  const [doubtful = '', held = ''] = newKeys(2);
  expect((await withdraw(url, { key: doubtful, fault: 'execute-then-reset' })).status).toBe(502);
  await until(async () => (await inUse(stack)) === 0);
  const first = withdraw(url, { key: held, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(held) === 1);
  expect(isReplay(await withdraw(url, { key: doubtful }))).toBe(true);
  expect((await send(url, { path: '/v3/echo', headers: BEARER })).status).toBe(200);
  expectProblem(await withdraw(url, { key: randomUUID() }), overloaded);
  sandbox.endDelays(held);
  expect((await first).status).toBe(201);
});

it('if the queue is full or takes too long, requests get 503 overloaded, and nothing is stored or sent', async () => {
  const upstream = { maxConnections: 1, maxQueued: 3, queueTimeoutMs: 1500 };
  const stack = await stackForTest({ upstream: { ...upstream, responseTimeoutMs: 20_000 } });
  const { sandbox } = stack;
  const [held = '', late = '', ...refused] = newKeys(5);
  const first = withdraw(stack.url, { key: held, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(held) === 1);
  const waiting = [withdraw(stack.url, { key: late }), withdraw(stack.url), balance(stack.url)];
  await until(async () => (await queued(stack)) === 3);

  for (const key of refused) expectProblem(await withdraw(stack.url, { key }), overloaded);
  expectProblem(await withdraw(stack.url), overloaded);
  expectProblem(await balance(stack.url), overloaded);
  for (const answer of await Promise.all(waiting)) expectProblem(answer, overloaded);
  expect([await inUse(stack), await queued(stack)]).toEqual([1, 0]);

  sandbox.endDelays(held);
  expect((await first).status).toBe(201);
  for (const key of [late, ...refused]) expect((await withdraw(stack.url, { key })).status).toBe(201);
  expect([sandbox.requests.total(), sandbox.ledger.payouts()]).toEqual([5, 5]);
});
