import { randomBytes, randomUUID } from 'node:crypto';
import { describe, expect, it, onTestFinished } from 'vitest';
import { decodeRecord, encodeRecord } from '../../../src/store/codec.ts';
import { isReplay, send, withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, stackForFile } from '../../support/stack.ts';

const redis = await startRedis();
const encryption = { keys: [{ id: '2026', secret: randomBytes(32).toString('base64') }] };
/** A gateway that encrypts. */
const gateway = await stackForFile({ store: { kind: 'redis', url: redis.url, encryption } });
const { ledger } = gateway.sandbox;

const RECORD = /\}:[\w-]{32}$/;

/** The record whose idempotency key is this one. */
async function recordOf(key: string): Promise<{ name: string; bytes: Buffer }> {
  for (const name of (await redis.admin.keys('*')).filter((one) => RECORD.test(one))) {
    const bytes = await redis.admin.getBuffer(name);
    if (bytes && decodeRecord(bytes).key === key) return { name, bytes };
  }
  throw new Error(`no record has the key ${key}`);
}

// docs/threat-model.md says what each of them gets, and names these tests.
describe('who can read the Redis of a gateway that encrypts', () => {
  it('finds merchants and idempotency keys, and no word of a request, a response or a secret key', async () => {
    const key = randomUUID();
    const { body } = await withdraw(gateway.url, { key });
    const { bytes } = await recordOf(key);
    const stored = bytes.toString('latin1');
    for (const open of ['M-ALPHA', key, 'withdraw']) expect(stored).toContain(open);
    const words = (body.toString().match(/[\w-]{6,}/g) ?? []).filter((word) => word !== 'withdraw');
    expect(words.length).toBeGreaterThan(3);
    for (const word of [...words, '0123456789', 'sk_sandbox_alpha']) expect(stored).not.toContain(word);
  });
});

describe('who can write to the Redis of a gateway that encrypts', () => {
  it('cannot give one key the encrypted response of another: the retry is refused, and nothing is paid', async () => {
    const [one, other] = [randomUUID(), randomUUID()];
    for (const key of [one, other]) expect((await withdraw(gateway.url, { key })).status).toBe(201);
    const [from, to] = [await recordOf(one), await recordOf(other)];
    await redis.admin.set(to.name, from.bytes, 'KEEPTTL');
    const retry = await withdraw(gateway.url, { key: other });
    expectProblem(retry, { status: 503, code: 'store_unavailable', retryAfter: 1 });
    expect(ledger.payouts({ key: other })).toBe(1);
  });

  it('can put a response in clear in its place, which retries then get', async () => {
    const key = randomUUID();
    await withdraw(gateway.url, { key });
    const { name, bytes } = await recordOf(key);
    const { encryptionKeyId: _, ...record } = decodeRecord(bytes);
    const response = { status: 201, headers: ['Content-Type', 'text/plain'], body: Buffer.from('forged') };
    const forged = { ...record, completion: { kind: 'response' as const, response } };
    await redis.admin.set(name, encodeRecord(forged), 'KEEPTTL');
    expect((await withdraw(gateway.url, { key })).body.toString()).toBe('forged');
    expect(ledger.payouts({ key })).toBe(1);
  });

  it('can remove a record, and its key is paid again', async () => {
    const key = randomUUID();
    await withdraw(gateway.url, { key });
    await redis.admin.del((await recordOf(key)).name);
    expect(isReplay(await withdraw(gateway.url, { key }))).toBe(false);
    expect(ledger.payouts({ key })).toBe(2);
  });
});

it('a page in the browser of an operator, by a name that resolves to the loopback address', async () => {
  for (const [token, expected] of [
    [undefined, { '/readyz': 200, '/metrics': 200, '/records': 403, '/console/': 404 }],
    ['a-token-of-some-length', { '/readyz': 200, '/metrics': 401, '/records': 401, '/console/': 421 }],
  ] as const) {
    const { adminUrl, close } = await openStack({ admin: { port: 0, ...(token && { token }) } });
    onTestFinished(close);
    const headers = { Host: 'rebound.example:8081' };
    for (const [path, status] of Object.entries(expected))
      expect([path, (await send(adminUrl, { path, headers })).status]).toEqual([path, status]);
  }
});
