import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import express from 'express';
import { describe, expect, it } from 'vitest';
import { listen } from '../../../src/gateway/http-server.ts';
import {
  bearerAuth,
  createGateway,
  forward,
  idempotency,
  redisStore,
  sqliteStore,
} from '../../../src/index.ts';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder, testConfig, writeKeys } from '../../support/config.ts';
import { closeAfterTest, embed } from '../../support/embedded.ts';
import { startRedis } from '../../support/redis-server.ts';

const problemCode = (answer: { json<T>(): T }) => answer.json<{ error?: { code: string } }>().error?.code;

describe('bearerAuth()', () => {
  it('finds the merchant of a secret key, and refuses others', async () => {
    const folder = temporaryFolder();
    const auth = await bearerAuth({ path: writeKeys(folder), scope: 'payout' });
    closeAfterTest(async () => auth.close());
    const merchants: unknown[] = [];
    const { post } = await embed(
      (app, protect) =>
        app.post('/payouts', auth, protect, (req, res) => {
          merchants.push((req as { merchant?: unknown }).merchant);
          res.json({});
        }),
      { merchant: (req) => (req as { merchant?: { code: string } }).merchant?.code ?? '' },
    );
    const as = (secret: string) => post('k-1', { headers: { authorization: `Bearer ${secret}` } });
    expect((await as('sk_sandbox_alpha')).status).toBe(200);
    expect((await as('sk_sandbox_alpha_2')).headers['idempotent-replayed']).toBe('true');
    expect((await as('sk_sandbox_bravo')).headers['idempotent-replayed']).toBeUndefined();
    expect(problemCode(await as('sk_test_revoked'))).toBe('invalid_key');
    expect(problemCode(await as('sk_test_balance_only'))).toBe('insufficient_scope');
    const none = await post('k-1');
    expect([none.status, none.headers['www-authenticate']]).toEqual([401, 'Bearer realm="oncegate"']);
    expect(merchants).toEqual([
      { code: 'M-ALPHA', keyId: 'alpha-1', scopes: ['*'] },
      { code: 'M-BRAVO', keyId: 'bravo-1', scopes: ['*'] },
    ]);
  });
});

describe('redisStore()', () => {
  it('is shared by two applications', async () => {
    const redis = await startRedis();
    let runs = 0;
    const open = async () => {
      const store = await redisStore({ url: redis.url, timeoutMs: 5000 });
      const app = await embed(
        (to, protect) => to.post('/payouts', protect, (_req, res) => res.json({ run: ++runs })),
        { store },
      );
      return { ...app, store };
    };
    const [one, two] = [await open(), await open()];
    const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => (i % 2 ? one : two).post('k-1')));
    expect(new Set(answers.map(({ body }) => body.toString()))).toEqual(new Set(['{"run":1}']));
    expect((await one.store.health()).ok).toBe(true);
    closeAfterTest(async () => {});
    await Promise.all([one.protect.close(), two.protect.close()]);
    await Promise.all([one.store.close(), two.store.close()]);
  });
});

describe('createGateway()', () => {
  const pay = (url: string, path = '/v1/index.php') =>
    send(url, {
      method: 'POST',
      path,
      headers: {
        authorization: 'Bearer sk_sandbox_alpha',
        'content-type': 'application/json',
        'idempotency-key': 'k-1',
      },
      body: '{"action":"withdraw","amount":10,"bank_code":"058","account_number":"0123456789"}',
    });

  it('is the whole gateway: it listens, serves the admin port, and closes', async () => {
    const sandbox = await createSandbox({ port: 0 });
    closeAfterTest(() => sandbox.close());
    const gateway = await createGateway({
      ...testConfig(temporaryFolder(), sandbox.url),
      log: { level: 'silent' },
    });
    const { port, adminPort } = await gateway.listen();
    const url = `http://127.0.0.1:${port}`;
    expect((await pay(url)).status).toBe(201);
    expect((await pay(url)).headers['idempotent-replayed']).toBe('true');
    expect((await send(`http://127.0.0.1:${adminPort}`, { path: '/readyz' })).status).toBe(200);
    expect((await gateway.checks()).every(({ ok }) => ok)).toBe(true);
    expect(await gateway.metrics()).toContain('oncegate_idempotency_hits_total{operation="withdraw"} 1');
    expect(sandbox.ledger.payouts()).toBe(1);
    await gateway.close();
    await expect(pay(url)).rejects.toThrow('ECONNREFUSED');
  });

  it('can be mounted in a larger application, and its refusals stay problem documents', async () => {
    const sandbox = await createSandbox({ port: 0 });
    closeAfterTest(() => sandbox.close());
    const gateway = await createGateway({
      ...testConfig(temporaryFolder(), sandbox.url),
      log: { level: 'silent' },
    });
    closeAfterTest(() => gateway.close());
    const app = express()
      .get('/hello', (_req, res) => res.send('hello'))
      .use('/pay', gateway.app);
    const server = createServer(app);
    const url = `http://127.0.0.1:${await listen(server, '127.0.0.1', 0)}`;
    closeAfterTest(async () => void server.close());
    expect((await send(url, { path: '/hello' })).body.toString()).toBe('hello');
    expect((await pay(url, '/pay/v1/index.php')).status).toBe(201);
    expect((await pay(url, '/pay/v1/index.php')).headers['idempotent-replayed']).toBe('true');
    const refused = await send(url, { path: '/pay/v2/get_balance' });
    expect([refused.status, problemCode(refused)]).toEqual([401, 'missing_credentials']);
    expect(sandbox.ledger.payouts()).toBe(1);
  });

  it('explains mistakes', async () => {
    const config = testConfig(temporaryFolder(), 'http://127.0.0.1:9');
    await expect(createGateway({ ...config, lock: { leaseMs: 1 } })).rejects.toThrow(
      'createGateway: lock.leaseMs',
    );
    await expect(createGateway({ ...config, workers: 2 })).rejects.toThrow('workers: must be 1');
    expect(() => idempotency({ store: {} as never })).toThrow('store: must be the result of');
    const store = await sqliteStore({
      path: temporaryFolder(),
      retentionMs: 30_000,
      inDoubtRetentionMs: 30_000,
    });
    closeAfterTest(() => store.close());
    expect(() => idempotency({ store })).toThrow('retentionMs');
    const metrics = { text: async () => '' };
    expect(() => idempotency({ store, metrics, timeoutMs: 1000 })).toThrow('the result of createMetrics');
    expect(() => idempotency({ store, waitMs: -1 })).toThrow('idempotency: waitMs:');
    expect(() => forward({ upstream: 'nowhere' })).toThrow('forward: upstream:');
    await expect(sqliteStore({ leaseMs: 1 })).rejects.toThrow('sqliteStore: leaseMs:');
    const file = join(temporaryFolder(), 'broken.yaml');
    writeFileSync(file, 'merchants: 1');
    await expect(bearerAuth({ path: file })).rejects.toThrow('is refused');
  });
});
