import { Redis } from 'ioredis';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { hashOf, pepperCheckOf } from '../../src/auth/key-index.ts';
import type { KeySource } from '../../src/auth/key-source.ts';
import { type KeyRedis, RedisKeyList } from '../../src/auth/redis/key-list.ts';
import { RedisKeySource, type RedisKeySourceOptions } from '../../src/auth/redis/redis-key-source.ts';
import { UsedKeys } from '../../src/auth/redis/used-keys.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import {
  addKey,
  HEAD,
  type KeyPlace,
  LIST,
  openList,
  openSource,
  PEPPER,
  redisKeys,
  redisPlace,
} from '../support/key-sources.ts';
import { startRedis } from '../support/redis-server.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';

const SECRET = 'secret-of-merchant-a';
const redis = await startRedis();
const proxy = await startProxy(redis.port);
const throughProxy = redisKeys(proxy, { timeoutMs: 300, connectTimeoutMs: 500 });
let place: KeyPlace;

beforeEach(async () => {
  await redis.admin.flushall();
  place = redisPlace(redis);
  await place.edit((editor) => addKey(editor, 'M-A', 'a', SECRET));
});

const add = (id: string) => place.edit((editor) => addKey(editor, 'M-A', id, `secret-of-key-${id}-0123`));

describe('while Redis is away', () => {
  it.each([
    ['refuses connections', () => proxy.refuse(true)],
    ['does not answer', () => proxy.swallowReplies(true)],
  ])('a gateway does not start, and says why: it %s', async (_, breakIt) => {
    breakIt();
    onTestFinished(() => heal());
    await expect(openSource(throughProxy)).rejects.toThrow(
      /^the secret keys cannot be loaded: redis cannot be reached: ./,
    );
  });

  it.each([
    [
      'refuses connections',
      () => {
        proxy.refuse(true);
        proxy.cut();
      },
    ],
    ['does not answer', () => proxy.swallowReplies(true)],
  ])('the old keys stay in force, and that is reported once: it %s', async (_, breakIt) => {
    const { source, reloads } = await openSource(throughProxy);
    breakIt();
    onTestFinished(() => heal());
    await add('b');
    await until(() => reloads.length > 0);
    expect(source.find(SECRET)).toBeDefined();
    expect(source.health()).toMatchObject({
      ok: true,
      detail: expect.stringMatching(/^1 key from redis \(prefix oncegate\), which may be out of date: redis/),
    });
    await source.reload();
    expect(reloads).toMatchObject([{ ok: false, version: 'unavailable' }, { ok: false }]);

    heal();
    await until(() => source.find('secret-of-key-b-0123'));
    expect(reloads).toHaveLength(3);
    expect(reloads[2]).toMatchObject({ ok: true, keys: 2 });
    expect(source.health().detail).toBe('2 keys from redis (prefix oncegate)');
  });

  it('a reload that failed is forgotten when Redis answers again, also if nothing has changed', async () => {
    const { source, reloads } = await openSource(throughProxy);
    proxy.refuse(true);
    proxy.cut();
    onTestFinished(() => heal());
    await source.reload();
    expect(reloads).toMatchObject([{ ok: false }]);
    heal();
    await until(() => reloads.length > 1);
    expect(reloads[1]).toMatchObject({ ok: true, keys: 1 });
    expect(source.health().detail).toBe('1 key from redis (prefix oncegate)');
  });

  it('the answer to a change that was lost is an error, and the list has the whole change or nothing', async () => {
    const list = await openList(throughProxy);
    const stored = await list.read();
    const [key] = stored?.file.merchants[0]?.keys ?? [];
    if (!key) throw new Error('there is no key');
    proxy.swallowReplies(true);
    onTestFinished(() => heal());
    const change = list.change(stored?.version, stored?.file.pepperCheck ?? '', [
      { merchantCode: 'M-A', key: { ...key, revokedAt: 0 } },
    ]);
    await expect(change).rejects.toThrow('redis: Command timed out');
    const after = await (await openList(redisKeys(redis))).read();
    expect(after).toMatchObject({ changes: 2, file: { merchants: [{ keys: [{ revokedAt: 0 }] }] } });
  });
});

function heal(): void {
  proxy.refuse(false);
  proxy.swallowReplies(false);
}

describe('a list that is not whole', () => {
  const hash = `hmac-sha256:${'0'.repeat(64)}`;
  it.each([
    ['has lost a key', () => redis.admin.hdel(LIST, 'M-A a'), /should have 1 keys and has 0/],
    ['has lost its head', () => redis.admin.del(HEAD), /should have no keys and has 1/],
    ['has lost its keys', () => redis.admin.del(LIST), /should have 1 keys and has 0/],
    [
      'has another format',
      () => redis.admin.hset(HEAD, 'format', '2'),
      /has format 2, and this version of oncegate knows format 1/,
    ],
    ['has no pepperCheck', () => redis.admin.hdel(HEAD, 'pepperCheck'), /pepperCheck/],
    ['has a key that is no JSON', () => redis.admin.hset(LIST, 'M-A a', '{'), /M-A\/a: /],
    [
      'has a clear secret',
      () =>
        redis.admin.hset(
          LIST,
          'M-A a',
          JSON.stringify({ id: 'a', dangerouslyPlainSecret: 'sk_hunter2_hunter2' }),
        ),
      /M-A\/a: has no hash/,
    ],
    [
      'has a misspelt member',
      () => redis.admin.hset(LIST, 'M-A a', JSON.stringify({ id: 'a', hash, revokedat: '2020' })),
      /M-A\/a: .*unknown member/,
    ],
    [
      'has a key under the name of another',
      () => redis.admin.hset(LIST, 'M-A a', JSON.stringify({ id: 'b', hash })),
      /M-A\/a: has another id/,
    ],
  ])('is refused at the start and later: it %s', async (_, damage, reason) => {
    const { source, reloads } = await openSource(place.keys);
    await damage();
    await source.reload();
    expect(reloads).toMatchObject([{ ok: false, error: expect.stringMatching(reason) }]);
    expect(source.find(SECRET)).toBeDefined();
    const refused = openSource(place.keys);
    await expect(refused).rejects.toThrow(reason);
    await expect(refused).rejects.toThrow(/^the secret keys in redis \(prefix oncegate\) are refused:/);
    await expect(refused).rejects.not.toThrow(/hunter2|000000/);
    await expect(add('c')).rejects.toThrow();
  });

  it('is reported once, and not with every poll', async () => {
    const { source, reloads } = await openSource(place.keys);
    await redis.admin.multi().del(LIST).hset(HEAD, 'version', '9-x').exec();
    await until(() => reloads.length > 0);
    const polls = await redis.commandCount('hget');
    await until(async () => (await redis.commandCount('hget')) > polls + 3);
    expect(reloads).toMatchObject([{ ok: false }]);
    expect(source.find(SECRET)).toBeDefined();
  });
});

it('a list that is changed while it is read is read again', async () => {
  const client = new Redis(redis.url);
  onTestFinished(() => client.disconnect());
  await client.ping();
  let scans = 0;
  const hscan: KeyRedis['hscan'] = async (...args) => {
    const part = await client.hscan(...args);
    scans++;
    // After the first reading of the keys, and before that of the version.
    if (scans === 1) await add('b');
    return part;
  };
  const interrupted = new Proxy(client, {
    get: (_, name) => (name === 'hscan' ? hscan : bound(client, name)),
  });
  const list = new RedisKeyList(interrupted, 'oncegate');
  expect(await list.read()).toMatchObject({ changes: 2, file: { merchants: [{ keys: [{}, {}] }] } });
  expect(scans).toBe(2);
});

/** A member of an object, with the object as `this`. */
function bound(object: object, name: string | symbol): unknown {
  const member: unknown = Reflect.get(object, name);
  return typeof member === 'function' ? member.bind(object) : member;
}

it('a list of a thousand keys is read in parts', async () => {
  const list = await openList(redisKeys(redis));
  const { version } = (await list.read()) ?? never();
  const added = Array.from({ length: 1000 }, (_, i) => ({
    merchantCode: `M-${i}`,
    key: { id: 'a', scopes: ['*'], hash: hashOf(PEPPER, `secret-of-merchant-${i}`) },
  }));
  expect(await list.change(version, pepperCheckOf(PEPPER), added)).toBe('ok');
  const before = await redis.commandCount('hscan');
  const { source } = await openSource(place.keys);
  expect((await redis.commandCount('hscan')) - before).toBeGreaterThan(1);
  expect(source.health().keys).toBe(1001);
  expect(source.find('secret-of-merchant-999')?.merchantCode).toBe('M-999');
});

describe('a Redis that has lost changes', () => {
  const restore = async (dump: [head: Buffer, list: Buffer]) => {
    const [head, list] = dump;
    await redis.admin.multi().restore(HEAD, 0, head, 'REPLACE').restore(LIST, 0, list, 'REPLACE').exec();
  };
  const dump = async () =>
    (await Promise.all([redis.admin.dumpBuffer(HEAD), redis.admin.dumpBuffer(LIST)])) as [Buffer, Buffer];

  it('does not put a revoked key in force again, until an operator changes the list', async () => {
    const backup = await dump();
    await place.edit((editor) => editor.setTime('M-A', 'a', 'revokedAt', new Date(0).toISOString()));
    await add('b');
    const { source, reloads } = await openSource(place.keys);
    await restore(backup);
    await until(() => reloads.length > 0);
    expect(reloads).toMatchObject([{ ok: false, error: expect.stringMatching(/it has 1 and had 3/) }]);
    expect(source.find(SECRET)?.revokedAtMs).toBe(0);
    await add('c');
    await until(() => source.find('secret-of-key-c-0123'));
    expect(source.find(SECRET)?.revokedAtMs).toBe(Number.POSITIVE_INFINITY);
  });

  it('puts its list in force at a reload', async () => {
    const backup = await dump();
    await add('b');
    const { source, reloads } = await openSource(place.keys);
    await restore(backup);
    await until(() => reloads.length > 0);
    expect(source.find('secret-of-key-b-0123')).toBeDefined();
    await source.reload();
    expect(source.find('secret-of-key-b-0123')).toBeUndefined();
    expect(reloads.at(-1)).toMatchObject({ ok: true, keys: 1 });
  });

  it('is not asked for its list if it is emptied', async () => {
    const { source, reloads } = await openSource(place.keys);
    await redis.admin.flushall();
    await until(() => reloads.length > 0);
    expect(reloads[0]).toMatchObject({ ok: false, error: expect.stringMatching(/there are no secret keys/) });
    expect(source.find(SECRET)).toBeDefined();
  });
});

it('Redis has no secret key and no pepper', async () => {
  await add('b');
  const { source } = await openSource(place.keys);
  source.noteUse?.(source.find(SECRET) ?? never());
  await source.close();
  const names = await redis.admin.keys('*');
  expect(names.sort()).toEqual([HEAD, LIST, 'oncegate:{keys}:v1:used']);
  const values = await Promise.all(names.map((name) => redis.admin.hgetall(name)));
  expect(JSON.stringify(values)).toContain('hmac-sha256:');
  expect(JSON.stringify(values)).not.toMatch(/secret-of|a-pepper/);
});

it('two lists with different prefixes share a server', async () => {
  const other = redisKeys(redis, { prefix: 'other' });
  await expect(openSource(other)).rejects.toThrow('no secret keys in redis (prefix other)');
});

it('a revocation finds room in a full Redis', async () => {
  onTestFinished(async () => void (await redis.admin.config('SET', 'maxmemory', '0')));
  await redis.admin.config('SET', 'maxmemory', '1');
  await place.edit((editor) => editor.setTime('M-A', 'a', 'revokedAt', new Date(0).toISOString()));
  const { source } = await openSource(place.keys);
  expect(source.find(SECRET)?.revokedAtMs).toBe(0);
});

describe('the day of the last use', () => {
  const DAY = 24 * 3_600_000;
  let nowMs = 0;
  const clock = { ...systemClock, wallMs: () => nowMs };
  beforeEach(() => {
    nowMs = Date.UTC(2026, 10, 23, 23, 59);
  });

  async function openNoting(more: Partial<RedisKeySourceOptions> = {}): Promise<KeySource> {
    const list = await openList(redisKeys(redis));
    const source = await RedisKeySource.open({ list, pepper: PEPPER, clock, collectUsesMs: 20, ...more });
    onTestFinished(() => source.close());
    return source;
  }
  const use = (source: KeySource, secret = SECRET) => source.noteUse?.(source.find(secret) ?? never());
  const used = () => redis.admin.hgetall('oncegate:{keys}:v1:used');

  it('is written once a day for each key and process, in one write', async () => {
    await add('b');
    const source = await openNoting();
    const before = await redis.commandCount('hset');
    for (let i = 0; i < 100; i++) {
      use(source);
      use(source, 'secret-of-key-b-0123');
    }
    await until(async () => Object.keys(await used()).length === 2);
    expect(await used()).toEqual({ 'M-A a': '2026-11-23', 'M-A b': '2026-11-23' });
    nowMs += 60_000;
    use(source);
    await until(async () => (await used())['M-A a'] === '2026-11-24');
    expect((await used())['M-A b']).toBe('2026-11-23');
    expect((await redis.commandCount('hset')) - before).toBe(3);
  });

  it('is never moved back by a gateway whose clock is behind', async () => {
    const [ahead, behind] = [await openNoting(), await openNoting()];
    use(ahead);
    await ahead.close();
    nowMs -= DAY;
    use(behind);
    await behind.close();
    expect(await used()).toEqual({ 'M-A a': '2026-11-23' });
  });

  it('is written when the gateway ends, and for keys in the list only', async () => {
    const source = await openNoting({ collectUsesMs: 3_600_000 });
    const key = source.find(SECRET) ?? never();
    use(source);
    source.noteUse?.({ ...key, digest: 'another', keyId: 'gone' });
    await source.close();
    expect(await used()).toEqual({ 'M-A a': '2026-11-23' });
  });

  it('is written later if Redis is away or full, and health says that it is not', async () => {
    const source = await openNoting();
    onTestFinished(async () => void (await redis.admin.config('SET', 'maxmemory', '0')));
    await redis.admin.config('SET', 'maxmemory', '1');
    use(source);
    await until(() => /the days of use cannot be noted: redis: OOM/.test(source.health().detail));
    expect(source.health().ok).toBe(true);
    await redis.admin.config('SET', 'maxmemory', '0');
    await until(async () => (await used())['M-A a']);
    await until(() => source.health().detail === '1 key from redis (prefix oncegate)');
  });

  it('of many keys is written in several writes', async () => {
    const writes: number[] = [];
    const list = {
      noteUses: async (_day: string, fields: readonly string[]) => void writes.push(fields.length),
    };
    const uses = new UsedKeys(list as unknown as RedisKeyList, clock, 3_600_000);
    const source = await openNoting();
    const key = source.find(SECRET) ?? never();
    for (let i = 0; i < 1200; i++) uses.note({ ...key, keyId: `k${i}`, digest: `${i}` });
    await uses.close();
    expect(writes).toEqual([500, 500, 200]);
  });
});

function never(): never {
  throw new Error('the key is not there');
}
