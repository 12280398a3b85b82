import { randomBytes, randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import type { IdempotencyRecord } from '../../../src/idempotency/store.ts';
import { decodeRecord, encodeRecord } from '../../../src/idempotency/stores/redis/codec.ts';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { expectProblem } from '../../support/problem.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { until } from '../../support/until.ts';
import { configFor, isReplay, openSandbox, startGateway } from './gateways.ts';
import { newKey, PEPPER } from './key-commands.ts';

/** A gateway process that encrypts, a Redis, and a sandbox that knows the merchants. */
async function openEncrypted() {
  const [sandbox, redis] = [await openSandbox(), await startRedis()];
  const encryption = { keys: [{ id: '2026', secret: randomBytes(32).toString('base64') }] };
  const config = configFor(sandbox, { store: { kind: 'redis', url: redis.url, encryption } });
  return { sandbox, redis, gateway: await startGateway(config) };
}

const RECORD = /\{[0-9a-f]{64}\}$/;

/** The record whose idempotency key is this one. */
async function recordOf({ admin }: RedisServer, key: string): Promise<{ name: string; bytes: Buffer }> {
  for (const name of (await admin.keys('*')).filter((one) => RECORD.test(one))) {
    const bytes = await admin.getBuffer(name);
    if (bytes && decodeRecord(bytes).key === key) return { name, bytes };
  }
  throw new Error(`no record has the key ${key}`);
}

// docs/threat-model.md says what each of them gets, and names these tests.
describe('who can read the Redis of a gateway that encrypts', () => {
  it('finds merchants and idempotency keys, and no word of a request, a response or a secret key', async () => {
    const { redis, gateway } = await openEncrypted();
    const key = randomUUID();
    const { body } = await withdraw(gateway.url, { key });
    const { bytes } = await recordOf(redis, key);
    const stored = bytes.toString('latin1');
    for (const open of ['M-ALPHA', key, 'withdraw']) expect(stored).toContain(open);
    const words = (body.toString().match(/[\w-]{6,}/g) ?? []).filter((word) => word !== 'withdraw');
    expect(words.length).toBeGreaterThan(3);
    for (const word of [...words, '0123456789', 'sk_sandbox_alpha']) expect(stored).not.toContain(word);
  });
});

describe('who can write to the Redis of a gateway that encrypts', () => {
  it('cannot give one key the encrypted response of another: the retry is refused, and nothing is paid', async () => {
    const { sandbox, redis, gateway } = await openEncrypted();
    const [one, other] = [randomUUID(), randomUUID()];
    for (const key of [one, other]) expect((await withdraw(gateway.url, { key })).status).toBe(201);
    const [from, to] = [await recordOf(redis, one), await recordOf(redis, other)];
    await redis.admin.set(to.name, from.bytes, 'KEEPTTL');
    const retry = await withdraw(gateway.url, { key: other });
    expectProblem(retry, { status: 503, code: 'store_unavailable', retryAfter: 1 });
    expect(sandbox.ledger.payouts({ key: other })).toBe(1);
  });

  it('can put a response in clear in its place, which retries then get', async () => {
    const { sandbox, redis, gateway } = await openEncrypted();
    const key = randomUUID();
    await withdraw(gateway.url, { key });
    const { name, bytes } = await recordOf(redis, key);
    const { encryptionKeyId: _, ...record } = decodeRecord(bytes);
    const response = { status: 201, headers: ['Content-Type', 'text/plain'], body: Buffer.from('forged') };
    const forged = { ...record, completion: { kind: 'response', response } } as IdempotencyRecord;
    await redis.admin.set(name, encodeRecord(forged), 'KEEPTTL');
    expect((await withdraw(gateway.url, { key })).body.toString()).toBe('forged');
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('can remove a record, and its key is paid again', async () => {
    const { sandbox, redis, gateway } = await openEncrypted();
    const key = randomUUID();
    await withdraw(gateway.url, { key });
    await redis.admin.del((await recordOf(redis, key)).name);
    expect(isReplay(await withdraw(gateway.url, { key }))).toBe(false);
    expect(sandbox.ledger.payouts({ key })).toBe(2);
  });
});

it('a merchant who can write to the key list in Redis can give its own secret key to another merchant', async () => {
  const [sandbox, redis] = [await openSandbox(), await startRedis()];
  const keys = { source: 'redis', url: redis.url } as const;
  const forwarded = { forward: 'replace', replaceWith: 'Bearer sk_sandbox_alpha' } as const;
  const auth = { ...forwarded, pepper: '$' + '{ONCEGATE_PEPPER}', keys };
  const config = configFor(sandbox, { auth });
  const file = join(newFolder(), 'gateway.yaml');
  writeFileSync(file, stringify(config));
  const issue = ['issue', '--config', file, '--merchant'];
  const secret = await newKey([...issue, 'M-BRAVO', '--id', 'bravo']);
  await newKey([...issue, 'M-ALPHA', '--id', 'alpha']);
  const gateway = await startGateway(config, { ONCEGATE_PEPPER: PEPPER });
  const merchant = async () => {
    const { headers } = await withdraw(gateway.url, { secret, key: randomUUID() });
    const line = await until(() => gateway.lines.find((one) => one.includes(`"${headers['x-request-id']}"`)));
    return JSON.parse(line).merchant;
  };
  const before = await merchant();
  const [head, list] = ['head', 'list'].map((name) => `oncegate:{keys}:v1:${name}`) as [string, string];
  const own = (await redis.admin.hget(list, 'M-BRAVO bravo')) as string;
  await redis.admin.multi().hdel(list, 'M-BRAVO bravo').hset(list, 'M-ALPHA bravo', own).exec();
  await redis.admin.hset(head, 'version', '99-moved');
  await until(() => gateway.lines.some((line) => line.includes('the secret keys were reloaded')));
  expect([before, await merchant()]).toEqual(['M-BRAVO', 'M-ALPHA']);
});

describe('a page in the browser of an operator, by a name that resolves to the loopback address', () => {
  it.each([
    [
      'reads health and metrics if there is no token',
      undefined,
      { metrics: 200, records: 403, console: 404 },
    ],
    ['reads health only', 'a-token-of-some-length', { metrics: 401, records: 401, console: 421 }],
  ])('%s', async (_, token, expected) => {
    const sandbox = await openSandbox();
    const admin = { host: '127.0.0.1', port: 0, ...(token && { token }) };
    const { adminUrl } = await startGateway(configFor(sandbox, { admin }));
    const statusOf = async (path: string) =>
      (await send(adminUrl, { path, headers: { Host: 'rebound.example:8081' } })).status;
    expect(await statusOf('/readyz')).toBe(200);
    const [metrics, records] = [await statusOf('/metrics'), await statusOf('/records')];
    expect({ metrics, records, console: await statusOf('/console/') }).toEqual(expected);
  });
});
