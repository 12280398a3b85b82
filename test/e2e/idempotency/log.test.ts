import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../support/client.ts';
import { FAST_START } from '../../support/command.ts';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { onRedis, openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const SECRETS = [
  'sk_sandbox_alpha',
  'sk_sandbox_alpha_2',
  'sk_sandbox_bravo',
  'sk_test_revoked',
  'sk_nobody',
];

/** Parts of credentials and of bodies, which must not be logged. */
const FRAGMENTS = [
  'sk_sandbox',
  'sk_test',
  'sk_nobody',
  'Bearer',
  '0123456789',
  'account_number',
  '471108.15',
];

interface Traffic {
  url: string;
  sandbox: Sandbox;
  keys: string[];
}

/** Causes every outcome of a request once. Resolves to the number of requests. */
async function everything({ url, sandbox, keys }: Traffic): Promise<number> {
  let requests = 0;
  const pay = async (options: Parameters<typeof withdraw>[1] = {}) => {
    requests++;
    if (options.key !== undefined) keys.push(options.key);
    return await withdraw(url, options).catch((error: Error) => error);
  };
  const newKey = () => randomUUID();

  for (const fault of ['delay=1', '500-after', 'status=429', 'execute-then-reset', 'garbage', 'truncate']) {
    const key = newKey();
    await pay({ key, fault });
    await pay({ key });
  }
  await pay({ key: newKey(), fault: 'execute-then-hang' });
  const large = newKey();
  await pay({ key: large, fault: 'huge=1100000' });
  await pay({ key: large });
  const reused = newKey();
  await pay({ key: reused, amount: 471108.15 });
  await pay({ key: reused, amount: 471108.16 });
  await pay({ key: `"${newKey()}` });
  await pay({ headers: { 'Idempotency-Key': `"${newKey()}` } });
  await pay({ key: 'not-ascii-é' });
  await pay();
  for (const secret of SECRETS) await pay({ key: newKey(), secret });
  const running = newKey();
  const first = pay({ key: running, fault: 'delay=300' });
  await until(() => sandbox.requests.ofKey(running) === 1);
  await pay({ key: running, headers: { Prefer: 'wait=0' } });
  const leaving = new AbortController();
  const left = pay({ key: newKey(), fault: 'delay=200', signal: leaving.signal });
  await until(() => sandbox.requests.ofKey(keys.at(-1) ?? '') === 1);
  leaving.abort();
  await Promise.all([first, left]);
  return requests + (await oddRequests(url, keys));
}

/** Requests with secrets in bodies, targets and headers where they do not belong. */
async function oddRequests(url: string, keys: string[]): Promise<number> {
  const headers = { Authorization: 'Bearer sk_sandbox_alpha', 'Content-Type': 'application/json' };
  const bodies = [
    '{"action":"withdraw","account_number":"0123456789","account_number":"0123456789"}',
    '{"action":"withdraw","account_number":"0123456789"',
    '{"action":"sk_sandbox_alpha"}',
  ];
  for (const body of bodies) await send(url, { method: 'POST', path: '/v1/index.php', headers, body });
  const key = randomUUID();
  keys.push(key);
  const paths = [
    '/v1/0123456789?account=0123456789&secret=sk_sandbox_alpha',
    '/v1/index.php/0123456789',
    `/v3/echo?key=${key}`,
    `/v3/payouts/${key}`,
  ];
  for (const path of paths) await send(url, { path, headers });
  await send(url, { path: '/v2/get_balance', headers: { ...headers, 'x-service-idempotency': key } });
  await send(url, { path: '/v2/get_balance', headers: { Authorization: 'Basic sk_sandbox_alpha' } });
  return bodies.length + paths.length + 2;
}

/** A late complete, and a start without an answer. */
async function whileRedisIsAway({ url, sandbox, keys }: Traffic, redis: RedisServer): Promise<number> {
  const key = randomUUID();
  keys.push(key);
  const first = withdraw(url, { key, fault: 'delay=300' });
  await until(() => sandbox.requests.ofKey(key) === 1);
  await redis.kill();
  await first;
  await withdraw(url, { key });
  await redis.restart();
  return 2;
}

/** Expects a request's line with all its fields. */
function expectWhole(line: Record<string, unknown>): void {
  expect(line).toMatchObject({
    requestId: expect.stringMatching(/^[\w.-]{8,128}$/),
    operation: expect.stringMatching(/^\w+$/),
    outcome: expect.stringMatching(/^\w+$/),
    durationMs: expect.any(Number),
  });
  const isAnonymous = ['missing_credentials', 'invalid_key', 'invalid_target'].includes(`${line.outcome}`);
  if (!isAnonymous) expect(line.merchant).toMatch(/^M-(ALPHA|BRAVO)$/);
}

describe.concurrent.each(storeKinds)('on %s', (kind) => {
  let sandbox: Sandbox;
  let redis: RedisServer | undefined;
  let gateway: SpawnedGateway;
  beforeAll(async () => {
    sandbox = await createSandbox({ port: 0 });
    redis = kind === 'redis' ? await startRedis() : undefined;
    const config = testConfig(temporaryFolder(), sandbox.url, {
      ...(redis ? onRedis(redis, 1000) : {}),
      log: { level: 'debug' },
      upstream: { responseTimeoutMs: 1000 },
      idempotency: { completeRetryMs: 100 },
    });
    gateway = await spawnGateway(config, FAST_START);
  });
  afterAll(async () => {
    await gateway?.end('SIGKILL');
    await sandbox?.close();
  });

  it('the log has one line for each request, and no content that a merchant sent', async () => {
    const keys: string[] = [];
    let requests = await everything({ url: gateway.url, sandbox, keys });
    if (redis) requests += await whileRedisIsAway({ url: gateway.url, sandbox, keys }, redis);
    // After the exit there are still lines to read.
    const closed = once(gateway.child, 'close');
    expect(await gateway.end()).toBe(0);
    await closed;

    expect(keys.length).toBeGreaterThan(20);
    const ids = sandbox.ledger.transactions().map(({ id }) => id);
    for (const fragment of [...FRAGMENTS, ...keys, ...ids]) {
      expect(gateway.lines.filter((line) => line.includes(fragment))).toEqual([]);
    }
    const lines = gateway.lines.map((line) => JSON.parse(line) as Record<string, unknown>);
    const access = lines.filter(({ msg }) => msg === 'request');
    expect(access).toHaveLength(requests);
    expect(new Set(access.map(({ requestId }) => requestId)).size).toBe(requests);
    for (const line of access) expectWhole(line);
    expect(sandbox.ledger.duplicateKeys()).toEqual([]);
  });
});

it('a secret key that a merchant puts into the path is not logged', async () => {
  const stack = await openStackOn('sqlite');
  try {
    const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
    await send(stack.url, { path: '/v3/sk_sandbox_alpha/echo', headers });
    const line = await until(() => stack.log.find(({ msg }) => msg === 'request'));
    expect(line.path).not.toContain('sk_sandbox_alpha');
    expect(stack.sandbox.ledger.payouts()).toBe(0);
  } finally {
    await stack.close();
  }
});
