import { randomUUID } from 'node:crypto';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { Config } from '../../../src/config/schema.ts';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import { type MoreConfig, parsedConfig, temporaryFolder, writeKeys } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { connectionsOf, gatewayForTest, payAndLeave, stackForTest } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { ALPHA, ask, BRAVO, codeOf, HANDSHAKE, head, Wire } from '../../support/wire.ts';

type PerMerchant = NonNullable<MoreConfig['limits']>['perMerchant'];

/** Long enough that no test sees the next window. */
const LONG = 3_600_000;

const limited = (perMerchant: PerMerchant, more: MoreConfig = {}) =>
  stackForTest({ ...more, limits: { perMerchant } });

const balance = (url: string, secret = 'sk_sandbox_alpha'): Promise<TestAnswer> =>
  send(url, { path: '/v2/get_balance', headers: { authorization: `Bearer ${secret}` } });

async function statusesOf(times: number, ask: () => Promise<TestAnswer>): Promise<number[]> {
  const statuses: number[] = [];
  for (let i = 0; i < times; i++) statuses.push((await ask()).status);
  return statuses;
}

describe('a merchant who sends too many requests', () => {
  it('gets no new window by a reload, unless the limits have changed', async () => {
    const stack = await limited({ requests: 1, windowMs: LONG });
    const reload = (perMerchant: PerMerchant) =>
      stack.gateway.reload(parsedConfig({ ...stack.config, limits: { perMerchant } }));
    expect(await statusesOf(2, () => balance(stack.url))).toEqual([200, 429]);
    await reload({ requests: 1, windowMs: LONG });
    expect(await statusesOf(1, () => balance(stack.url))).toEqual([429]);
    await reload({ requests: 2, windowMs: LONG });
    expect(await statusesOf(3, () => balance(stack.url))).toEqual([200, 200, 429]);
  });

  it('is limited from the reload on that sets limits, until the one that removes them', async () => {
    const { gateway, config, url } = await stackForTest();
    const reload = (limits: MoreConfig['limits']) => gateway.reload(parsedConfig({ ...config, limits }));
    expect(await statusesOf(2, () => balance(url))).toEqual([200, 200]);
    await reload({ perMerchant: { requests: 1, windowMs: LONG } });
    expect(await statusesOf(2, () => balance(url))).toEqual([200, 429]);
    await reload({});
    expect(await statusesOf(2, () => balance(url))).toEqual([200, 200]);
    await reload({ perMerchant: { inFlight: 1 } });
    const wire = await Wire.open(Number(new URL(url).port));
    wire.write(head('GET /v3/stream?chunks=1000', ALPHA));
    await wire.hears('chunk 1');
    await reload({});
    expect((await balance(url)).status).toBe(200);
    // The stream still counts.
    await reload({ perMerchant: { inFlight: 1 } });
    expect((await balance(url)).status).toBe(429);
    wire.socket.destroy();
    await until(async () => (await balance(url)).status === 200);
  });

  it('gets 429 with the time to wait, and the other merchants do not', async () => {
    const stack = await limited({
      requests: 2,
      windowMs: LONG,
      merchants: { 'M-BRAVO': { requests: 4 } },
    });
    // The other secret key is the same merchant's. Nobody's requests do not count.
    expect(await statusesOf(1, () => balance(stack.url, 'sk_sandbox_alpha_2'))).toEqual([200]);
    expect(await statusesOf(3, () => balance(stack.url, 'sk_nobody'))).toEqual([401, 401, 401]);
    expect(await statusesOf(1, () => balance(stack.url))).toEqual([200]);
    const refused = await expectNothingSent(stack, () => balance(stack.url));
    expect(refused.status).toBe(429);
    expect(refused.json()).toMatchObject({ success: false, status: 429, error: { code: 'rate_limited' } });
    const retryAfterS = Number(refused.headers['retry-after']);
    expect(retryAfterS).toBeGreaterThan(LONG / 1000 - 60);
    expect(retryAfterS).toBeLessThanOrEqual(LONG / 1000);
    expect(refused.headers['ratelimit-policy']).toBe('"requests";q=2;w=3600');
    expect(refused.headers.ratelimit).toBe(`"requests";r=0;t=${retryAfterS}`);
    expect(await statusesOf(5, () => balance(stack.url, 'sk_sandbox_bravo'))).toEqual([
      200, 200, 200, 200, 429,
    ]);
    expect(await metric(stack.adminUrl, 'oncegate_rate_limited_total', { reason: 'requests' })).toBe(2);
    const line = await until(() => stack.log.find(({ outcome }) => outcome === 'rate_limited'));
    expect(line).toMatchObject({ merchant: 'M-ALPHA', operation: 'none', status: 429 });
  });

  it('is refused before its body is read or invited, and a WebSocket too', async () => {
    const stack = await limited({ requests: 1, windowMs: LONG });
    await balance(stack.url);
    for (const bytes of [
      head('POST /v1/index.php', ALPHA, 'Content-Length: 1000', 'Expect: 100-continue'),
      head('POST /v1/index.php', ALPHA, 'Transfer-Encoding: chunked', 'Expect: 100-continue'),
      head('GET /v3/ws', ALPHA, ...HANDSHAKE),
    ]) {
      const wire = (await Wire.open(stack.port)).write(bytes);
      expect(codeOf(await wire.answer())).toBe('rate_limited');
      expect(await wire.ended).toBe('end');
    }
  });

  it('may send a burst now and then', async () => {
    const burst = { requests: 3, windowMs: 2 * LONG };
    const stack = await limited({ requests: 1, windowMs: LONG, burst });
    expect(await statusesOf(5, () => balance(stack.url))).toEqual([200, 200, 200, 200, 429]);
    const { headers } = await balance(stack.url);
    expect(headers['ratelimit-policy']).toBe('"requests";q=1;w=3600, "burst";q=3;w=7200');
    expect(Number(headers['retry-after'])).toBeLessThanOrEqual(LONG / 1000);
  });
});

describe('a merchant with too many requests in flight', () => {
  it('gets 429, also while an execution runs whose client has left', async () => {
    const stack = await limited({ inFlight: 1 });
    const key = randomUUID();
    await payAndLeave(stack, key);
    // The gateway has noticed it.
    await until(async () => (await connectionsOf(stack.gateway.server)) === 0);
    const refused = await balance(stack.url);
    expect(refused.status).toBe(429);
    expect(refused.headers).toMatchObject({
      'retry-after': '1',
      'ratelimit-policy': '"in-flight";q=1;qu="concurrent-requests"',
      ratelimit: '"in-flight";r=0',
    });
    expect((await balance(stack.url, 'sk_sandbox_bravo')).status).toBe(200);
    stack.sandbox.endDelays(key);
    await until(async () => (await balance(stack.url)).status === 200);
    // The execution has ended.
    expect(await metric(stack.adminUrl, 'oncegate_executing')).toBe(0);
    expect((await withdraw(stack.url, { key })).headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.transactions({ key })).toHaveLength(1);
    expect(
      await metric(stack.adminUrl, 'oncegate_rate_limited_total', { reason: 'in_flight' }),
    ).toBeGreaterThan(0);
  });

  it('gives every place back, however its requests end', async () => {
    const stack = await limited({ inFlight: 2, requests: 1_000_000 });
    const free = () => until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 0);
    for (const bytes of [
      head('GET /v2/get_balance', ALPHA),
      head('GET //', ALPHA),
      head('GET /v3/stream?chunks=1000', ALPHA),
      head('POST /v1/index.php', ALPHA, 'Content-Length: 9', 'x-service-idempotency: a'),
      head('POST /v1/index.php', ALPHA, 'Content-Length: 9'),
      `${head('GET /v3/echo', ALPHA)}${head('GET /v2/get_balance', ALPHA)}`,
    ]) {
      for (let i = 0; i < 3; i++) {
        const wire = await Wire.open(stack.port);
        wire.write(bytes);
        await until(() => wire.rest !== '' || bytes.includes('Content-Length'));
        wire.socket.destroy();
      }
      await free();
      const both = await Promise.all([balance(stack.url), balance(stack.url)]);
      expect(
        both.map(({ status }) => status),
        bytes,
      ).toEqual([200, 200]);
      await free();
    }
  });

  it('has its WebSockets counted', async () => {
    const stack = await limited({ inFlight: 1 });
    const wire = await Wire.open(stack.port);
    expect((await wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer()).status).toBe(101);
    expect((await balance(stack.url)).status).toBe(429);
    wire.socket.destroy();
    await until(async () => (await balance(stack.url)).status === 200);
  });

  it('leaves places to others: all public requests together have those of one merchant', async () => {
    const keys = { source: 'file' as const, path: writeKeys(temporaryFolder()) };
    const open = [{ method: 'GET', path: '/v3/stream' }];
    const stack = await limited(
      { inFlight: 1, merchants: { 'M-BRAVO': { inFlight: 9 } } },
      { auth: { keys, public: open } },
    );
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/stream?chunks=1000'));
    await wire.hears('chunk 1');
    const second = await Wire.open(stack.port);
    expect(codeOf(await second.write(head('GET /v3/stream')).answer())).toBe('rate_limited');
    for (const merchant of [ALPHA, BRAVO])
      expect((await ask(stack.port, head('GET /v2/get_balance', merchant))).status).toBe(200);
    wire.socket.destroy();
    await until(async () => {
      const next = await Wire.open(stack.port);
      return (await next.write(head('GET /v3/stream?chunks=1')).answer()).status === 200;
    });
  });
});

describe('on Redis', () => {
  let redis: RedisServer;
  beforeAll(async () => {
    redis = await startRedis();
  });
  beforeEach(async () => {
    await redis.admin.flushall();
  });

  it('the limit is that of all gateways together', async () => {
    const stack = await limited({ requests: 5, windowMs: LONG, timeoutMs: 5000 }, onRedis(redis));
    const other = await gatewayForTest(stack.config);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, i) => balance(i % 2 ? stack.url : other.url)),
    );
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(5);
    expect(answers.filter(({ status }) => status === 429)).toHaveLength(15);
    expect(await redis.admin.get(`oncegate:requests:${LONG}:M-ALPHA`)).toBe('20');
    const ttlMs = await redis.admin.pttl(`oncegate:requests:${LONG}:M-ALPHA`);
    expect(ttlMs).toBeGreaterThan(LONG - 60_000);
  });

  it('a reload opens the connection for limits, replaces it for another timeout, and closes it', async () => {
    const { gateway, config, url, log } = await stackForTest(onRedis(redis));
    const reload = (limits: MoreConfig['limits']) => gateway.reload(parsedConfig({ ...config, limits }));
    const connections = async () => `${await redis.admin.client('LIST')}`.match(/^id=\d+/gm) ?? [];
    // Those of earlier tests may still end.
    const before = new Set(await connections());
    const opened = async () => (await connections()).filter((id) => !before.has(id));
    const limiters: string[] = [];
    for (const [i, timeoutMs] of [5000, 4000].entries()) {
      await reload({ perMerchant: { requests: 100, windowMs: LONG, timeoutMs } });
      expect(await statusesOf(1, () => balance(url))).toEqual([200]);
      expect(await redis.admin.get(`oncegate:requests:${LONG}:M-ALPHA`)).toBe(`${i + 1}`);
      await until(async () => (await opened()).length === 1);
      limiters.push(...(await opened()));
    }
    expect(new Set(limiters).size).toBe(2);
    await reload({});
    await until(async () => (await opened()).length === 0);
    expect(log.filter(({ msg }) => /^the limits of merchants are/.test(`${msg}`))).toEqual([]);
  });

  it('a reload that is refused leaves no connection for limits', async () => {
    const { gateway, config, url } = await stackForTest(onRedis(redis));
    const connections = async () => `${await redis.admin.client('LIST')}`.match(/^id=\d+/gm) ?? [];
    const before = new Set(await connections());
    const limits = { perMerchant: { requests: 100, windowMs: LONG, timeoutMs: 3000 } };
    const changed = parsedConfig({ ...config, limits });
    const [first] = changed.operations as [Config['operations'][number]];
    const failing = (): never => {
      throw new TypeError('not in force');
    };
    const idempotency = Object.defineProperty({ ...first.idempotency }, 'lookup', { get: failing });
    for (const broken of [
      { ...first, idempotency },
      { ...first, match: { ...first.match, path: '/:' } },
    ])
      await expect(gateway.reload({ ...changed, operations: [broken] })).rejects.toThrow(TypeError);
    await until(async () => (await connections()).every((id) => before.has(id)));
    expect(await statusesOf(1, () => balance(url))).toEqual([200]);
    expect(await redis.admin.keys('oncegate:requests:*')).toEqual([]);
  });

  it('a window that a reload corrects refuses nobody for the rest of the old one', async () => {
    const windows = (windowMs: number) => ({
      requests: 1,
      windowMs,
      burst: { requests: 1, windowMs: 2 * windowMs },
      timeoutMs: 5000,
    });
    const stack = await limited(windows(LONG), onRedis(redis));
    expect(await statusesOf(3, () => balance(stack.url))).toEqual([200, 200, 429]);
    await stack.gateway.reload(parsedConfig({ ...stack.config, limits: { perMerchant: windows(1000) } }));
    expect(await statusesOf(2, () => balance(stack.url))).toEqual([200, 200]);
    // These windows end too.
    await until(async () => (await balance(stack.url)).status === 429);
    await until(async () => (await balance(stack.url)).status === 200);
  });

  it('a Redis that is frozen or gone refuses nobody, and delays one request in a second', async () => {
    const timeoutMs = 200;
    const stack = await limited({ requests: 10, windowMs: LONG, timeoutMs }, onRedis(redis));
    const messages = () => stack.log.filter(({ msg }) => /^the limits of merchants are/.test(`${msg}`));
    expect((await balance(stack.url)).status).toBe(200);
    redis.freeze();
    const startedMs = performance.now();
    // This process counts alone, and permits as many as it would if it were the only one.
    expect(await statusesOf(12, () => balance(stack.url))).toEqual([...Array(10).fill(200), 429, 429]);
    const elapsedMs = performance.now() - startedMs;
    expect(elapsedMs).toBeGreaterThanOrEqual(timeoutMs - 50);
    expect(elapsedMs).toBeLessThan(12 * timeoutMs);
    expect(messages()).toHaveLength(1);
    redis.thaw();
    await until(async () => (await balance(stack.url, 'sk_sandbox_bravo')) && messages().length === 2);
    const counted = Number(await redis.admin.get(`oncegate:requests:${LONG}:M-BRAVO`));
    expect(counted).toBeGreaterThan(0);

    await redis.kill();
    await until(async () => (await balance(stack.url, 'sk_sandbox_charlie')) && messages().length === 3);
    expect(messages().map(({ msg }) => msg)).toEqual([
      expect.stringMatching(/are not shared/),
      expect.stringMatching(/are shared again/),
      expect.stringMatching(/are not shared/),
    ]);
  });
});
