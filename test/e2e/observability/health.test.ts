import { once } from 'node:events';
import http from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import { expect, it, onTestFinished } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { codeOf } from '../../support/console.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { rawConnection } from '../../support/raw.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const TOKEN = 'a token of the administrators';

async function open(more: MoreConfig = {}): Promise<Stack> {
  const stack = await openStack(more);
  onTestFinished(() => stack.close());
  return stack;
}

interface Readiness {
  status: string;
  checks: { name: string; ok: boolean; detail: string; warnings?: string[] }[];
}

/** What /readyz says, and the checks that fail. */
async function readiness({ adminUrl }: Pick<Stack, 'adminUrl'>) {
  const answer = await send(adminUrl, { path: '/readyz' });
  const body = answer.json<Readiness & Record<string, unknown>>();
  const failing = body.checks.filter(({ ok }) => !ok).map(({ name, detail }) => `${name}: ${detail}`);
  return { status: answer.status, body, failing };
}

async function isAlive({ adminUrl }: Stack): Promise<void> {
  const { status, headers, body } = await send(adminUrl, { path: '/healthz' });
  expect([status, headers['content-type'], String(body)]).toEqual([
    ...[200, expect.stringMatching(/^application\/json/), '{"status":"ok"}'],
  ]);
}

it('/readyz is ready when store, backend and keys are, and names an unreachable backend', async () => {
  const stack = await open();
  const { status, body } = await readiness(stack);
  expect(status).toBe(200);
  expect(body).toEqual({
    status: 'ready',
    checks: [
      { name: 'store', ok: true, detail: 'sqlite', warnings: [] },
      { name: 'upstream', ok: true, detail: 'reachable' },
      { name: 'keys', ok: true, detail: expect.stringMatching(/^\d+ keys from /) },
      { name: 'draining', ok: true, detail: 'serving' },
    ],
  });
  await stack.sandbox.close();
  const unready = await until(async () => {
    const seen = await readiness(stack);
    return seen.failing.length > 0 ? seen : undefined;
  });
  expect(unready.failing).toEqual(['upstream: ECONNREFUSED']);
  expect([unready.status, unready.body.status]).toEqual([503, 'not ready']);
  await isAlive(stack);
});

it('/readyz asks the backend and the store at most ten times a second, however often it is asked itself', async () => {
  let connections = 0;
  const backend = createServer((socket) => {
    connections++;
    socket.on('error', () => {});
  }).listen(0, '127.0.0.1');
  await once(backend, 'listening');
  onTestFinished(() => void backend.close());
  const redis = await startRedis();
  const { port } = backend.address() as AddressInfo;
  const { adminUrl } = await open({ ...onRedis(redis), upstream: { url: `http://127.0.0.1:${port}` } });
  const agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
  onTestFinished(() => agent.destroy());
  const [sets, startedMs] = [await redis.commandCount('set'), performance.now()];
  const answers = await Promise.all(
    Array.from({ length: 400 }, () => send(adminUrl, { path: '/readyz', agent })),
  );
  const most = 10 * Math.ceil((performance.now() - startedMs) / 1000);
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
  expect(connections).toBeLessThanOrEqual(most);
  // The gateways also write marks.
  expect((await redis.commandCount('set')) - sets).toBeLessThanOrEqual(most + 5);
  expect(most).toBeLessThan(200);
});

/** Ways in which a Redis cannot be written to, and what /readyz says then. */
const BROKEN: [detail: RegExp, go: (redis: RedisServer) => unknown, back: (redis: RedisServer) => unknown][] =
  [
    [/^store: redis: \w/, (redis) => redis.kill(), (redis) => redis.restart()],
    [
      /^store: redis: OOM/,
      ({ admin }) => admin.config('SET', 'maxmemory', '1'),
      ({ admin }) => admin.config('SET', 'maxmemory', '0'),
    ],
  ];

it('/readyz names a store that takes no writes, and is ready when it takes them again', async () => {
  const redis = await startRedis();
  const stack = await open(onRedis(redis, 1000));
  const refuses = () => metric(stack.adminUrl, 'oncegate_store_refuses_writes');
  for (const [detail, go, back] of BROKEN) {
    expect((await readiness(stack)).failing).toEqual([]);
    await go(redis);
    const unready = await until(async () => {
      const seen = await readiness(stack);
      return seen.failing.length > 0 ? seen : undefined;
    });
    expect([unready.status, unready.failing]).toEqual([503, [expect.stringMatching(detail)]]);
    const key = String(detail);
    for (let i = 0; i < 10; i++)
      expectProblem(await withdraw(stack.url, { key }), {
        ...{ status: 503, code: 'store_unavailable', retryAfter: 1 },
      });
    expect(await refuses()).toBe(1);
    await isAlive(stack);
    await back(redis);
    await until(async () => (await readiness(stack)).status === 200);
    await until(async () => (await withdraw(stack.url, { key })).status === 201);
    expect(await refuses()).toBe(0);
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  }
});

it('/readyz is not ready while the gateway is shutting down, and the admin port answers until it has', async () => {
  const stack = await open();
  const stream = await rawConnection(stack.port);
  stream.write(
    'GET /v3/echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk_sandbox_alpha\r\nX-Sandbox-Fault: hang\r\n\r\n',
  );
  await until(() => stack.sandbox.requests.total() === 1);
  const ended = stack.shutdown();
  const unready = await until(async () => {
    const seen = await readiness(stack);
    return seen.failing.length > 0 ? seen : undefined;
  });
  expect([unready.status, unready.failing]).toEqual([503, ['draining: shutting down']]);
  await isAlive(stack);
  expect(await metric(stack.adminUrl, 'oncegate_in_flight')).toBe(1);
  stream.destroy();
  await ended;
  await expect(send(stack.adminUrl, { path: '/healthz' })).rejects.toThrow(/ECONNREFUSED/);
});

it('the admin token, and nothing like it, gives access to the metrics, and load balancers need none', async () => {
  const { url, adminUrl } = await open({ admin: { token: TOKEN } });
  for (const path of ['/healthz', '/readyz']) expect((await send(adminUrl, { path })).status).toBe(200);
  const ask = (to: string, path: string, value: string) =>
    send(to, { path, headers: value === '' ? {} : { Authorization: value } });
  const refused = await ask(adminUrl, '/metrics', '');
  expect(codeOf(refused)).toBe('401 token_required');
  expect(refused.headers['www-authenticate']).toBe('Bearer realm="oncegate admin"');
  for (const value of [
    ...[`Bearer ${TOKEN.toUpperCase()}`, `Bearer ${TOKEN.slice(0, -1)}`, `Bearer ${TOKEN}x`],
    ...[TOKEN, `Basic ${TOKEN}`, 'Bearer sk_sandbox_alpha', ''],
  ]) {
    const { status, body } = await ask(adminUrl, '/metrics', value);
    expect([status, String(body).includes('oncegate_requests_total')], value).toEqual([401, false]);
  }
  const { status, headers } = await ask(adminUrl, '/metrics', `Bearer ${TOKEN}`);
  expect([status, headers['content-type']]).toEqual([200, 'text/plain; version=0.0.4; charset=utf-8']);
  // On the merchants' port it is no secret key.
  for (const path of ['/metrics', '/readyz', '/healthz'])
    expect((await ask(url, path, `Bearer ${TOKEN}`)).status).toBe(401);
});
