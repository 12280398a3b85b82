import { once } from 'node:events';
import http from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import request from 'supertest';
import { afterEach, describe, expect, it, onTestFinished } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { limitFiles } from '../../support/limit-files.ts';
import { expectProblem } from '../../support/problem.ts';
import { type RedisServer, type RedisServerOptions, startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { scrape } from './support/scrape.ts';

const TOKEN = 'a token of the administrators';

const stacks: Stack[] = [];
afterEach(async () => {
  await Promise.all(stacks.splice(0).map((stack) => stack.close()));
});

async function open(more: MoreConfig = {}): Promise<Stack> {
  const stack = await openStack(more);
  stacks.push(stack);
  return stack;
}

interface Readiness {
  status: string;
  checks: { name: string; ok: boolean; detail: string; warnings?: string[] }[];
}

/** What /readyz says, and the names of the checks that fail. */
async function readiness({ adminUrl }: Pick<Stack, 'adminUrl'>) {
  const { status, body } = await request(adminUrl).get('/readyz');
  const readiness = body as Readiness;
  return {
    status,
    body: readiness,
    failing: readiness.checks.filter(({ ok }) => !ok).map(({ name }) => name),
  };
}

describe('/readyz', () => {
  it('is ready when store, backend and keys are', async () => {
    const { status, body } = await readiness(await open());
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
  });

  it('names an unreachable backend', async () => {
    const stack = await open();
    await stack.sandbox.close();
    const { status, body, failing } = await readiness(stack);
    expect({ status, word: body.status, failing }).toEqual({
      status: 503,
      word: 'not ready',
      failing: ['upstream'],
    });
    expect(body.checks.find(({ name }) => name === 'upstream')?.detail).toBe('ECONNREFUSED');
    await isAlive(stack);
  });

  it('asks the backend and the store at most ten times a second, however often it is asked itself', async () => {
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

  it.each([
    ['killed', (redis: RedisServer) => redis.kill()],
    ['frozen', (redis: RedisServer) => redis.freeze()],
  ])('names the store when it is %s, and is ready when it is back', async (_, breakIt) => {
    const redis = await startRedis();
    const stack = await open(onRedis(redis, 2000));
    expect((await readiness(stack)).failing).toEqual([]);
    await breakIt(redis);
    const { status, body, failing } = await readiness(stack);
    expect({ status, failing }).toEqual({ status: 503, failing: ['store'] });
    expect(body.checks.find(({ name }) => name === 'store')?.detail).toMatch(/^redis: \w/);
    await isAlive(stack);
    await redis.restart();
    await until(async () => (await readiness(stack)).status === 200);
  });

  it.each<
    [
      string,
      RedisServerOptions,
      (redis: RedisServer) => Promise<unknown>,
      (redis: RedisServer) => Promise<unknown>,
    ]
  >([
    [
      'OOM',
      {},
      ({ admin }) => admin.config('SET', 'maxmemory', '1'),
      ({ admin }) => admin.config('SET', 'maxmemory', '0'),
    ],
    [
      'READONLY',
      {},
      ({ admin }) => admin.replicaof('127.0.0.1', 1),
      ({ admin }) => admin.replicaof('NO', 'ONE'),
    ],
    [
      'MISCONF',
      { appendonly: false, args: ['--save', '3600 1'] },
      async ({ admin, pid }) => {
        // The file size limit makes the background save fail.
        limitFiles(pid, '0');
        await admin.set('a', 'b');
        await admin.bgsave();
        await until(async () => (await admin.info('persistence')).includes('rdb_last_bgsave_status:err'));
      },
      async ({ admin, pid }) => {
        limitFiles(pid, 'unlimited');
        await admin.bgsave();
        await until(async () => (await admin.info('persistence')).includes('rdb_last_bgsave_status:ok'));
      },
    ],
  ])(
    'names a Redis that answers %s to writes, and is ready when Redis accepts them again',
    async (error, options, breakIt, heal) => {
      const redis = await startRedis(options);
      const stack = await open(onRedis(redis, 1000));
      const paid = await withdraw(stack.url, { key: 'paid' });
      expect((await readiness(stack)).failing).toEqual([]);
      await breakIt(redis);
      const { status, body, failing } = await readiness(stack);
      expect({ status, failing }).toEqual({ status: 503, failing: ['store'] });
      expect(body.checks.find(({ name }) => name === 'store')?.detail).toContain(error);
      // New keys are not sent, and completed ones are replayed.
      for (let i = 0; i < 10; i++)
        expectProblem(await withdraw(stack.url, { key: 'new' }), {
          ...{ status: 503, code: 'store_unavailable', retryAfter: 1 },
        });
      expect((await scrape(stack.adminUrl)).value('oncegate_store_refuses_writes')).toBe(1);
      const replay = await withdraw(stack.url, { key: 'paid' });
      expect([replay.status, replay.body]).toEqual([201, paid.body]);
      expect(stack.sandbox.requests.ofKey('new')).toBe(0);
      await isAlive(stack);
      await heal(redis);
      await until(async () => (await readiness(stack)).status === 200);
      await until(async () => (await withdraw(stack.url, { key: 'new' })).status === 201);
      expect((await scrape(stack.adminUrl)).value('oncegate_store_refuses_writes')).toBe(0);
      expect(stack.sandbox.ledger.payouts({ key: 'new' })).toBe(1);
    },
  );

  it('is not ready while the gateway is shutting down, and the admin port answers until it has', async () => {
    const stack = await open();
    const stream = await openStream(stack);
    const ended = stack.shutdown();
    const { body, status } = await until(async () => {
      const seen = await readiness(stack);
      return seen.failing.includes('draining') ? seen : undefined;
    });
    expect(status).toBe(503);
    expect(body.checks).toContainEqual({ name: 'draining', ok: false, detail: 'shutting down' });
    await isAlive(stack);
    expect((await scrape(stack.adminUrl)).value('oncegate_in_flight')).toBe(1);
    stream.destroy();
    await ended;
    await expect(request(stack.adminUrl).get('/healthz')).rejects.toThrow(/ECONNREFUSED/);
  });

  it('warns of a store that is not durable, and is ready nevertheless', async () => {
    const redis = await startRedis({ appendonly: false });
    const { status, body } = await readiness(await open(onRedis(redis)));
    expect(status).toBe(200);
    expect(body.checks[0]).toMatchObject({
      name: 'store',
      ok: true,
      warnings: [expect.stringMatching(/\w/)],
    });
  });
});

async function isAlive({ adminUrl }: Stack): Promise<void> {
  const { body } = await request(adminUrl)
    .get('/healthz')
    .expect(200)
    .expect('Content-Type', /^application\/json/);
  expect(body).toEqual({ status: 'ok' });
}

/** A response that does not end before the merchant disconnects. */
async function openStream({ url }: Stack): Promise<http.IncomingMessage> {
  const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
  const target = new URL('/v3/stream?chunks=100000&intervalMs=20', url);
  return await new Promise((resolve, reject) => {
    http
      .get(target, { headers, agent: false }, (answer) => {
        answer.on('error', () => {});
        answer.resume();
        resolve(answer);
      })
      .once('error', reject);
  });
}

describe('the admin token', () => {
  it('protects the metrics, and not what a load balancer requests', async () => {
    const { adminUrl } = await open({ admin: { token: TOKEN } });
    await request(adminUrl).get('/healthz').expect(200);
    await request(adminUrl).get('/readyz').expect(200);
    const refused = await request(adminUrl).get('/metrics').expect(401);
    expect(refused.headers).toMatchObject({
      'www-authenticate': 'Bearer realm="oncegate admin"',
      'content-type': 'application/problem+json',
    });
    expect(refused.body.code).toBe('token_required');
    expect(refused.text).not.toContain('oncegate_requests_total');
  });

  it.each([
    ['another token', `Bearer ${TOKEN.toUpperCase()}`],
    ['a part of it', `Bearer ${TOKEN.slice(0, -1)}`],
    ['more than it', `Bearer ${TOKEN}x`],
    ['the token alone', TOKEN],
    ['another scheme', `Basic ${TOKEN}`],
    ['a merchant’s secret key', 'Bearer sk_sandbox_alpha'],
    ['nothing', ''],
  ])('is not %s', async (_, value) => {
    const { adminUrl } = await open({ admin: { token: TOKEN } });
    await request(adminUrl).get('/metrics').set('Authorization', value).expect(401);
  });

  it('gives access to the metrics', async () => {
    const { adminUrl } = await open({ admin: { token: TOKEN } });
    const { text } = await request(adminUrl)
      .get('/metrics')
      .set('Authorization', `Bearer ${TOKEN}`)
      .expect(200)
      .expect('Content-Type', 'text/plain; version=0.0.4; charset=utf-8');
    expect(text).toContain('# TYPE oncegate_requests_total counter');
  });

  it('does not authenticate on the merchants’ port', async () => {
    const { url } = await open({ admin: { token: TOKEN } });
    for (const path of ['/metrics', '/readyz', '/healthz']) {
      await request(url).get(path).set('Authorization', `Bearer ${TOKEN}`).expect(401);
    }
  });
});

describe('the admin port', () => {
  it('has no other routes, and does not reveal its software', async () => {
    const { adminUrl } = await open();
    for (const path of ['/v2/get_balance', '/metrics/x']) {
      const { headers } = await request(adminUrl).get(path).expect(404);
      expect(headers).not.toHaveProperty('x-powered-by');
      expect(headers['content-type']).toBe('application/problem+json');
    }
    const { headers } = await request(adminUrl).post('/metrics').expect(405);
    expect(headers).toMatchObject({ 'content-type': 'application/problem+json', allow: 'GET, HEAD' });
  });
});
