import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ErrorRequestHandler, Request, Response } from 'express';
import { describe, expect, it } from 'vitest';
import { OpenedStore } from '../../../src/embedding/stores.ts';
import { type Idempotency, idempotency, sqliteStore } from '../../../src/index.ts';
import { send, type TestAnswer } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { closeAfterTest, embed, expressVersions } from '../../support/embedded.ts';
import { FaultyStore } from '../../support/faulty-store.ts';
import { until } from '../../support/until.ts';

type Handler = (req: Request & { idempotency?: Idempotency }, res: Response, run: number) => unknown;

const pay: Handler = (_req, res, run) => res.status(201).json({ run });

const outcomeOf = ({ status, body }: TestAnswer): [number, unknown] => {
  const { run, error } = JSON.parse(body.toString()) as { run?: unknown; error?: { code: string } };
  return [status, error?.code ?? run];
};
const REPLAYED = 'idempotent-replayed';

/** Each title is a row of a table in docs/migrating.md, which says where other packages do something else. */
describe.each(expressVersions)('what the tests of other packages check, on %s', (_, express) => {
  /** An application that protects every path and method. */
  async function serve(handler: Handler = pay, options: Parameters<typeof embed>[1] = {}) {
    let runs = 0;
    const errors: unknown[] = [];
    const app = await embed(
      (to, protect) => {
        to.use(protect, express.json(), (req, res) => handler(req, res, ++runs));
        const onError: ErrorRequestHandler = (error, _req, res, _next) => {
          errors.push(error);
          res.status(500).json({ run: runs });
        };
        to.use(onError);
      },
      { express, ...options },
    );
    return { ...app, runs: () => runs, errors };
  }

  /** An application whose handler waits for `finish`. */
  async function serveSlowly(options: Parameters<typeof embed>[1] = {}) {
    const { promise, resolve: finish } = Promise.withResolvers<void>();
    const app = await serve(async (req, res, run) => {
      await promise;
      pay(req, res, run);
    }, options);
    const first = app.post('k-1');
    await until(() => app.runs() === 1);
    return { ...app, first, finish };
  }

  it('lets a request without a key pass, every time', async () => {
    const { url, runs } = await serve();
    for (const run of [1, 2])
      expect(outcomeOf(await send(url, { method: 'POST', body: '' }))).toEqual([201, run]);
    expect(runs()).toBe(2);
  });

  it('calls the handler for the first request with a key', async () => {
    const { post, runs } = await serve();
    expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('replays status, header fields and body, without Set-Cookie', async () => {
    const { post, runs } = await serve((_req, res, run) =>
      res.status(202).set({ 'X-Ledger': 'a', Location: '/p/1' }).cookie('session', 's').send(`run ${run}`),
    );
    const [first, again] = [await post('k-1'), await post('k-1')];
    expect([again.status, again.body.toString()]).toEqual([202, 'run 1']);
    for (const name of ['x-ledger', 'location', 'content-type', 'content-length', 'etag', 'date']) {
      expect(first.headers[name], name).toBeDefined();
      expect(again.headers[name], name).toBe(first.headers[name]);
    }
    expect(first.headers['set-cookie']).toHaveLength(1);
    expect(again.headers['set-cookie']).toBeUndefined();
    expect(runs()).toBe(1);
  });

  it('replays JSON, text, bytes and an empty response as they were', async () => {
    const written: Record<string, (res: Response) => unknown> = {
      '/json': (res) => res.json({ amount: '10.00', list: [null, 1] }),
      '/text': (res) => res.send('{"not":  "changed"}'),
      '/bytes': (res) => res.send(Buffer.from([0, 255, 10])),
      '/empty': (res) => res.status(201).send(''),
      '/none': (res) => res.status(204).end(),
    };
    const { post, runs } = await serve((req, res) => written[req.path]?.(res));
    for (const path of Object.keys(written)) {
      const [first, again] = [await post(`k${path}`, { path }), await post(`k${path}`, { path })];
      expect([again.status, again.body, again.headers['content-type']], path).toEqual([
        first.status,
        first.body,
        first.headers['content-type'],
      ]);
      expect(again.headers[REPLAYED], path).toBe('true');
    }
    expect(runs()).toBe(Object.keys(written).length);
  });

  it('marks replays, and nothing else, with Idempotent-Replayed', async () => {
    const { post } = await serve();
    const first = await post('k-1');
    const [again, other] = [await post('k-1'), await post('k-1', { body: '{"amount":11}' })];
    expect([first, again, other].map(({ status, headers }) => [status, headers[REPLAYED]])).toEqual([
      [201, undefined],
      [201, 'true'],
      [422, undefined],
    ]);
  });

  it('calls no handler for a replay', async () => {
    const reached: string[] = [];
    const { post } = await embed(
      (app, protect) => {
        app.use(protect, (_req, _res, next) => {
          reached.push('next');
          next();
        });
        app.use((_req, res) => {
          reached.push('handler');
          res.status(201).json({ run: 1 });
        });
      },
      { express },
    );
    for (let i = 0; i < 3; i++) expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    expect(reached).toEqual(['next', 'handler']);
  });

  it('believes no header of the client about replays', async () => {
    const { post, runs } = await serve();
    const headers = { 'x-hit': 'true', 'idempotent-replayed': 'true' };
    const [first, again] = [await post('k-1', { headers }), await post('k-1')];
    expect([outcomeOf(first), outcomeOf(again)]).toEqual([
      [201, 1],
      [201, 1],
    ]);
    expect(first.headers[REPLAYED]).toBeUndefined();
    expect(runs()).toBe(1);
  });

  it('accepts a retry with the same query and body', async () => {
    const { post, runs } = await serve();
    const request = { path: '/payouts?a=1&b[]=2', body: '{"a":1,"b":{"c":["x"]}}' };
    for (let i = 0; i < 2; i++) expect(outcomeOf(await post('k-1', request))).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('refuses the key with another body', async () => {
    const { post, runs } = await serve();
    await post('k-1', { body: '{"amount":10,"to":{"iban":"A"}}' });
    for (const body of ['{"amount":10,"to":{"iban":"B"}}', '{}'])
      expect(outcomeOf(await post('k-1', { body }))).toEqual([422, 'idempotency_key_reused']);
    expect(runs()).toBe(1);
  });

  it('refuses the key with another path, query or method', async () => {
    const { post, runs } = await serve();
    await post('k-1', { path: '/payouts?a=1' });
    for (const other of [{ path: '/refunds?a=1' }, { path: '/payouts?a=2' }, { path: '/payouts' }])
      expect(outcomeOf(await post('k-1', other))).toEqual([422, 'idempotency_key_reused']);
    const put = await post('k-1', { path: '/payouts?a=1', method: 'PUT' });
    expect(outcomeOf(put)).toEqual([422, 'idempotency_key_reused']);
    expect(runs()).toBe(1);
    // Express shows a mounted handler the rest of the path only.
    const mounted = await embed(
      (app, protect) => {
        for (const path of ['/eur', '/usd']) app.use(path, protect, (_req, res) => res.json({ run: path }));
      },
      { express },
    );
    expect(outcomeOf(await mounted.post('k-1', { path: '/eur/pay' }))).toEqual([200, '/eur']);
    const usd = await mounted.post('k-1', { path: '/usd/pay' });
    expect(outcomeOf(usd)).toEqual([422, 'idempotency_key_reused']);
  });

  it('refuses the key with another body while the first request runs', async () => {
    const { post, runs, first, finish } = await serveSlowly();
    expect(outcomeOf(await post('k-1', { body: '{}' }))).toEqual([422, 'idempotency_key_reused']);
    finish();
    expect(outcomeOf(await first)).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('reads the key from the header that is configured', async () => {
    const { url, runs } = await serve(pay, { headers: ['x-request-key'] });
    const post = (name: string) => send(url, { method: 'POST', headers: { [name]: 'k-1' }, body: '' });
    expect(outcomeOf(await post('X-Request-Key'))).toEqual([201, 1]);
    expect(outcomeOf(await post('x-request-key'))).toEqual([201, 1]);
    expect(outcomeOf(await post('Idempotency-Key'))).toEqual([201, 2]);
    expect(runs()).toBe(2);
  });

  it('refuses a request without a key where one is required', async () => {
    const { url, runs } = await serve(pay, { key: 'required' });
    const answer = await send(url, { method: 'POST', body: '' });
    expect(outcomeOf(answer)).toEqual([400, 'idempotency_key_required']);
    expect(runs()).toBe(0);
  });

  it('refuses a key that is too long', async () => {
    const { post, runs } = await serve();
    expect(outcomeOf(await post('k'.repeat(255)))).toEqual([201, 1]);
    expect(outcomeOf(await post('k'.repeat(256)))).toEqual([400, 'idempotency_key_invalid']);
    expect(runs()).toBe(1);
  });

  it('lets a safe method pass, although it has a key', async () => {
    const { url, runs } = await serve();
    for (const run of [1, 2])
      expect(outcomeOf(await send(url, { headers: { 'idempotency-key': 'k-1' } }))).toEqual([201, run]);
    expect(runs()).toBe(2);
  });

  it('protects no request that goes around it', async () => {
    let runs = 0;
    const { post } = await embed(
      (app, protect) => {
        app.use((req, res, next) => (req.headers['x-dry-run'] ? next() : protect(req, res, next)));
        app.use((_req, res) => res.status(201).json({ run: ++runs }));
      },
      { express },
    );
    const headers = { 'x-dry-run': '1' };
    for (const run of [1, 2]) expect(outcomeOf(await post('k-1', { headers }))).toEqual([201, run]);
    for (let i = 0; i < 2; i++) expect(outcomeOf(await post('k-1'))).toEqual([201, 3]);
  });

  it('answers 409 with Retry-After while the first request runs, if duplicates may not wait', async () => {
    const { post, runs, first, finish } = await serveSlowly({ waitMs: 0 });
    for (const answer of await Promise.all(Array.from({ length: 4 }, () => post('k-1')))) {
      expect(outcomeOf(answer)).toEqual([409, 'request_in_flight']);
      expect(answer.headers['retry-after']).toBe('1');
    }
    finish();
    expect(outcomeOf(await first)).toEqual([201, 1]);
    expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('lets duplicates wait for the response of the first request', async () => {
    const { post, protect, runs, first, finish } = await serveSlowly();
    const duplicates = Promise.all([post('k-1'), post('k-1')]);
    await until(async () => /^oncegate_waiting\S* 2$/m.test(await protect.metrics.text()));
    finish();
    for (const answer of [await first, ...(await duplicates)]) expect(outcomeOf(answer)).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('calls the handler once for simultaneous requests', async () => {
    const { post, runs } = await serve();
    const answers = await Promise.all(Array.from({ length: 20 }, () => post('k-1')));
    for (const answer of answers) expect(outcomeOf(answer)).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('answers refusals itself, without an error handler', async () => {
    const { post, errors, first, finish } = await serveSlowly({ waitMs: 0 });
    const refusals = [await post('k-1'), await post('k-1', { body: '{}' }), await post('k'.repeat(256))];
    expect(refusals.map(outcomeOf)).toEqual([
      [409, 'request_in_flight'],
      [422, 'idempotency_key_reused'],
      [400, 'idempotency_key_invalid'],
    ]);
    for (const { headers } of refusals) expect(headers['content-type']).toMatch('application/problem+json');
    expect(errors).toEqual([]);
    finish();
    await first;
  });

  it('keeps the key of a handler that still runs, however long its duplicates ask', async () => {
    const { post, runs, first, finish } = await serveSlowly({ waitMs: 0, leaseMs: 2000 });
    // Longer than the lease, which the owner renews.
    const endMs = performance.now() + 3000;
    while (performance.now() < endMs) expect((await post('k-1')).status).toBe(409);
    finish();
    expect(outcomeOf(await first)).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('gives the key of a handler that exceeds its time to no other request', async () => {
    const { post, runs, first, finish } = await serveSlowly({ timeoutMs: 100 });
    expect(outcomeOf(await first)).toEqual([504, 'outcome_unknown']);
    expect(outcomeOf(await post('k-1'))).toEqual([409, 'outcome_unknown']);
    // What the handler writes now is too late, and changes nothing.
    finish();
    expect(outcomeOf(await post('k-1'))).toEqual([409, 'outcome_unknown']);
    expect(runs()).toBe(1);
  });

  it('replays a response after the lease has lapsed', async () => {
    const { post, runs } = await serve(pay, { leaseMs: 2000 });
    await post('k-1');
    await sleep(2050);
    expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('replays the answer to an error that the handler throws', async () => {
    const { post, runs, errors } = await serve(() => {
      throw new Error('broken');
    });
    const [first, again] = [await post('k-1'), await post('k-1')];
    expect([outcomeOf(first), outcomeOf(again)]).toEqual([
      [500, 1],
      [500, 1],
    ]);
    expect(again.headers[REPLAYED]).toBe('true');
    expect(again.body).toEqual(first.body);
    expect([runs(), errors.length]).toEqual([1, 1]);
  });

  it('stores every status but those of `release` and `unknown`', async () => {
    const { post } = await serve((req, res, run) =>
      res.status(Number(req.headers['x-status'])).json({ run }),
    );
    const retryOf = async (status: number) => {
      const headers = { 'x-status': String(status) };
      await post(`k-${status}`, { headers });
      return await post(`k-${status}`, { headers });
    };
    for (const status of [200, 299, 300, 400, 404, 422, 500]) {
      const retry = await retryOf(status);
      expect([retry.status, retry.headers[REPLAYED]]).toEqual([status, 'true']);
    }
    for (const status of [401, 403, 429]) {
      const retry = await retryOf(status);
      expect([retry.status, retry.headers[REPLAYED]]).toEqual([status, undefined]);
    }
    for (const status of [502, 504])
      expect(outcomeOf(await retryOf(status))).toEqual([409, 'outcome_unknown']);
  });

  it('frees the key for the statuses that `release` names', async () => {
    const { post } = await serve((_req, res, run) => res.status(run === 1 ? 422 : 201).json({ run }), {
      release: [422],
    });
    expect(outcomeOf(await post('k-1'))).toEqual([422, 1]);
    for (let i = 0; i < 2; i++) expect(outcomeOf(await post('k-1'))).toEqual([201, 2]);
  });

  it('frees the key when the handler says that nothing was done', async () => {
    const { post } = await serve((req, res, run) => {
      if (run === 1) req.idempotency?.release();
      res.status(run === 1 ? 500 : 201).json({ run });
    });
    expect(outcomeOf(await post('k-1'))).toEqual([500, 1]);
    for (let i = 0; i < 2; i++) expect(outcomeOf(await post('k-1'))).toEqual([201, 2]);
  });

  it('replays a response that the handler writes without res.send', async () => {
    const { post, runs } = await serve((_req, res, run) => {
      res.writeHead(201, { 'Content-Type': 'application/json' });
      res.write('{"run":');
      res.end(`${run}}`);
    });
    for (let i = 0; i < 2; i++) expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    expect(runs()).toBe(1);
  });

  it('forgets a response after its retention', async () => {
    const lifetimes = { retentionMs: 5000, leaseMs: 2000 };
    const store = await sqliteStore({ path: temporaryFolder(), timeoutMs: 5000, ...lifetimes });
    closeAfterTest(() => store.close());
    const { post } = await serve(pay, { store, timeoutMs: 1000, limits: { queueTimeoutMs: 100 } });
    expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    await until(async () => outcomeOf(await post('k-1'))[1] === 2);
  });

  it('keeps the responses of many keys apart', async () => {
    const { post, runs } = await serve((req, res) => res.json({ run: req.body.amount }));
    const payOf = (i: number) => post(`k-${i}`, { body: `{"amount":${i}}` });
    const all = Array.from({ length: 50 }, (_, i) => i);
    for (let round = 0; round < 2; round++)
      expect((await Promise.all(all.map(payOf))).map(outcomeOf)).toEqual(all.map((i) => [200, i]));
    expect(runs()).toBe(50);
  });

  it('stores no header field and no body of a request', async () => {
    const folder = temporaryFolder();
    const store = await sqliteStore({ path: folder, timeoutMs: 5000 });
    const { post, protect } = await serve((_req, res) => res.json({ answer: 'stored-answer' }), { store });
    await post('k-1', {
      headers: { authorization: 'Bearer hidden-1', cookie: 'a=hidden-2', 'x-any': 'hidden-3' },
      body: '{"card":"hidden-4"}',
    });
    await protect.close(5000);
    await store.close();
    const bytes = Buffer.concat(readdirSync(folder).map((name) => readFileSync(join(folder, name))));
    expect(bytes.includes('stored-answer')).toBe(true);
    expect(bytes.toString('latin1')).not.toMatch(/hidden-/);
  });

  /** An application whose store fails on demand. */
  async function serveWithFaults(options: Parameters<typeof embed>[1] = {}) {
    const opened = (await sqliteStore({ path: temporaryFolder(), timeoutMs: 5000 })) as OpenedStore;
    closeAfterTest(() => opened.close());
    const faults = new FaultyStore(opened.store);
    const store = new OpenedStore(faults, opened.lifetimes);
    return { ...(await serve(pay, { store, ...options })), faults };
  }

  it('calls no handler while the store fails, and says so at once', async () => {
    const { post, runs, faults } = await serveWithFaults();
    faults.fail('start', 'before', 1);
    const refused = await post('k-1');
    expect(outcomeOf(refused)).toEqual([503, 'store_unavailable']);
    expect(refused.headers['retry-after']).toBeDefined();
    expect(runs()).toBe(0);
    const retry = await until(async () => {
      const answer = await post('k-1');
      return answer.status === 503 ? undefined : answer;
    });
    expect(outcomeOf(retry)).toEqual([201, 1]);
  });

  it('keeps the key when the store fails after the handler', async () => {
    const { post, runs, faults } = await serveWithFaults({ completeRetryMs: 50, waitMs: 0 });
    faults.fail('complete', 'before');
    expect(outcomeOf(await post('k-1'))).toEqual([201, 1]);
    expect(outcomeOf(await post('k-1'))).toEqual([409, 'request_in_flight']);
    faults.heal();
    const retry = await until(async () => {
      const answer = await post('k-1');
      return answer.status === 409 ? undefined : answer;
    });
    expect(outcomeOf(retry)).toEqual([201, 1]);
    expect(retry.headers[REPLAYED]).toBe('true');
    expect(runs()).toBe(1);
  });

  it('is not made without a store', () => {
    const options = { merchant: () => 'M-ALPHA' } as unknown as Parameters<typeof idempotency>[0];
    expect(() => idempotency(options)).toThrow('store: must be the result of sqliteStore or redisStore');
  });
});
