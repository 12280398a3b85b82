import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { gunzipSync } from 'node:zlib';
import type { ErrorRequestHandler, Request, RequestHandler, Response } from 'express';
import { describe, expect, it } from 'vitest';
import type { Idempotency } from '../../../src/index.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { compression, embed, expressVersions } from '../../support/embedded.ts';
import { rawConnection } from '../../support/raw.ts';
import { connectionsOf } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

type Handler = (
  req: Request & { idempotency?: Idempotency },
  res: Response,
  next: (error?: unknown) => void,
) => unknown;

const problemCode = (answer: { json<T>(): T }) => answer.json<{ error?: { code: string } }>().error?.code;

describe.each(expressVersions)('idempotency() on %s', (_, express) => {
  /** An application with one handler, and how often it ran. */
  async function withHandler(handler: Handler, options: Parameters<typeof embed>[1] = {}) {
    const runs: string[] = [];
    const app = await embed(
      (to, protect) =>
        to.post('/payouts', protect, express.json(), (req, res, next) => {
          runs.push((req as { idempotency?: Idempotency }).idempotency?.key ?? 'none');
          return handler(req, res, next);
        }),
      { express, ...options },
    );
    return { ...app, runs };
  }

  const WAYS: [way: string, handler: Handler, body: string][] = [
    ['res.json', (_req, res) => res.status(201).json({ id: 7 }), '{"id":7}'],
    ['res.send', (_req, res) => res.status(201).send('paid'), 'paid'],
    ['res.end', (_req, res) => res.writeHead(201, { 'content-type': 'text/plain' }).end('paid'), 'paid'],
    [
      'several writes',
      (_req, res) => {
        res.statusCode = 201;
        res.write('pa');
        res.write(Buffer.from('i'));
        res.end('d');
      },
      'paid',
    ],
    [
      'a header array and a reason phrase',
      (_req, res) => res.writeHead(201, 'Made', ['x-a', '1', 'x-a', '2']).end('paid'),
      'paid',
    ],
    ['a pipeline', (_req, res) => pipeline(Readable.from(['pa', 'id']), res.status(201)), 'paid'],
    ['a pipe', (_req, res) => Readable.from(['pa', 'id']).pipe(res.status(201)), 'paid'],
    ['a later turn', (_req, res) => setImmediate(() => res.status(201).json({ id: 7 })), '{"id":7}'],
  ];

  it.for(WAYS)('replays what a handler writes by %s', async ([, handler, body]) => {
    const { post, runs } = await withHandler((req, res, next) => {
      res.setHeader('X-Ledger', ['a', 'b']);
      res.cookie('session', 's-1');
      return handler(req, res, next);
    });
    const [first, again] = [await post('k-1'), await post('k-1')];
    expect([first.status, first.body.toString()]).toEqual([201, body]);
    expect([again.status, again.body.toString()]).toEqual([201, body]);
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
    expect(runs).toEqual(['k-1']);
  });

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

  it('gives fifty simultaneous requests the one result', async () => {
    const { post, runs } = await withHandler(async (_req, res) => {
      await sleep(50);
      res.status(201).json({ id: Math.random() });
    });
    const answers = await Promise.all(Array.from({ length: 50 }, () => post('k-1')));
    expect(new Set(answers.map(({ status, body }) => `${status} ${body}`)).size).toBe(1);
    expect(runs).toHaveLength(1);
  });

  it('refuses another request with the key, and keeps merchants apart', async () => {
    const { post, runs } = await withHandler((_req, res) => res.json({ ok: true }), {
      merchant: (req) => String(req.headers['x-tenant']),
    });
    const as = (tenant: string, body?: string) =>
      post('k-1', { headers: { 'x-tenant': tenant }, ...(body && { body }) });
    expect((await as('a')).status).toBe(200);
    expect((await as('b')).headers['idempotent-replayed']).toBeUndefined();
    const other = await as('a', '{"amount":11}');
    expect([other.status, problemCode(other)]).toEqual([422, 'idempotency_key_reused']);
    expect(runs).toHaveLength(2);
  });

  it('lets requests without a key and safe methods pass', async () => {
    const runs: (string | undefined)[] = [];
    const { url, post } = await embed(
      (app, protect) =>
        app.use(protect).all('/payouts', (req, res) => {
          runs.push(`${req.method} ${(req as { idempotency?: Idempotency }).idempotency?.key}`);
          res.json({});
        }),
      { express },
    );
    await send(url, { method: 'POST', path: '/payouts' });
    await send(url, { path: '/payouts', headers: { 'idempotency-key': 'k-1' } });
    await post('k-1');
    expect(runs).toEqual(['POST undefined', 'GET undefined', 'POST k-1']);
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
      { express, merchant: (req) => String(req.headers['x-tenant']) },
    );
    const post = async (headers: Record<string, string>) =>
      (await send(url, { method: 'POST', path: '/payouts', headers, body: '' })).json();
    for (let i = 0; i < 2; i++)
      expect(await post({ 'x-tenant': 'a', 'x-event-id': 'e-1' })).toEqual({ run: 1 });
    expect(await post({ 'x-tenant': 'a', 'x-event-id': 'e-2', 'idempotency-key': 'k-1' })).toEqual({
      run: 2,
    });
    for (const [tenant, run] of [
      ['a', 3],
      ['b', 4],
    ] as [string, number][])
      expect(await post({ 'x-tenant': tenant, 'idempotency-key': 'k-1', 'x-no-key': '1' })).toEqual({ run });
    expect(runs).toEqual(['a e-1', 'a e-2', 'undefined undefined', 'undefined undefined']);
  });

  it('refuses malformed and missing keys', async () => {
    const { url, post, runs } = await withHandler((_req, res) => res.json({}), { key: 'required' });
    expect(problemCode(await post('k'.repeat(256)))).toBe('idempotency_key_invalid');
    const twice = { 'idempotency-key': ['k-1', 'k-1'] };
    expect(problemCode(await post('k-1', { headers: twice }))).toBe('idempotency_key_invalid');
    expect(problemCode(await send(url, { method: 'POST', path: '/payouts' }))).toBe(
      'idempotency_key_required',
    );
    expect(runs).toEqual([]);
  });

  it.for([
    [
      'thrown',
      () => {
        throw new Error('broken');
      },
    ],
    [
      'passed on',
      (_req: unknown, _res: unknown, next: (error: unknown) => void) => next(new Error('broken')),
    ],
  ] as [string, Handler][])('stores the answer to an error that is %s', async ([, handler]) => {
    const { post, runs } = await withHandler(handler);
    const [first, again] = [await post('k-1'), await post('k-1')];
    expect([first.status, again.status]).toEqual([500, 500]);
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect(again.body).toEqual(first.body);
    expect(runs).toHaveLength(1);
  });

  it('frees the key with release(), and leaves it in doubt with unknown()', async () => {
    const tooLate: string[] = [];
    const { post, runs } = await withHandler((req, res) => {
      const { key = '' } = req.idempotency ?? {};
      if (key === 'k-free' && runs.length === 1) req.idempotency?.release();
      if (key === 'k-doubt') req.idempotency?.unknown();
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
    expect((await post('k-doubt')).json()).toEqual({ run: 3 });
    const retry = await post('k-doubt');
    expect([retry.status, problemCode(retry)]).toEqual([409, 'outcome_unknown']);
    expect(runs).toHaveLength(3);
    expect(tooLate).toEqual(Array(3).fill(expect.stringContaining('the response has ended')));
  });

  it('applies the statuses of `release` and `unknown`', async () => {
    const { post, runs } = await withHandler((_req, res) => res.status(429 + 75 * (runs.length - 1)).end());
    expect((await post('k-1')).status).toBe(429);
    expect((await post('k-1')).status).toBe(504);
    expect(problemCode(await post('k-1'))).toBe('outcome_unknown');
    expect(runs).toHaveLength(2);
  });

  it('goes on when the merchant disconnects: before the handler, in it, and while it streams a file', async () => {
    const file = join(temporaryFolder(), 'receipt');
    writeFileSync(file, 'x'.repeat(300_000));
    const left = Promise.withResolvers<void>();
    const seen: string[] = [];
    const { post, runs, server } = await withHandler(async (req, res) => {
      req.on('aborted', () => seen.push('aborted'));
      res.on('close', () => seen.push(`close after ${runs.length}`));
      await left.promise;
      seen.push(
        `body ${JSON.stringify(req.body)}, destroyed ${req.destroyed} ${res.destroyed} ${res.closed}`,
      );
      await pipeline(createReadStream(file), res);
    });
    const leave = new AbortController();
    const gone = post('k-1', { signal: leave.signal }).catch(() => 'gone');
    await until(() => runs.length === 1);
    leave.abort();
    expect(await gone).toBe('gone');
    await until(async () => (await connectionsOf(server)) === 0);
    left.resolve();
    const again = await post('k-1');
    expect([again.status, again.body.length, again.headers['idempotent-replayed']]).toEqual([
      200,
      300_000,
      'true',
    ]);
    expect(runs).toHaveLength(1);
    expect(seen).toEqual(['body {"amount":10}, destroyed false false false', 'close after 1']);
  });

  it('reads the body after the merchant has disconnected', async () => {
    const left = Promise.withResolvers<void>();
    const bodies: unknown[] = [];
    let arrived = 0;
    const { post, server } = await embed(
      (app, protect) =>
        app.post(
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
    const leave = new AbortController();
    const gone = post('k-1', { signal: leave.signal }).catch(() => 'gone');
    await until(() => arrived === 1);
    leave.abort();
    await gone;
    await until(async () => (await connectionsOf(server)) === 0);
    left.resolve();
    expect((await post('k-1')).json()).toEqual({ paid: true });
    expect(bodies).toEqual([{ amount: 10 }]);
  });

  it('leaves the key in doubt when the handler does not end in time, and ignores what it writes later', async () => {
    const late = Promise.withResolvers<void>();
    const errors: unknown[] = [];
    const { post, runs } = await withHandler(
      async (_req, res) => {
        await late.promise;
        try {
          res.setHeader('x-late', '1');
          res.status(201).json({ id: 7 });
        } catch (error) {
          errors.push(error);
        }
      },
      { timeoutMs: 100 },
    );
    const first = await post('k-1');
    expect([first.status, problemCode(first)]).toEqual([504, 'outcome_unknown']);
    expect(first.headers['x-late']).toBeUndefined();
    late.resolve();
    expect(problemCode(await post('k-1'))).toBe('outcome_unknown');
    expect(runs).toHaveLength(1);
    expect(errors).toEqual([]);
  });

  it.for([
    ['destroys its response', (_req, res) => res.destroy()],
    [
      'fails in the middle of its response',
      (_req, res, next) => {
        res.write('pa');
        next(new Error('broken'));
      },
    ],
  ] as [string, Handler][])('leaves the key in doubt when the handler %s', async ([, handler]) => {
    const { post, runs } = await withHandler(handler);
    const first = await post('k-1');
    expect(first.status).toBe(502);
    expect(problemCode(first)).toBe('outcome_unknown');
    expect(problemCode(await post('k-1'))).toBe('outcome_unknown');
    expect(runs).toHaveLength(1);
  });

  it('sends the response of a handler that fails after its end', async () => {
    const { post } = await withHandler((_req, res, next) => {
      res.status(201).json({ id: 7 });
      next(new Error('broken'));
    });
    const first = await post('k-1');
    expect([first.status, first.json()]).toEqual([201, { id: 7 }]);
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
      { express, leaseMs: 150 },
    );
    const paused = await post('k-1', { headers: { 'x-pause': '1' }, body: '' });
    expect([paused.status, problemCode(paused), paused.headers['retry-after']]).toEqual([
      503,
      'overloaded',
      '1',
    ]);
    expect(runs).toBe(0);
    // A lease this short may lapse again on a loaded machine.
    const next = await until(async () => {
      const answer = await post('k-1', { body: '' });
      return answer.status === 503 ? undefined : answer;
    });
    expect(next.json()).toEqual({ run: 1 });
  });

  it('stays in doubt after unknown(), whatever the handler says then', async () => {
    const { post, runs } = await withHandler((req, res) => {
      req.idempotency?.unknown();
      req.idempotency?.release();
      res.json({});
    });
    expect((await post('k-1')).status).toBe(200);
    expect(problemCode(await post('k-1'))).toBe('outcome_unknown');
    expect(runs).toHaveLength(1);
  });

  it('may not send any more when its time is over', async () => {
    const late = Promise.withResolvers<boolean | undefined>();
    const { post } = await withHandler(
      (req) => setTimeout(() => late.resolve(req.idempotency?.maySend()), 300),
      { timeoutMs: 100 },
    );
    expect((await post('k-1')).status).toBe(504);
    expect(await late.promise).toBe(false);
  });

  it('gives a handler the end of a chunked body that is empty', async () => {
    const { url } = await embed(
      (app, protect) =>
        app.post('/payouts', protect, (req, res) => req.resume().once('end', () => res.send('paid'))),
      { express },
    );
    const socket = await rawConnection(Number(new URL(url).port));
    socket.write(
      'POST /payouts HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k-1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    );
    const [first] = (await once(socket, 'data')) as [Buffer];
    expect(first.toString()).toMatch(/^HTTP\/1\.1 200 /);
    socket.destroy();
  });

  const MISUSES: [what: string, front: Handler, options: object, message: string][] = [
    [
      'text in place of bytes',
      (req, _res, next) => void next(req.setEncoding('utf8') && undefined),
      {},
      'another middleware reads the body',
    ],
    [
      'a listener for the body',
      (req, _res, next) => void next(req.on('data', () => {}) && undefined),
      {},
      'another middleware',
    ],
    [
      'a head that was sent',
      (_req, res, next) => void next(res.flushHeaders()),
      {},
      'has sent the head of the response',
    ],
    ['a `body` that is no text', (_req, _res, next) => next(), { body: () => [{}] }, 'must return a string'],
  ];

  it.for(MISUSES)('refuses %s in front, and calls no handler', async ([, front, options, message]) => {
    const errors: string[] = [];
    let runs = 0;
    const { post } = await embed(
      (app, protect) => {
        app.post('/payouts', front as RequestHandler, protect, (_req, res) => res.json({ run: ++runs }));
        const onError: ErrorRequestHandler = (error, _req, res, _next) => {
          errors.push((error as Error).message);
          res.end();
        };
        app.use(onError);
      },
      { express, ...options },
    );
    await post('k-1');
    expect(errors).toEqual([expect.stringContaining(message)]);
    expect(runs).toBe(0);
  });

  it('answers through a middleware in front that ends responses later, also when the time is over', async () => {
    const { url } = await embed(
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
        app.post('/slow', protect, () => {});
      },
      { express, timeoutMs: 100 },
    );
    const ask = (path: string) =>
      send(url, { method: 'POST', path, headers: { 'idempotency-key': `k${path}` } });
    expect((await ask('/quick')).body.toString()).toBe('paid');
    expect(problemCode(await ask('/slow'))).toBe('outcome_unknown');
  });

  it('streams a whole response that is too large to store through compression behind it', async () => {
    const large = randomBytes(300_000).toString('hex');
    const { url } = await embed(
      (app, protect) =>
        app.post('/payouts', protect, compression({ threshold: 0 }), (_req, res) => {
          res.type('text');
          Readable.from(large.match(/.{1,10000}/g) ?? []).pipe(res);
        }),
      { express, maxStoredBytes: 50_000 },
    );
    const headers = { 'idempotency-key': 'k-1', 'accept-encoding': 'gzip' };
    const answer = await send(url, { method: 'POST', path: '/payouts', headers });
    expect(gunzipSync(answer.body).toString()).toBe(large);
  });

  it('streams a response that is too large to store, with backpressure', async () => {
    const chunk = Buffer.alloc(64_000, 'x');
    let drains = 0;
    const { post, runs } = await withHandler(
      async (_req, res) => {
        for (let i = 0; i < 100; i++)
          if (!res.write(chunk)) {
            drains++;
            await once(res, 'drain');
          }
        res.end('.');
      },
      { maxStoredBytes: 100_000 },
    );
    const first = await post('k-1');
    expect([first.status, first.body.length]).toEqual([200, 6_400_001]);
    expect(drains).toBeGreaterThan(0);
    const again = await post('k-1');
    expect([again.status, problemCode(again)]).toEqual([409, 'response_not_stored']);
    expect(runs).toHaveLength(1);
  });

  it('keeps the header fields of other middleware, and works behind and before compression', async () => {
    const long = 'paid '.repeat(1000);
    const shaped = compression({ threshold: 0 });
    const { url } = await embed(
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
      const request = {
        method: 'POST',
        path,
        headers: { 'idempotency-key': `k${path}`, 'accept-encoding': 'gzip' },
      };
      const [first, again] = [await send(url, request), await send(url, request)];
      expect(first.headers).toMatchObject({ 'content-encoding': 'gzip', 'access-control-allow-origin': '*' });
      expect(again.headers).toMatchObject({
        'content-encoding': 'gzip',
        'access-control-allow-origin': '*',
        'idempotent-replayed': 'true',
      });
      expect(again.body).toEqual(first.body);
      expect(first.body.length).toBeLessThan(500);
    }
  });

  it('compares bodies, whether they were parsed before or not, and finds parsers that keep nothing', async () => {
    const errors: string[] = [];
    const { url } = await embed(
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
        const onError: ErrorRequestHandler = (error, _req, res, _next) => {
          errors.push((error as Error).message);
          res.status(500).end();
        };
        app.use(onError);
      },
      { express },
    );
    const post = (path: string, body: string) =>
      send(url, {
        method: 'POST',
        path,
        headers: { 'content-type': 'application/json', 'idempotency-key': `k${path}` },
        body,
      });
    for (const path of ['/json', '/raw', '/text']) {
      expect((await post(path, '{"a":1}')).body.toString()).toBe('{"a":1}');
      expect((await post(path, '{"a":1}')).headers['idempotent-replayed']).toBe('true');
      expect(problemCode(await post(path, '{"a":2}'))).toBe('idempotency_key_reused');
    }
    expect((await post('/eaten', '{"a":1}')).status).toBe(500);
    expect(errors).toEqual([expect.stringContaining('another middleware has read the body')]);
  });

  it('refuses a body that is too large, with or without a length', async () => {
    const { server, runs, post } = await withHandler((_req, res) => res.json({}), {
      limits: { bodyBytes: 1000 },
    });
    expect(problemCode(await post('k-1', { body: 'x'.repeat(1001) }))).toBe('body_too_large');
    const { port } = server.address() as { port: number };
    const socket = await rawConnection(port);
    socket.write(
      `POST /payouts HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k-2\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n${'x'.repeat(2000)}\r\n`,
    );
    const [first] = (await once(socket, 'data')) as [Buffer];
    expect(first.toString()).toMatch(/^HTTP\/1\.1 413 /);
    socket.destroy();
    expect(runs).toEqual([]);
  });
});
