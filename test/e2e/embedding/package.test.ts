import { existsSync, statfsSync, statSync, writeFileSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { join } from 'node:path';
import express, { type ErrorRequestHandler, type RequestHandler } from 'express';
import { describe, expect, it, onTestFinished } from 'vitest';
import {
  bearerAuth,
  createGateway,
  createMetrics,
  forward,
  idempotency,
  redisStore,
  sqliteStore,
} from '../../../src/index.ts';
import { httpBackend } from '../../support/backend.ts';
import { send } from '../../support/client.ts';
import { run } from '../../support/command.ts';
import { type ConfigInput, temporaryFolder, testConfig, writeKeys } from '../../support/config.ts';
import { Scrape } from '../../support/metrics.ts';
import { emptied, startRedis } from '../../support/redis-server.ts';
import { openSandbox } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, codeOf, head, Wire } from '../../support/wire.ts';
import { embed } from './embedded.ts';

describe('bearerAuth()', () => {
  it('finds the merchant of a secret key, and refuses others', async () => {
    const folder = temporaryFolder();
    const auth = await bearerAuth({ path: writeKeys(folder), scope: 'payout' });
    onTestFinished(async () => auth.close());
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
    expect(codeOf(await as('sk_test_revoked'))).toBe('invalid_key');
    expect(codeOf(await as('sk_test_balance_only'))).toBe('insufficient_scope');
    const none = await post('k-1');
    expect([none.status, none.headers['www-authenticate']]).toEqual([401, 'Bearer realm="oncegate"']);
    expect(merchants).toEqual([
      { code: 'M-ALPHA', keyId: 'alpha-1', scopes: ['*'] },
      { code: 'M-BRAVO', keyId: 'bravo-1', scopes: ['*'] },
    ]);
  });

  it('closes the connection of a refused request only if a part of its body may follow', async () => {
    const auth = await bearerAuth({ path: writeKeys(temporaryFolder()) });
    onTestFinished(async () => auth.close());
    const url = await httpBackend(express().use(auth));
    const wire = await Wire.open(Number(new URL(url).port));
    for (let i = 0; i < 2; i++)
      expect((await wire.write(head('GET /balance')).answer()).headers.connection).toEqual(['keep-alive']);
    const answer = await wire.write(head('POST /payouts', 'Content-Length: 1')).answer();
    expect(answer.headers.connection).toEqual(['close']);
    expect(await wire.ended).toBe('end');
  });
});

describe('redisStore()', () => {
  it('starts no key when Redis comes back empty, with an identityFile, until an operator accepts it', async () => {
    const redis = await startRedis();
    const folder = temporaryFolder();
    const options = { url: redis.url, timeoutMs: 5000, identityFile: join(folder, 'identity.json') };
    const store = await redisStore(options);
    onTestFinished(() => store.close());
    const metrics = createMetrics();
    const forgot = async () => new Scrape(await metrics.text()).value('oncegate_store_forgot');
    const { post } = await embed((to, protect) => to.post('/payouts', protect, (_req, res) => res.json({})), {
      ...{ store, metrics },
    });
    await until(() => existsSync(options.identityFile));
    expect((await post('k-1')).status).toBe(200);
    expect(await forgot()).toBe(0);
    await emptied(redis);
    await until(async () => /^the store is new or was emptied/.test((await store.health()).detail));
    expect(codeOf(await post('k-1'))).toBe('store_unavailable');
    // OncegateStoreForgot reads it.
    expect(await forgot()).toBe(1);
    const file = join(folder, 'records.yaml');
    writeFileSync(
      file,
      JSON.stringify({ upstream: { url: 'http://unused' }, store: { kind: 'redis', ...options } }),
    );
    const accepted = await run(['store', 'accept', '--config', file, '--reason', 'the books were compared']);
    expect(accepted.code).toBe(0);
    await until(async () => (await post('k-1')).status === 200);
    expect((await store.health()).ok).toBe(true);
    expect(await forgot()).toBe(0);
  });
});

it('counts the warnings of its store, which OncegateStoreUnsafe reads', async () => {
  const redis = await startRedis({ args: ['--appendfsync', 'everysec'] });
  const store = await redisStore({ url: redis.url, timeoutMs: 5000 });
  onTestFinished(() => store.close());
  const { metrics, close } = idempotency({ store, merchant: () => 'M-ALPHA' });
  onTestFinished(() => close(1000));
  const { warnings } = await store.health();
  expect(warnings).toEqual([expect.stringContaining('appendfsync')]);
  await until(
    async () => new Scrape(await metrics.text()).value('oncegate_config_warnings', { about: 'store' }) === 1,
  );
});

it('all handlers with the same metrics show the store once: its doubts, its size and its commits', async () => {
  const path = temporaryFolder();
  const store = await sqliteStore({ path, timeoutMs: 5000 });
  onTestFinished(() => store.close());
  const { post } = await embed(
    // 502 leaves the key in doubt.
    (app, protect) => app.post('/payouts', protect, (_req, res) => void res.status(502).end()),
    { store },
  );
  expect((await post('k-1')).status).toBe(502);
  const { metrics, close } = idempotency({ store, operation: 'withdraw', merchant: () => 'M-ALPHA' });
  const second = idempotency({ store, operation: 'refund', merchant: () => 'M-ALPHA', metrics });
  for (const end of [close, second.close]) onTestFinished(() => end(1000));
  const sum = async (name: string) =>
    new Scrape(await metrics.text()).value(`oncegate_${name}`) ?? Number.NaN;
  await until(async () => (await sum('doubts_counted_timestamp_seconds')) > 0);
  expect(await sum('keys_in_doubt')).toBe(1);
  expect(await sum('oldest_in_doubt_seconds')).toBeLessThan(60);
  // The alerts about keys in doubt find the store by this.
  expect(await sum('store_info')).toBe(1);
  // OncegateInDoubtOld compares the age with this.
  expect(await sum('in_doubt_page_after_seconds')).toBe(3600);

  const before = await sum('sqlite_commit_duration_seconds_count');
  expect((await post('k-2')).status).toBe(502);
  // The start and its doubt, and perhaps the running time of SQLite's clock.
  expect([2, 3]).toContain((await sum('sqlite_commit_duration_seconds_count')) - before);
  const { bavail, bsize } = statfsSync(path);
  expect(Math.abs((await sum('store_disk_free_bytes')) / (bavail * bsize) - 1)).toBeLessThan(0.2);
  await until(async () => (await sum('sqlite_wal_bytes')) === statSync(join(path, 'records.db-wal')).size);
  expect(await sum('sqlite_writer_queue')).toBe(0);
});

describe('createGateway()', () => {
  const PAYOUT = '{"action":"withdraw","amount":10,"bank_code":"058","account_number":"0123456789"}';
  async function open() {
    const sandbox = await openSandbox();
    const config = testConfig(temporaryFolder(), sandbox.url);
    const gateway = await createGateway({ ...config, log: { level: 'silent' } });
    return { sandbox, gateway };
  }
  const pay = (url: string, path = '/v1/index.php') =>
    send(url, {
      method: 'POST',
      path,
      headers: {
        authorization: 'Bearer sk_sandbox_alpha',
        'content-type': 'application/json',
        'idempotency-key': 'k-1',
      },
      body: PAYOUT,
    });

  it('is the whole gateway: it listens, serves the admin port, and closes', async () => {
    const { sandbox, gateway } = await open();
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
    const { sandbox, gateway } = await open();
    onTestFinished(() => gateway.close());
    const url = await httpBackend(
      express()
        .disable('x-powered-by')
        .get('/hello', (_req, res) => res.send('hello'))
        .use('/pay', gateway.app),
    );
    expect((await send(url, { path: '/hello' })).body.toString()).toBe('hello');
    expect((await pay(url, '/pay/v1/index.php')).status).toBe(201);
    expect((await pay(url, '/pay/v1/index.php')).headers['idempotent-replayed']).toBe('true');
    const refused = await send(url, { path: '/pay/v2/get_balance' });
    expect([refused.status, codeOf(refused)]).toEqual([401, 'missing_credentials']);
    expect(refused.headers).not.toHaveProperty('x-powered-by');
    expect(sandbox.ledger.payouts()).toBe(1);
  });

  it('sends nothing of a body that a middleware in front has read or reads', async () => {
    const { sandbox, gateway } = await open();
    onTestFinished(() => gateway.close());
    const hasRead = Promise.withResolvers<void>();
    const url = await httpBackend(
      express()
        .use('/parsed', express.json(), gateway.app)
        .use('/watched', (req, _res, next) => {
          req.once('data', () => {
            hasRead.resolve();
            next();
          });
        })
        .use('/watched', gateway.app)
        .use(((error, _req, res, _next) => {
          res.status(500).send((error as Error).message);
        }) satisfies ErrorRequestHandler) as RequestListener,
    );
    // What is still to come would be a payout.
    const [begin, rest] = [' '.repeat(100), PAYOUT];
    const wire = await Wire.open(Number(new URL(url).port));
    const fields = [ALPHA, 'Content-Type: application/json', 'Idempotency-Key: k-2'];
    const length = `Content-Length: ${begin.length + rest.length}`;
    wire.write(head('POST /watched/v1/index.php', ...fields, length) + begin);
    await hasRead.promise;
    expect((await wire.write(rest).answer()).status).toBe(500);
    const refused = await pay(url, '/parsed/v1/index.php');
    expect([refused.status, refused.body.toString()]).toEqual([
      500,
      expect.stringMatching(/has read the body/),
    ]);
    expect(sandbox.ledger.payouts()).toBe(0);
  });

  it.each<[string, RequestHandler]>([
    [
      'has read it behind idempotency()',
      (req, _res, next) => {
        req.once('data', () => next());
      },
    ],
    [
      'decodes it',
      (req, _res, next) => {
        req.setEncoding('utf8');
        next();
      },
    ],
    [
      'waits for it',
      (req, _res, next) => {
        req.on('readable', () => {});
        next();
      },
    ],
  ])('sends nothing of a body if a middleware in front %s', async (_, inFront) => {
    const { sandbox, gateway } = await open();
    onTestFinished(() => gateway.close());
    const { url } = await embed((to, protect) => {
      to.use(protect, inFront, gateway.app);
      to.use(((error, _req, res, _next) => {
        res.status(500).send((error as Error).message);
      }) satisfies ErrorRequestHandler);
    });
    expect((await pay(url)).body.toString()).toMatch(/has read the body/);
    expect(sandbox.requests.total()).toBe(0);
  });

  it('counts its keys in doubt where it is mounted, and looks up those that another gateway left', async () => {
    const sandbox = await openSandbox({ lookupToken: 'token-of-the-gateway' });
    const folder = temporaryFolder();
    const match = { method: 'POST', path: '/v1/index.php' };
    const mounted = async (operations: ConfigInput['operations'], url = sandbox.url) => {
      const idempotency = { countDoubtsEveryMs: 100 };
      const log = { level: 'silent' as const };
      const more = { operations, lock: { leaseMs: 1000 }, idempotency, log };
      const gateway = await createGateway(testConfig(folder, url, more));
      onTestFinished(() => gateway.close());
      const of = async (name: string) => {
        const { samples } = new Scrape(await gateway.metrics());
        return samples.reduce((sum, one) => sum + (one.name === name ? one.value : 0), 0);
      };
      return { url: await httpBackend(gateway.app as RequestListener), of };
    };
    const answering502 = await httpBackend((_req, res) => void res.writeHead(502).end());
    const first = await mounted([{ name: 'withdraw', match }], answering502);
    expect((await pay(first.url)).status).toBe(502);
    await until(async () => (await first.of('oncegate_keys_in_doubt')) === 1);
    const lookup = {
      path: '/v1/transactions?merchant={merchant}&key={key}',
      headers: { authorization: 'Bearer token-of-the-gateway' },
      ...{ completed: [404], firstAfterMs: 20, releaseAfterMs: 60_000 },
    };
    const idempotency = { inDoubt: 'lookup' as const, lookup };
    const second = await mounted([{ name: 'withdraw', match, idempotency }]);
    await until(async () => (await second.of('oncegate_resolutions_total')) === 1);
    expect((await pay(first.url)).status).toBe(200);
  });

  it('starts no key when its store was emptied, also where it is mounted, with a store.identityFile', async () => {
    const sandbox = await openSandbox();
    const redis = await startRedis();
    const folder = temporaryFolder();
    const identityFile = join(folder, 'identity.json');
    const store = { kind: 'redis' as const, url: redis.url, timeoutMs: 5000, identityFile };
    const config = { ...testConfig(folder, sandbox.url), log: { level: 'silent' as const }, store };
    const gateway = await createGateway(config);
    onTestFinished(() => gateway.close());
    const url = await httpBackend(gateway.app as RequestListener);
    expect((await pay(url)).status).toBe(201);
    await until(() => existsSync(identityFile));
    await emptied(redis);
    await until(async () =>
      (await gateway.checks()).some(({ detail }) => /^the store is new or was emptied/.test(detail)),
    );
    expect(codeOf(await pay(url))).toBe('store_unavailable');
    expect(sandbox.ledger.payouts()).toBe(1);
  });

  it('explains mistakes', async () => {
    const config = testConfig(temporaryFolder(), 'http://127.0.0.1:9');
    const short = await sqliteStore({
      ...{ path: temporaryFolder(), retentionMs: 30_000, inDoubtRetentionMs: 30_000 },
    });
    const store = await sqliteStore({ path: temporaryFolder() });
    for (const opened of [short, store]) onTestFinished(() => opened.close());
    const cluster = { cluster: ['redis://127.0.0.1:9'], durability: { replicas: 1 } };
    const lookup = { ask: async () => ({ kind: 'undecided' as const }), releaseAfterMs: 29_999 };
    const metrics = { text: async () => '' };
    const file = join(temporaryFolder(), 'broken.yaml');
    writeFileSync(file, 'merchants: 1');
    const cases: [mistake: () => unknown, says: string][] = [
      [() => createGateway({ ...config, lock: { leaseMs: 1 } }), 'createGateway: lock.leaseMs'],
      [() => idempotency({ store: {} as never }), 'store: must be the result of'],
      // WAIT would be sent to any node, and count replicas that lack the write.
      [
        () => redisStore(cluster),
        'redisStore: durability.replicas: 1 is not allowed: is not possible with cluster',
      ],
      [() => idempotency({ store: short }), 'retentionMs'],
      [
        () => idempotency({ store, abandonAfterMs: 30_000 }),
        'abandonAfterMs: must be longer than timeoutMs (30000)',
      ],
      [
        () => idempotency({ store, inDoubt: 'lookup', lookup }),
        'releaseAfterMs: must not be less than timeoutMs (30000)',
      ],
      [() => idempotency({ store, metrics }), 'the result of createMetrics'],
      [() => idempotency({ store, waitMs: -1 }), 'idempotency: waitMs:'],
      ...['x-request-id', 'authorization'].map((name): [() => unknown, string] => [
        () => idempotency({ store, headers: ['idempotency-key', name] }),
        'idempotency: headers[1]: ',
      ]),
      [() => forward({ upstream: 'nowhere' }), 'forward: upstream:'],
      [() => forward({ upstream: 'http://a', authorization: 'replace' }), 'forward: replaceWith:'],
      [() => forward({ upstream: 'http://a', replaceWith: 'Bearer a' }), 'forward: replaceWith:'],
      [() => sqliteStore({ leaseMs: 1 }), 'sqliteStore: leaseMs:'],
      [() => bearerAuth({ path: file }), 'is refused'],
    ];
    for (const [mistake, says] of cases) await expect(async () => await mistake()).rejects.toThrow(says);
  });
});
