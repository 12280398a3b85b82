import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { openGateway, openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { startProxy, type TcpProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';

const unavailable = { status: 503, code: 'store_unavailable', retryAfter: 1 } as const;
/** Long enough for a loaded machine, because this limit is for requests that are never answered. */
const TIMEOUT_MS = 1000;

let redis: RedisServer;
let wire: TcpProxy;
let stack: Stack;
beforeAll(async () => {
  redis = await startRedis();
  wire = await startProxy(redis.port);
  stack = await openStack(onRedis(wire, TIMEOUT_MS));
});
afterAll(() => stack?.close());

const readiness = async () => (await send(stack.adminUrl, { path: '/readyz' })).status;
const untilReady = () => until(async () => (await readiness()) === 200);

/** Each way in which Redis can be unavailable, and how it is restored. */
const away: [string, { go(): Promise<void> | void; back(): Promise<void> | void }][] = [
  ['is frozen', { go: () => redis.freeze(), back: () => redis.thaw() }],
  ['is killed', { go: () => redis.kill(), back: () => redis.restart() }],
  [
    'is cut off',
    {
      go: () => {
        wire.refuse(true);
        wire.cut();
      },
      back: () => wire.refuse(false),
    },
  ],
  [
    'gets everything, and is not heard',
    { go: () => wire.swallowReplies(true), back: () => wire.swallowReplies(false) },
  ],
];

describe.each(away)('while Redis %s', (_, { go, back }) => {
  afterEach(async () => {
    await back();
    await untilReady();
  });

  it('a request with a key is not sent, one without passes, and a retry is executed once', async () => {
    const { url, sandbox } = stack;
    const [completed, key] = [randomUUID(), randomUUID()];
    const before = await withdraw(url, { key: completed });
    expect(before.status).toBe(201);

    await go();
    const unready = readiness();
    const refused = await Promise.all([withdraw(url, { key }), withdraw(url, { key: completed })]);
    for (const answer of refused) expectProblem(answer, unavailable);
    expect(await unready).toBe(503);
    expect(sandbox.requests.ofKey(key)).toBe(0);
    const payouts = sandbox.ledger.payouts();
    expect((await withdraw(url)).status).toBe(201);
    expect(sandbox.ledger.payouts()).toBe(payouts + 1);
    const headers = { Authorization: 'Bearer sk_sandbox_alpha', 'x-service-idempotency': key };
    expect((await send(url, { path: '/v2/get_balance', headers })).status).toBe(200);

    await back();
    const executed = await until(async () => {
      const answer = await withdraw(url, { key });
      if (answer.status === 201) return answer;
      expectProblem(answer, unavailable);
      return undefined;
    });
    expect(executed.headers).not.toHaveProperty('idempotent-replayed');
    expect((await withdraw(url, { key })).body).toEqual(executed.body);
    expect((await withdraw(url, { key: completed })).body).toEqual(before.body);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
    expect(sandbox.ledger.payouts({ key: completed })).toBe(1);
  });
});

it('a duplicate that waits when Redis becomes unavailable gets an answer, and so does the first request', async () => {
  const { url, sandbox } = stack;
  const other = await openGateway(stack.config);
  onTestFinished(() => other.shutdown());
  const key = randomUUID();
  const first = withdraw(url, { key, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(key) === 1);
  const [here, there] = [withdraw(url, { key }), withdraw(other.url, { key })];
  for (const { adminUrl } of [stack, other])
    await until(async () => (await metric(adminUrl, 'oncegate_waiting')) === 1);
  await redis.kill();
  try {
    // The other gateway polls the record, and its reads fail.
    expectProblem(await there, unavailable);
    expect(sandbox.ledger.payouts({ key })).toBe(0);
    sandbox.endDelays(key);
    // In the same gateway the duplicate waits for the first request, whose result is not stored.
    const executed = await first;
    expect(executed.status).toBe(201);
    expectProblem(await here, unavailable);
  } finally {
    await redis.restart();
  }
  const again = await until(async () => {
    const answer = await withdraw(url, { key });
    return answer.status === 201 ? answer : undefined;
  });
  expect(again.body).toEqual((await first).body);
  expect(sandbox.ledger.payouts({ key })).toBe(1);
});
