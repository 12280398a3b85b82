import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, renameSync, writeFileSync } from 'node:fs';
import { Agent } from 'node:http';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { runInNewContext } from 'node:vm';
import { gunzipSync } from 'node:zlib';
import express5, {
  type ErrorRequestHandler,
  type Request,
  type RequestHandler,
  type Response,
} from 'express';
import { describe, expect, it, onTestFinished } from 'vitest';
import { type Idempotency, sqliteStore } from '../../../src/index.ts';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import type { OpenedStore } from '../../../src/middleware/stores.ts';
import { EVENTS } from '../../../src/telemetry/events.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { keptLog } from '../../support/log-lines.ts';
import { rawConnection } from '../../support/raw.ts';
import { connectionsOf } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
import { compression, embed, expressVersions } from './embedded.ts';

type Handler = (
  req: Request & { idempotency?: Idempotency },
  res: Response,
  next: (error?: unknown) => void,
) => unknown;

/** What parsers and validators put into `req.body`. */
const PARSED: Record<string, unknown> = {
  plain: { list: [1, 'a', null, true, { b: undefined }] },
  'plain without a prototype': Object.create(null),
  search: new URLSearchParams('amount=1'),
  form: { inner: new FormData() },
  map: [new Map([['amount', 1]])],
  date: { at: new Date(0) },
  number: { amount: Number.NaN },
  gap: [undefined],
  function: { toJSON: () => 1 },
  bytes: { file: new Uint8Array(1) },
};

/** An application with one handler, and how often it ran. */
async function withHandler(handler: Handler, options: Parameters<typeof embed>[1] = {}) {
  const { express = express5 } = options;
  const runs: string[] = [];
  const app = await embed(
    (to, protect) =>
      to.post('/payouts', protect, express.json(), (req, res, next) => {
        runs.push((req as { idempotency?: Idempotency }).idempotency?.key ?? 'none');
        return handler(req, res, next);
      }),
    options,
  );
  return { ...app, runs };
}

/** Leaves while the request waits, and resolves when the server has noticed. */
async function leaving({ post, server }: Awaited<ReturnType<typeof embed>>, hasArrived: () => boolean) {
  const leave = new AbortController();
  const gone = post('k-1', { signal: leave.signal }).catch(() => 'gone');
  await until(hasArrived);
  leave.abort();
  expect(await gone).toBe('gone');
  await until(async () => (await connectionsOf(server)) === 0);
}

describe.each(expressVersions)('idempotency() with the parsers, errors and responses of %s', (_, express) => {
  const WAYS: Record<string, [handler: Handler, body: string]> = {
    'res.json': [(_req, res) => res.status(201).json({ id: 7 }), '{"id":7}'],
    'res.send': [(_req, res) => res.status(201).send('paid'), 'paid'],
    bytes: [(_req, res) => res.status(201).send(Buffer.from('paid')), 'paid'],
    'an empty text': [(_req, res) => res.status(201).send(''), ''],
    nothing: [(_req, res) => res.status(201).end(), ''],
    'res.end': [(_req, res) => res.writeHead(201, { 'content-type': 'text/plain' }).end('paid'), 'paid'],
    'several writes': [
      (_req, res) => {
        res.statusCode = 201;
        res.write('pa');
        res.write(Buffer.from('i'));
        res.end('d');
      },
      'paid',
    ],
    'a header array and a reason phrase': [
      (_req, res) => res.writeHead(201, 'Made', ['x-a', '1', 'x-a', '2']).end('paid'),
      'paid',
    ],
    'a pipeline': [(_req, res) => pipeline(Readable.from(['pa', 'id']), res.status(201)), 'paid'],
    'a pipe': [(_req, res) => Readable.from(['pa', 'id']).pipe(res.status(201)), 'paid'],
    'a status after the head': [
      (_req, res) => {
        res.status(201).write('paid');
        res.status(429).end();
      },
      'paid',
    ],
    'early hints': [
      async (_req, res) => {
        await new Promise<void>((done) => res.writeEarlyHints({ link: '</a>; rel=preload' }, done));
        await new Promise<void>((done) => res.writeProcessing(done));
        res.status(201).end('paid');
      },
      'paid',
    ],
    // As under Jest, where modules have their own globals.
    'bytes of another realm': [
      (_req, res) => res.status(201).end(runInNewContext('new Uint8Array([111, 107])')),
      'ok',
    ],
    'a later turn': [(_req, res) => setImmediate(() => res.status(201).json({ id: 7 })), '{"id":7}'],
  };

  it('replays what a handler writes, however it writes it', async () => {
    const { post, runs } = await withHandler(
      (req, res, next) => {
        res.setHeader('X-Ledger', ['a', 'b']);
        res.cookie('session', 's-1');
        return WAYS[req.idempotency?.key ?? '']?.[0](req, res, next);
      },
      { express },
    );
    for (const [way, [, body]] of Object.entries(WAYS)) {
      const [first, again] = [await post(way), await post(way)];
      expect([way, first.status, first.body.toString()]).toEqual([way, 201, body]);
      expect([way, again.status, again.body.toString()]).toEqual([way, 201, body]);
      expect(again.headers).toMatchObject({
        'x-ledger': 'a, b',
        'idempotent-replayed': 'true',
        date: first.headers.date,
        'idempotent-original-request-id': first.headers['x-request-id'],
      });
      expect(first.headers['set-cookie']).toEqual(['session=s-1; Path=/']);
      expect(again.headers['set-cookie']).toBeUndefined();
      for (const name of ['x-a', 'content-type', 'content-length', 'etag'])
        expect(again.headers[name]).toBe(first.headers[name]);
    }
    expect(runs).toEqual(Object.keys(WAYS));
  });

  it('compares the whole target, of which a mounted handler sees the rest only', async () => {
    const { post } = await embed(
      (app, protect) => {
        for (const path of ['/eur', '/usd']) app.use(path, protect, (_req, res) => res.json({ paid: path }));
      },
      { express },
    );
    expect((await post('k-1', { path: '/eur/pay?a=1' })).json()).toEqual({ paid: '/eur' });
    const others = [{ path: '/usd/pay?a=1' }, { path: '/eur/pay?a=2' }, { path: '/eur/pay' }];
    for (const other of [...others, { path: '/eur/pay?a=1', method: 'PUT' }])
      expect(codeOf(await post('k-1', other))).toBe('idempotency_key_reused');
  });

  /** Handlers that fail, and what the merchant gets. The outcome is unknown if it is 502, and stored otherwise. */
  const FAILURES: Record<string, [handler: Handler, status: number]> = {
    'it throws': [
      () => {
        throw new Error('broken');
      },
      500,
    ],
    'it passes an error on': [(_req, _res, next) => next(new Error('broken')), 500],
    'it destroys its response': [(_req, res) => res.destroy(), 502],
    'in the middle of it': [
      (_req, res, next) => {
        res.write('pa');
        next(new Error('broken'));
      },
      502,
    ],
    'it passes on an answer that was cut': [
      (_req, res) => res.writeHead(201, { 'Content-Length': 30 }).end('{"paid":'),
      502,
    ],
    'it ends with what is no chunk': [(_req, res) => res.status(201).end(['paid']), 500],
    'it writes more than its Content-Length': [
      (_req, res) => res.status(201).set('Content-Length', '4').end('payé'),
      502,
    ],
    'after its end': [
      (_req, res, next) => {
        res.status(201).end('paid');
        next(new Error('broken'));
      },
      201,
    ],
  };

  it('stores the answer of a handler that fails, or leaves the key in doubt if that is not whole', async () => {
    const { post, runs } = await withHandler(
      (req, res, next) => FAILURES[req.idempotency?.key ?? '']?.[0](req, res, next),
      { express },
    );
    for (const [how, [, status]] of Object.entries(FAILURES)) {
      const [first, again] = [await post(how), await post(how)];
      expect([how, first.status]).toEqual([how, status]);
      if (status === 502)
        expect([codeOf(first), codeOf(again)]).toEqual(['outcome_unknown', 'outcome_unknown']);
      else
        expect([again.status, again.headers['idempotent-replayed'], again.body]).toEqual([
          ...[status, 'true', first.body],
        ]);
    }
    expect(runs).toEqual(Object.keys(FAILURES));
  });

  it('reads the body after the merchant has disconnected', async () => {
    const left = Promise.withResolvers<void>();
    const bodies: unknown[] = [];
    let arrived = 0;
    const app = await embed(
      (to, protect) =>
        to.post(
          '/payouts',
          protect,
          async (_req, _res, next) => {
            arrived++;
            await left.promise;
            next();
          },
          express.json(),
          (req, res) => {
            bodies.push(req.body);
            res.json({ paid: true });
          },
        ),
      { express },
    );
    await leaving(app, () => arrived === 1);
    left.resolve();
    expect((await app.post('k-1')).json()).toEqual({ paid: true });
    expect(bodies).toEqual([{ amount: 10 }]);
  });

  it('keeps the header fields of other middleware, and works behind and before compression', async () => {
    const long = 'paid '.repeat(1000);
    const shaped = compression({ threshold: 0 });
    const { post } = await embed(
      (app, protect) => {
        app.use((_req, res, next) => {
          res.setHeader('access-control-allow-origin', '*');
          next();
        });
        app.post('/outside', shaped, protect, (_req, res) => res.type('text').send(long));
        app.post('/inside', protect, shaped, (_req, res) => res.type('text').send(long));
      },
      { express },
    );
    for (const path of ['/outside', '/inside']) {
      const request = { path, headers: { 'accept-encoding': 'gzip' } };
      const [first, again] = [await post(`k${path}`, request), await post(`k${path}`, request)];
      const both = { 'content-encoding': 'gzip', 'access-control-allow-origin': '*' };
      expect(first.headers).toMatchObject(both);
      expect(again.headers).toMatchObject({ ...both, 'idempotent-replayed': 'true' });
      expect(again.body).toEqual(first.body);
      expect(first.body.length).toBeLessThan(500);
    }
  });

  it('compares bodies, whether they were parsed before or not, and finds parsers that keep nothing', async () => {
    const errors: string[] = [];
    const { post } = await embed(
      (app, protect) => {
        app.post('/json', express.json(), protect, (req, res) => res.json(req.body));
        app.post('/raw', express.raw({ type: '*/*' }), protect, (req, res) => res.send(req.body));
        app.post('/text', protect, express.text({ type: '*/*' }), (req, res) => res.send(req.body));
        app.post(
          '/eaten',
          (req, _res, next) => req.resume().once('end', () => next()),
          protect,
          (_req, res) => res.send('never'),
        );
        const parsedAs: RequestHandler = (req, _res, next) => {
          req.body = PARSED[String(req.query.as)];
          next();
        };
        app.post('/parsed', express.text({ type: '*/*' }), parsedAs, protect, (_req, res) =>
          res.send('paid'),
        );
        const onError: ErrorRequestHandler = (error, _req, res, _next) => {
          errors.push((error as Error).message);
          res.status(500).end();
        };
        app.use(onError);
      },
      { express },
    );
    for (const path of ['/json', '/raw', '/text']) {
      const pay = (body: string) => post(`k${path}`, { path, body });
      expect((await pay('{"a":1}')).body.toString()).toBe('{"a":1}');
      expect((await pay('{"a":1}')).headers['idempotent-replayed']).toBe('true');
      expect(codeOf(await pay('{"a":2}'))).toBe('idempotency_key_reused');
    }
    expect((await post('k-1', { path: '/eaten' })).status).toBe(500);
    expect(errors.splice(0)).toEqual([expect.stringContaining('another middleware has read the body')]);
    for (const as of Object.keys(PARSED)) {
      const { status } = await post(`k-${as}`, { path: `/parsed?as=${as}` });
      if (as.startsWith('plain')) expect([as, status]).toEqual([as, 200]);
      else
        expect([as, status, errors.splice(0)]).toEqual([as, 500, [expect.stringContaining('JSON values')]]);
    }
  });
});

describe('idempotency()', () => {
  it('holds the response back until it is stored, and then calls the callbacks of the handler', async () => {
    const seen: string[] = [];
    const { post } = await withHandler((_req, res) => {
      res.on('finish', () => seen.push('finish'));
      res.on('close', () => seen.push('close'));
      res.end('paid', () => seen.push('ended'));
      seen.push(`headersSent ${res.headersSent}, writableEnded ${res.writableEnded}`);
    });
    await post('k-1');
    await until(() => seen.length === 4);
    expect(seen).toEqual(['headersSent true, writableEnded true', 'finish', 'ended', 'close']);
  });

  it('stores every status but those that free a key or say nothing, and protects no safe method', async () => {
    const { url, post } = await embed((app, protect) =>
      app.use(protect, (req, res) => res.status(Number(req.headers['x-status'])).end()),
    );
    const retryOf = async (status: number) => {
      const headers = { 'x-status': `${status}` };
      await post(`k-${status}`, { headers });
      const retry = await post(`k-${status}`, { headers });
      return [retry.status, retry.headers['idempotent-replayed']];
    };
    for (const status of [200, 299, 300, 400, 403, 404, 422, 500])
      expect(await retryOf(status)).toEqual([status, 'true']);
    for (const status of [401, 429]) expect(await retryOf(status)).toEqual([status, undefined]);
    for (const status of [502, 503, 504]) expect(await retryOf(status)).toEqual([409, undefined]);
    const headers = { 'idempotency-key': 'k-200', 'x-status': '200' };
    expect((await send(url, { headers })).headers).not.toHaveProperty('idempotent-replayed');
  });

  it('answers 401 to a key whose merchant the application does not know, and asks for none without a key', async () => {
    const merchant = (req: Request & { user?: { tenant: string } }) => req.user?.tenant;
    const { url, post } = await embed(
      (to, protect) => {
        to.use((req, res, next) => {
          if (req.headers.cookie) Object.assign(req, { user: { tenant: 'a' } });
          if (req.headers['x-scheme']) res.setHeader('WWW-Authenticate', req.headers['x-scheme']);
          next();
        });
        to.post('/payouts', protect, (req, res) =>
          res.json({ merchant: req.idempotency?.merchant ?? 'none' }),
        );
      },
      { merchant },
    );
    const refused = await post('k-1');
    expect([refused.status, codeOf(refused)]).toEqual([401, 'missing_credentials']);
    expect(refused.headers['www-authenticate']).toBe('Bearer');
    // The application may log its users in otherwise.
    expect(refused.json()).toMatchObject({
      title: 'Credentials are required',
      detail: 'The application has authenticated no merchant. Nothing was executed.',
    });
    const challenged = await post('k-1', { headers: { 'x-scheme': 'Negotiate' } });
    expect([challenged.status, challenged.headers['www-authenticate']]).toEqual([401, 'Negotiate']);
    expect((await post('k-1', { headers: { cookie: 'session=1' } })).json()).toEqual({ merchant: 'a' });
    expect((await send(url, { method: 'POST', path: '/payouts' })).json()).toEqual({ merchant: 'none' });
  });

  it('calls no handler when a function of the application throws a value that Express takes for no error', async () => {
    for (const option of ['merchant', 'body'])
      for (const thrown of [undefined, null, '', 0, 'route', 'router']) {
        const runs: unknown[] = [];
        const throwing = () => {
          throw thrown;
        };
        const { post } = await embed(
          (app, protect) => {
            app.use(protect);
            app.post('/payouts', (_req, res) => {
              runs.push(thrown);
              res.status(201).end();
            });
          },
          { [option]: throwing },
        );
        expect([option, thrown, (await post('k')).status, runs]).toEqual([option, thrown, 500, []]);
      }
  });

  it('takes the key as the middleware in front has changed it in req.headers', async () => {
    const runs: string[] = [];
    const { url } = await embed(
      (to, protect) => {
        to.use((req, _res, next) => {
          const { 'x-event-id': id, 'x-no-key': without } = req.headers;
          if (id !== undefined) req.headers['idempotency-key'] = id as string;
          if (without !== undefined) delete req.headers['idempotency-key'];
          next();
        });
        to.post('/payouts', protect, (req, res) => {
          const { merchant, key } = (req as { idempotency?: Idempotency }).idempotency ?? {};
          runs.push(`${merchant} ${key}`);
          res.json({ run: runs.length });
        });
      },
      { merchant: (req) => String(req.headers['x-tenant']) },
    );
    const post = (headers: Record<string, string | string[]>) =>
      send(url, { method: 'POST', path: '/payouts', headers, body: '' });
    const rows: [headers: Record<string, string>, run: number][] = [
      [{ 'x-tenant': 'a', 'x-event-id': 'e-1' }, 1],
      [{ 'x-tenant': 'a', 'x-event-id': 'e-1' }, 1],
      [{ 'x-tenant': 'a', 'x-event-id': 'e-2', 'idempotency-key': 'k-1' }, 2],
      [{ 'x-tenant': 'a', 'idempotency-key': 'k-1', 'x-no-key': '1' }, 3],
      [{ 'x-tenant': 'b', 'idempotency-key': 'k-1', 'x-no-key': '1' }, 4],
    ];
    for (const [headers, run] of rows) expect((await post(headers)).json()).toEqual({ run });
    expect(runs).toEqual(['a e-1', 'a e-2', 'undefined undefined', 'undefined undefined']);
    const twice = await post({ 'x-tenant': 'a', 'idempotency-key': ['k-1', 'k-1'] });
    expect(codeOf(twice)).toBe('idempotency_key_invalid');
  });

  it('has options for the header, for requests without a key, and for the statuses that free a key', async () => {
    const { url, runs } = await withHandler((_req, res) => res.status(runs.length === 1 ? 422 : 201).end(), {
      ...{ headers: ['x-request-key'], key: 'required', release: [422] },
    });
    const post = (headers: Record<string, string>) =>
      send(url, { method: 'POST', path: '/payouts', headers });
    for (const headers of [{}, { 'idempotency-key': 'k-1' }])
      expect(codeOf(await post(headers))).toBe('idempotency_key_required');
    const statuses: number[] = [];
    for (let i = 0; i < 3; i++) statuses.push((await post({ 'X-Request-Key': 'k-1' })).status);
    expect([statuses, runs.length]).toEqual([[422, 201, 201], 2]);
  });

  it('does not free the key for an answer of another gateway that it passes on: it may have acted before it asked', async () => {
    const { post, runs } = await withHandler((req, res) => {
      const code = req.idempotency?.key;
      const type = `urn:oncegate:problem:${code}`;
      const status = code === 'outcome_unknown' ? 409 : 503;
      res.status(status).type('application/problem+json').send(JSON.stringify({ type }));
    });
    for (const [key, status] of Object.entries({ store_unavailable: 503, outcome_unknown: 409 })) {
      expect((await post(key)).status).toBe(status);
      expect(codeOf(await post(key))).toBe('outcome_unknown');
    }
    expect(runs).toHaveLength(2);
  });

  it('frees the key with release(), and leaves it in doubt with unknown(), whatever is said after that', async () => {
    const tooLate: string[] = [];
    const { post, runs } = await withHandler((req, res) => {
      const { key = '' } = req.idempotency ?? {};
      if (key === 'k-free' && runs.length === 1) req.idempotency?.release();
      if (key !== 'k-free') req.idempotency?.unknown();
      if (key === 'k-both') req.idempotency?.release();
      res.status(409).json({ run: runs.length });
      try {
        req.idempotency?.release();
      } catch (error) {
        tooLate.push((error as Error).message);
      }
    });
    expect((await post('k-free')).json()).toEqual({ run: 1 });
    expect((await post('k-free')).json()).toEqual({ run: 2 });
    expect((await post('k-free')).headers['idempotent-replayed']).toBe('true');
    for (const [key, run] of Object.entries({ 'k-doubt': 3, 'k-both': 4 })) {
      expect((await post(key)).json()).toEqual({ run });
      const retry = await post(key);
      expect([retry.status, codeOf(retry)]).toEqual([409, 'outcome_unknown']);
    }
    expect(runs).toHaveLength(4);
    expect(tooLate).toEqual(Array(4).fill(expect.stringContaining('the response has ended')));
  });

  it('goes on when the merchant disconnects: before the handler, in it, and while it streams a file', async () => {
    const file = join(temporaryFolder(), 'receipt');
    writeFileSync(file, 'x'.repeat(300_000));
    const left = Promise.withResolvers<void>();
    const seen: string[] = [];
    const app = await withHandler(async (req, res) => {
      req.on('aborted', () => seen.push('aborted'));
      res.on('close', () => seen.push(`close after ${app.runs.length}`));
      await left.promise;
      const { destroyed, closed } = res;
      seen.push(`body ${JSON.stringify(req.body)}, destroyed ${req.destroyed} ${destroyed} ${closed}`);
      await pipeline(createReadStream(file), res);
    });
    await leaving(app, () => app.runs.length === 1);
    left.resolve();
    const { status, body, headers } = await app.post('k-1');
    expect([status, body.length, headers['idempotent-replayed']]).toEqual([200, 300_000, 'true']);
    expect(app.runs).toHaveLength(1);
    // Node destroys every request that was read to its end.
    expect(seen).toEqual(['body {"amount":10}, destroyed true false false', 'close after 1']);
  });

  /** A handler that ends when the test says so, behind a store that the test can ask. */
  async function withSlowHandler(options: object) {
    const path = temporaryFolder();
    const store = await sqliteStore({ path, leaseMs: 300 });
    const late = Promise.withResolvers<void>();
    const seen: unknown[] = [];
    const app = await withHandler(
      async (req, res) => {
        for (const name of ['finish', 'close']) res.on(name, () => seen.push(name));
        await late.promise;
        seen.push(req.idempotency?.maySend(), req.body, res.headersSent, res.getHeaderNames());
        res.setHeader('x-late', '1');
        await pipeline(Readable.from(['{"id":', '7}']), res.status(201).type('json'));
        seen.push('sent');
      },
      { timeoutMs: 100, waitMs: 0, store, ...options },
    );
    onTestFinished(() => store.close());
    const { store: records } = store as OpenedStore;
    const recordId = recordIdOf('middleware', 'M-ALPHA', 'k-1');
    const expiresInMs = () => records.expiresInMs(recordId);
    return { ...app, late, seen, expiresInMs, stateNow: async () => (await records.get(recordId))?.state };
  }

  it('answers 504 when the handler takes long, and stores its response when it ends', async () => {
    const { post, protect, runs, late, seen, stateNow, expiresInMs } = await withSlowHandler({});
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    const first = await post('k-1', { agent });
    expect([first.status, codeOf(first)]).toEqual([504, 'outcome_unknown']);
    expect(first.headers['x-late']).toBeUndefined();
    const counted = /^oncegate_requests_total\{.*outcome="outcome_unknown".*\} 1$/m;
    await until(async () => counted.test(await protect.metrics.text()));
    // Several leases later it still is its owner's, and the connection serves other requests.
    const pausedMs = performance.now();
    await until(async () => {
      expect(codeOf(await post('k-1', { agent }))).toBe('request_in_flight');
      return performance.now() - pausedMs > 1000;
    });
    late.resolve();
    await until(async () => (await stateNow()) === 'completed');
    // For 30 days, because the merchant was told that the outcome is unknown.
    expect(await expiresInMs()).toBeGreaterThan(29 * 86_400_000);
    await until(() => seen.length === 7);
    expect(seen.slice(0, 4)).toEqual([false, { amount: 10 }, false, ['x-powered-by']]);
    expect(seen.slice(4).toSorted()).toEqual(['close', 'finish', 'sent']);
    const retry = await post('k-1', { agent });
    expect([retry.status, retry.json(), retry.headers['x-late']]).toEqual([201, { id: 7 }, '1']);
    expect([retry.headers['content-type'], runs.length]).toEqual(['application/json; charset=utf-8', 1]);
    const shown = await protect.metrics.text();
    expect(shown).toMatch(counted);
    expect(shown).toMatch(/^oncegate_upstream_responses_total\{.*class="unknown"\} 1$/m);
    agent.destroy();
  });

  it('stores the whole response when compression behind it still holds a part at the time limit', async () => {
    const late = Promise.withResolvers<void>();
    const { post } = await embed(
      (app, protect) =>
        app.post('/payouts', protect, compression({ threshold: 0 }), async (_req, res) => {
          res.type('text').write('paid ');
          await late.promise;
          res.end('10');
        }),
      { timeoutMs: 100 },
    );
    const request = { headers: { 'accept-encoding': 'gzip' } };
    expect((await post('k-1', request)).status).toBe(504);
    late.resolve();
    expect(gunzipSync((await post('k-1', request)).body).toString()).toBe('paid 10');
  });

  it('stores the response of a late handler behind a middleware that makes the head itself, as express-session does', async () => {
    const late = Promise.withResolvers<void>();
    const makesHead: RequestHandler = (_req, res, next) => {
      const { end } = res;
      res.end = ((...args: Parameters<typeof end>) => {
        (res as unknown as { _implicitHeader(): void })._implicitHeader();
        return end.apply(res, args);
      }) as typeof res.end;
      next();
    };
    const { post } = await embed(
      (app, protect) =>
        app.post('/payouts', protect, makesHead, async (_req, res) => {
          await late.promise;
          res.status(201).send('paid');
        }),
      { timeoutMs: 100 },
    );
    expect((await post('k-1')).status).toBe(504);
    late.resolve();
    const retry = await post('k-1');
    expect([retry.status, retry.body.toString()]).toEqual([201, 'paid']);
  });

  it('lets a handler iterate over its body, also after the merchant has disconnected', async () => {
    const left = Promise.withResolvers<void>();
    let arrived = 0;
    const app = await embed((to, protect) =>
      to.post('/payouts', protect, async (req, res) => {
        arrived++;
        if (arrived === 1) await left.promise;
        res.end(await text(req));
      }),
    );
    await leaving(app, () => arrived === 1);
    left.resolve();
    expect((await app.post('k-1')).json()).toEqual({ amount: 10 });
    expect((await app.post('k-2')).json()).toEqual({ amount: 10 });
    expect(arrived).toBe(2);
  });

  it('leaves a body that nobody has read to the handler when the time is over', async () => {
    const late = Promise.withResolvers<void>();
    const { post } = await embed(
      (app, protect) =>
        app.post('/payouts', protect, async (req, res) => {
          await late.promise;
          res.end(await text(req));
        }),
      { timeoutMs: 100, body: () => 'the same' },
    );
    expect((await post('k-1')).status).toBe(504);
    late.resolve();
    expect((await post('k-1')).json()).toEqual({ amount: 10 });
  });

  it('leaves the key in doubt when the handler never ends, and a late end heals it', async () => {
    const { post, runs, late, stateNow } = await withSlowHandler({ abandonAfterMs: 400 });
    expect((await post('k-1')).status).toBe(504);
    await until(async () => (await stateNow()) === 'in_doubt');
    expect(codeOf(await post('k-1'))).toBe('outcome_unknown');
    late.resolve();
    await until(async () => (await stateNow()) === 'completed');
    const retry = await post('k-1');
    expect([retry.status, retry.json(), runs.length]).toEqual([201, { id: 7 }, 1]);
  });

  it('asks again when a lookup does not answer in time', async () => {
    const executed = { kind: 'executed' as const, status: 201, body: '7' };
    let asked = 0;
    const ask = async () => (asked++ === 0 ? await new Promise<never>(() => {}) : executed);
    const handler: Handler = (req, res) => {
      req.idempotency?.unknown();
      res.send('perhaps');
    };
    const { post } = await withHandler(handler, {
      ...{ inDoubt: 'lookup', waitMs: 0, timeoutMs: 100 },
      lookup: { ask, firstAfterMs: 10, maxPauseMs: 20 },
    });
    await post('k-1');
    await until(async () => (await post('k-1')).status === 201);
  });

  it('looks up what another process has left in doubt', async () => {
    const common = { folder: temporaryFolder(), leaseMs: 150, timeoutMs: 100 };
    const { post } = await withHandler((req, res) => {
      req.idempotency?.unknown();
      res.send('perhaps');
    }, common);
    await post('k-1');
    const ask = async () => ({ kind: 'executed' as const, status: 201, body: '7' });
    await withHandler(() => {}, { ...common, inDoubt: 'lookup', lookup: { ask, firstAfterMs: 10 } });
    // This one does not look up.
    await until(async () => (await post('k-1')).status === 201);
  });

  it('does not call the handler when its lease may have lapsed, and frees the key', async () => {
    let runs = 0;
    const { post } = await embed(
      (app, protect) => {
        app.use((req, _res, next) => {
          // The process is paused between the start and the call of the handler.
          if (req.headers['x-pause'])
            setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300));
          next();
        });
        app.post('/payouts', protect, (_req, res) => res.json({ run: ++runs }));
      },
      { leaseMs: 150 },
    );
    const paused = await post('k-1', { headers: { 'x-pause': '1' }, body: '' });
    expect([paused.status, codeOf(paused)]).toEqual([503, 'overloaded']);
    expect(paused.headers['retry-after']).toBe('1');
    expect(runs).toBe(0);
    // A lease this short may lapse again on a loaded machine.
    const next = await until(async () => {
      const answer = await post('k-1', { body: '' });
      return answer.status === 503 ? undefined : answer;
    });
    expect(next.json()).toEqual({ run: 1 });
  });

  it('refuses to work behind a middleware that spoils the request or the response, and calls no handler', async () => {
    const misuses: [front: Handler, options: object, message: string][] = [
      [
        (req, _res, next) => void next(req.setEncoding('utf8') && undefined),
        {},
        'another middleware reads the body',
      ],
      [(req, _res, next) => void next(req.on('data', () => {}) && undefined), {}, 'another middleware'],
      [(_req, res, next) => void next(res.flushHeaders()), {}, 'has sent the head of the response'],
      [(_req, _res, next) => next(), { body: () => [{}] }, 'must return a string'],
    ];
    for (const [front, options, message] of misuses) {
      const errors: string[] = [];
      let runs = 0;
      const { post } = await embed((app, protect) => {
        app.post('/payouts', front as RequestHandler, protect, (_req, res) => res.json({ run: ++runs }));
        const onError: ErrorRequestHandler = (error, _req, res, _next) => {
          errors.push((error as Error).message);
          res.end();
        };
        app.use(onError);
      }, options);
      await post('k-1');
      expect([errors, runs]).toEqual([[expect.stringContaining(message)], 0]);
    }
  });

  it('protects a request to which a middleware in front has given a property idempotency', async () => {
    let runs = 0;
    const { post } = await embed((app, protect) => {
      app.use((req, _res, next) => void next(Object.assign(req, { idempotency: {} }) && undefined));
      // The second one lets pass what the first one protects.
      app.post('/payouts', protect, protect, (_req, res) => res.json({ run: ++runs }));
    });
    expect([(await post('k-1')).json(), (await post('k-1')).json()]).toEqual([{ run: 1 }, { run: 1 }]);
  });

  it('answers through a middleware in front that ends responses later, also when the time is over', async () => {
    const late = Promise.withResolvers<void>();
    const { post } = await embed(
      (app, protect) => {
        app.use((_req, res, next) => {
          const { end } = res;
          res.end = ((...args: Parameters<typeof end>) => {
            setTimeout(() => end.apply(res, args), 20);
            return res;
          }) as typeof res.end;
          next();
        });
        app.post('/quick', protect, (_req, res) => res.send('paid'));
        app.post('/slow', protect, (_req, res) => void late.promise.then(() => res.send('paid')));
      },
      { timeoutMs: 100 },
    );
    expect((await post('k-1', { path: '/quick' })).body.toString()).toBe('paid');
    expect(codeOf(await post('k-2', { path: '/slow' }))).toBe('outcome_unknown');
    late.resolve();
  });

  it('shows the 504 of the time limit to the log, and to a middleware in front that logs', async () => {
    const late = Promise.withResolvers<void>();
    const seen: unknown[] = [];
    const { logger, log } = keptLog({ level: 'info' });
    const { post } = await embed(
      (app, protect) => {
        app.use((_req, res, next) => {
          for (const name of ['finish', 'close'])
            res.on(name, () => seen.push(res.headersSent, res.statusCode));
          next();
        });
        app.post('/payouts', protect, (_req, res) => void late.promise.then(() => res.send('paid')));
      },
      { timeoutMs: 100, logger },
    );
    expect((await post('k-1')).status).toBe(504);
    await until(() => log.length === 1);
    expect(log[0]).toMatchObject({ status: 504, outcome: 'outcome_unknown' });
    expect(seen).toEqual([true, 504, true, 504]);
    late.resolve();
    expect((await post('k-1')).body.toString()).toBe('paid');
  });

  it('hides the answer at the time limit from the handler while a middleware in front, such as compression, still sends it', async () => {
    const told = Promise.withResolvers<void>();
    const seen: unknown[] = [];
    const { post } = await embed(
      (app, protect) => {
        app.use((_req, res, next) => {
          const { end } = res;
          res.end = ((...args: Parameters<typeof end>) => {
            if (res.statusCode === 504) told.resolve();
            res.writeHead(res.statusCode);
            setTimeout(() => end.apply(res, args), 200);
            return res;
          }) as typeof res.end;
          next();
        });
        app.post('/payouts', protect, async (_req, res) => {
          await told.promise;
          await new Promise(setImmediate);
          seen.push(res.headersSent, res.get('content-type'));
          res.status(201).append('x-a', '1').append('x-a', '2').json({ id: 7 });
        });
      },
      { timeoutMs: 100 },
    );
    expect(codeOf(await post('k-1'))).toBe('outcome_unknown');
    const retry = await post('k-1');
    expect(seen).toEqual([false, undefined]);
    expect([retry.status, retry.json(), retry.headers['x-a']]).toEqual([201, { id: 7 }, '1, 2']);
    expect(retry.headers['content-type']).toBe('application/json; charset=utf-8');
  });

  it('streams a response that is too large to store, with backpressure, and through compression behind it', async () => {
    const chunk = Buffer.alloc(64_000, 'x');
    const large = randomBytes(300_000).toString('hex');
    let [runs, drains] = [0, 0];
    const { post } = await embed(
      (app, protect) => {
        app.post('/payouts', protect, async (_req, res) => {
          runs++;
          for (let i = 0; i < 100; i++)
            if (!res.write(chunk)) {
              drains++;
              await once(res, 'drain');
            }
          res.end('.');
        });
        app.post('/compressed', protect, compression({ threshold: 0 }), (_req, res) => {
          res.type('text');
          Readable.from(large.match(/.{1,10000}/g) ?? []).pipe(res);
        });
      },
      { maxStoredBytes: 50_000 },
    );
    const first = await post('k-1');
    expect([first.status, first.body.length]).toEqual([200, 6_400_001]);
    expect(drains).toBeGreaterThan(0);
    const again = await post('k-1');
    expect([again.status, codeOf(again)]).toEqual([409, 'response_not_stored']);
    expect(runs).toBe(1);
    const request = { path: '/compressed', headers: { 'accept-encoding': 'gzip' } };
    expect(gunzipSync((await post('k-2', request)).body).toString()).toBe(large);
  });

  it('lets a handler write all of such a response when the merchant has left, or has waited too long', async () => {
    for (const options of [{}, { timeoutMs: 100 }]) {
      const begin = Promise.withResolvers<void>();
      const written = Promise.withResolvers<void>();
      const app = await withHandler(
        async (_req, res) => {
          await begin.promise;
          await new Promise((resolve) => res.write('x'.repeat(3000), resolve));
          await pipeline(Readable.from(Array(20).fill('x'.repeat(1000))), res);
          written.resolve();
        },
        { maxStoredBytes: 2048, ...options },
      );
      if (options.timeoutMs) expect((await app.post('k-1')).status).toBe(504);
      else await leaving(app, () => app.runs.length === 1);
      begin.resolve();
      await written.promise;
      expect(codeOf(await app.post('k-1'))).toBe('response_not_stored');
    }
  });

  it('lets a handler fail after it has closed its response, when the merchant has left', async () => {
    const [close, fail] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const failed = Promise.withResolvers<boolean>();
    const app = await withHandler(async (_req, res) => {
      await close.promise;
      res.write('half');
      res.destroy();
      await fail.promise;
      failed.resolve(res.headersSent);
      throw new Error('late');
    });
    await leaving(app, () => app.runs.length === 1);
    close.resolve();
    expect(codeOf(await app.post('k-1'))).toBe('outcome_unknown');
    fail.resolve();
    // Otherwise Express writes another head, which throws outside of every handler, and ends the process.
    expect(await failed.promise).toBe(true);
  });

  it('reads chunked bodies to their end, and refuses one that is too large, with or without a length', async () => {
    let runs = 0;
    const { server, post } = await embed(
      (app, protect) =>
        app.post('/payouts', protect, (req, res) => {
          runs++;
          req.resume().once('end', () => res.send('paid'));
        }),
      { limits: { bodyBytes: 1000 } },
    );
    const chunked = async (key: string, body: string) => {
      const socket = await rawConnection((server.address() as { port: number }).port);
      const head = `POST /payouts HTTP/1.1\r\nHost: h\r\nIdempotency-Key: ${key}\r\nTransfer-Encoding: chunked`;
      socket.write(`${head}\r\n\r\n${body}`);
      const [first] = (await once(socket, 'data')) as [Buffer];
      socket.destroy();
      return first.toString().slice(0, 13);
    };
    expect(await chunked('k-0', '0\r\n\r\n')).toBe('HTTP/1.1 200 ');
    expect(codeOf(await post('k-1', { body: 'x'.repeat(1001) }))).toBe('body_too_large');
    expect(await chunked('k-2', `7d0\r\n${'x'.repeat(2000)}\r\n`)).toBe('HTTP/1.1 413 ');
    expect(runs).toBe(1);
  });

  it('tells the application’s logger once that the store refuses writes, and once that it takes them again', async () => {
    const folder = temporaryFolder();
    const { log, logger } = keptLog();
    const { post } = await embed(
      (app, protect) => app.post('/payouts', protect, (_req, res) => void res.send('paid')),
      { folder, logger },
    );
    const [file, elsewhere] = ['records.db', 'elsewhere'].map((name) => join(folder, name)) as [
      string,
      string,
    ];
    const said = ({ message }: { message: string }) => log.filter(({ msg }) => msg === message);
    expect((await post('k-1')).status).toBe(200);
    renameSync(file, elsewhere);
    const answers = await Promise.all(Array.from({ length: 20 }, (_, n) => post(`away-${n}`)));
    expect(new Set(answers.map(codeOf))).toEqual(new Set(['store_unavailable']));
    await until(() => said(EVENTS.store_refuses).length > 0);
    renameSync(elsewhere, file);
    await until(() => said(EVENTS.store_works).length > 0);
    expect([said(EVENTS.store_refuses), said(EVENTS.store_works)]).toMatchObject([
      [{ reason: expect.stringContaining('was removed or replaced') }],
      [{ lastedMs: expect.any(Number) }],
    ]);
    expect((await post('away-0')).status).toBe(200);
  });
});
