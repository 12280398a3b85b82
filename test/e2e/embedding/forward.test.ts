import { readFileSync } from 'node:fs';
import type { IncomingHttpHeaders, RequestListener } from 'node:http';
import { createServer } from 'node:https';
import { connect } from 'node:net';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import express5, { type RequestHandler } from 'express';
import { createProxyMiddleware } from 'http-proxy-middleware';
import { pino } from 'pino';
import { describe, expect, it, onTestFinished } from 'vitest';
import { type ForwardOptions, forward, metricsMiddleware, sqliteStore } from '../../../src/index.ts';
import { httpBackend, openBackend, rawBackend } from '../../support/backend.ts';
import { Authority } from '../../support/certificates.ts';
import { send, type TestRequest } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { payoutBody } from '../../support/payout.ts';
import { openSandbox } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { codeOf, request, Wire } from '../../support/wire.ts';
import { embed, expressVersions } from './embedded.ts';

interface Opened {
  express?: typeof express5;
  /** A middleware between idempotency() and forward(). */
  middle?: RequestHandler;
  options?: object;
  timeoutMs?: number;
}

/** An application that forwards everything to a sandbox, and what pays there. */
async function withSandbox({ express, middle, options, timeoutMs }: Opened = {}) {
  const sandbox = await openSandbox();
  const toBackend = forward({ upstream: sandbox.url, connectTimeoutMs: 500, ...options });
  const app = await embed(
    (to, protect, { raw }) =>
      // A body that was parsed as bytes can be forwarded.
      to.use(...(middle ? [raw({ type: '*/*' }), protect, middle] : [protect]), toBackend),
    { ...(express && { express }), ...(timeoutMs && { timeoutMs }) },
  );
  onTestFinished(() => toBackend.close());
  const pay = (key?: string, fault = '') =>
    send(app.url, {
      method: 'POST',
      path: '/v1/index.php',
      headers: {
        authorization: 'Bearer sk_sandbox_alpha',
        'content-type': 'application/json',
        ...(key !== undefined && { 'idempotency-key': key }),
        ...(fault && { 'x-sandbox-fault': fault }),
      },
      body: JSON.stringify(payoutBody()),
    });
  return { ...app, sandbox, pay, payouts: () => sandbox.ledger.payouts() };
}

describe('forward() behind idempotency()', () => {
  it.each(expressVersions)('sends a payout once, and replays its response, on %s', async (_, express) => {
    const { pay, payouts } = await withSandbox({ express });
    const [first, again] = [await pay('k-1'), await pay('k-1')];
    expect([first.status, again.status]).toEqual([201, 201]);
    expect(again.body).toEqual(first.body);
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect(payouts()).toBe(1);
  });

  it('sends nothing with the option transactional, which would free the key of what was sent', async () => {
    const sandbox = await openSandbox();
    const database = new DatabaseSync(join(temporaryFolder(), 'payouts.sqlite'));
    const store = await sqliteStore({ database });
    const toBackend = forward({ upstream: sandbox.url });
    const { post } = await embed((to, protect) => to.use(protect, toBackend), { store, transactional: true });
    onTestFinished(async () => {
      await Promise.all([toBackend.close(), store.close()]);
      database.close();
    });
    const headers = { authorization: 'Bearer sk_sandbox_alpha' };
    const payout = { path: '/v1/index.php', headers, body: JSON.stringify(payoutBody()) };
    for (const answer of [await post('k-1', payout), await post('k-1', payout)]) {
      expect(codeOf(answer)).toBe('internal_error');
      expect(answer.json().detail).toContain('transactional');
    }
    expect(sandbox.ledger.payouts()).toBe(0);
  });

  it('sends requests without a key every time', async () => {
    const { pay, payouts, url } = await withSandbox();
    expect([(await pay()).status, (await pay()).status]).toEqual([201, 201]);
    const headers = { authorization: 'Bearer sk_sandbox_alpha' };
    expect((await send(url, { path: '/v2/get_balance', headers })).status).toBe(200);
    expect(payouts()).toBe(2);
  });

  it.each(['execute-then-reset', 'truncate-unframed'])(
    'pays once when the backend does %s',
    async (fault) => {
      const { pay, payouts } = await withSandbox();
      const first = await pay('k-1', fault);
      expect([first.status, codeOf(first)]).toEqual([502, 'outcome_unknown']);
      expect(codeOf(await pay('k-1'))).toBe('outcome_unknown');
      expect(payouts()).toBe(1);
    },
  );

  it('leaves the key in doubt after a middleware before it has called unknown(), whether the request was sent or not', async () => {
    const middle: RequestHandler = (req, _res, next) => {
      req.idempotency?.unknown();
      next();
    };
    const { pay, payouts, sandbox } = await withSandbox({ middle });
    const first = await pay('k-1');
    expect([first.status, payouts()]).toEqual([201, 1]);
    expect(codeOf(await pay('k-1'))).toBe('outcome_unknown');
    await sandbox.close();
    for (const status of [502, 409]) {
      const answer = await pay('k-2');
      expect([answer.status, codeOf(answer)]).toEqual([status, 'outcome_unknown']);
    }
  });

  it('leaves the key in doubt after a middleware that answers while the request is sent, whatever it says', async () => {
    const sent: (() => void)[] = [];
    const upstream = await httpBackend((_req, res) => {
      // It answers after the middleware.
      sent.at(-1)?.();
      setImmediate(() => res.writeHead(201, { 'content-length': 0 }).end());
    });
    const toBackend = forward({ upstream });
    onTestFinished(() => toBackend.close());
    const { post } = await embed((to, protect) => {
      to.use(protect, (req, res, next) => {
        sent.push(() => {
          if (req.path === '/released') req.idempotency?.release();
          res.status(req.path === '/released' ? 503 : 429).end();
        });
        next();
      });
      to.use(toBackend);
    });
    for (const [path, status] of [
      ['/released', 503],
      ['/limited', 429],
    ] as const) {
      expect((await post(path, { path })).status).toBe(status);
      expect(codeOf(await post(path, { path }))).toBe('outcome_unknown');
    }
    expect(sent).toHaveLength(2);
  });

  it('leaves no doubt after a middleware that answers before the request is sent', async () => {
    // Answers no TLS handshake, so that nothing can be sent.
    const connecting = Promise.withResolvers<void>();
    const url = await rawBackend(() => connecting.resolve());
    const toBackend = forward({ upstream: url.replace('http:', 'https:') });
    onTestFinished(() => toBackend.close());
    const { post } = await embed((to, protect) => {
      to.use(protect, (_req, res, next) => {
        void connecting.promise.then(() => res.status(429).end());
        next();
      });
      to.use(toBackend);
    });
    expect((await post('k-1')).status).toBe(429);
    expect((await post('k-1')).status).toBe(429);
  });

  it('sends the key that a middleware in front has set, by which the backend knows a retry', async () => {
    const paid: unknown[] = [];
    const upstream = await httpBackend((req, res) => {
      const { 'idempotency-key': key, 'x-service-idempotency': other } = req.headers;
      const isRetry = paid.includes(key);
      if (!isRetry) paid.push(key);
      if (isRetry) res.writeHead(201).end(`${other}`);
      else req.socket.destroy();
    });
    const toBackend = forward({ upstream });
    onTestFinished(() => toBackend.close());
    const { post } = await embed(
      (to, protect) => {
        to.use((req, _res, next) => {
          req.headers['idempotency-key'] = `event-${req.headers['x-event-id']}`;
          delete req.headers['x-service-idempotency'];
          next();
        });
        to.use(protect, toBackend);
      },
      { inDoubt: 'retry' },
    );
    // The merchant's client makes a new key for each attempt.
    const attempt = (key: string) =>
      post(key, { headers: { 'x-event-id': '1', 'x-service-idempotency': key } });
    expect(codeOf(await attempt('k-1'))).toBe('outcome_unknown');
    const retry = await attempt('k-2');
    expect([retry.status, retry.body.toString(), paid]).toEqual([201, 'undefined', ['event-1']]);
  });

  it('frees the key when nothing was sent', async () => {
    const { pay, payouts, sandbox } = await withSandbox();
    await sandbox.close();
    const answer = await pay('k-1');
    expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
    expect(codeOf(await pay('k-1'))).toBe('upstream_unreachable');
    expect(() => payouts()).toThrow();
  });
});

describe('forward()', () => {
  it('sends nothing when a slow middleware before it has used up the time of the handler', async () => {
    const passed = Promise.withResolvers<void>();
    const { pay, sandbox, payouts } = await withSandbox({
      middle: async (_req, _res, next) => {
        await sleep(300);
        next();
        passed.resolve();
      },
      timeoutMs: 100,
    });
    expect(codeOf(await pay('k-1'))).toBe('outcome_unknown');
    await passed.promise;
    expect(codeOf(await pay('k-1'))).toBe('outcome_unknown');
    expect([sandbox.requests.total(), payouts()]).toEqual([0, 0]);
  });

  it('tells the backend that a client has called over TLS', async () => {
    const upstream = await httpBackend((req, res) => res.end(req.headers['x-forwarded-proto']));
    const toBackend = forward({ upstream });
    const authority = new Authority();
    const { cert, key } = authority.issue();
    const server = createServer(
      { cert: readFileSync(cert), key: readFileSync(key) },
      express5().use(toBackend),
    );
    const { url, close } = await openBackend(server);
    onTestFinished(async () => {
      await close();
      await toBackend.close();
    });
    const answer = await send(url.replace('http:', 'https:'), { ca: authority.caBytes });
    expect(answer.body.toString()).toBe('https');
  });

  it('keeps its connections when `target` throws', async () => {
    let fails = 3;
    const target = () => {
      if (fails-- > 0) throw new Error('broken');
      return '/v1/index.php';
    };
    const middle: RequestHandler = (_req, _res, next) => next();
    const { pay } = await withSandbox({ middle, options: { target, maxConnections: 1 } });
    for (const key of ['k-1', 'k-2', 'k-3']) expect((await pay(key)).status).toBe(502);
    expect((await pay('k-1')).status).toBe(201);
  });

  /** An application that forwards to a backend with this handler. */
  async function inFrontOf(handler: RequestListener, options: object = {}, more: object = {}) {
    const toBackend = forward({ upstream: await httpBackend(handler), ...options });
    const app = await embed((to, protect) => to.post('/payouts', protect, toBackend), more);
    onTestFinished(() => toBackend.close());
    return app;
  }

  it('sends a credential of its own in place of the merchant’s, and neither it nor a merchant code for nobody', async () => {
    const got: unknown[] = [];
    const backend: RequestListener = ({ headers }, res) => {
      got.push([headers.authorization, headers['x-merchant-code']]);
      res.end('{}');
    };
    const own = { authorization: 'replace', replaceWith: 'Bearer of-the-application' };
    const toBackend = forward({ upstream: await httpBackend(backend), ...own } as ForwardOptions);
    onTestFinished(() => toBackend.close());
    const { post, url } = await embed((app, protect) => {
      const known: RequestHandler = (req, _res, next) => {
        req.merchant = { code: 'M-BRAVO', keyId: '', scopes: [] };
        next();
      };
      app.use('/known', known, protect, toBackend);
      app.use(protect, toBackend);
    });
    const headers = { authorization: 'Basic of-the-merchant' };
    await post('k-1', { headers });
    await post('k-2');
    for (const path of ['/known', '/payouts']) await send(url, { method: 'POST', path, headers });
    expect(got).toEqual([
      [own.replaceWith, 'M-ALPHA'],
      [own.replaceWith, 'M-ALPHA'],
      [own.replaceWith, 'M-BRAVO'],
      [undefined, undefined],
    ]);
  });

  it.each([
    ['with a key', 'idempotency-key: k-1'],
    ['without one', 'x-none: 1'],
  ])(
    'resets a connection of HTTP/1.0, %s, if the backend breaks off a response without a length',
    async (_way, field) => {
      const LIMIT = 65_536;
      const cut = Promise.withResolvers<void>();
      const upstream = await httpBackend((_req, res) => {
        res.write('x'.repeat(2 * LIMIT));
        void cut.promise.then(() => res.destroy());
      });
      const toBackend = forward({ upstream, maxStoredBytes: LIMIT });
      onTestFinished(() => toBackend.close());
      const { url } = await embed((app, protect) => app.use(protect, toBackend));
      const socket = connect(Number(new URL(url).port), '127.0.0.1');
      const ended = new Promise<unknown>((resolve) => {
        socket.once('end', () => resolve('in good order'));
        socket.once('error', ({ code }: NodeJS.ErrnoException) => resolve(code));
      });
      let bytes = 0;
      socket.on('data', (chunk) => {
        bytes += chunk.length;
      });
      socket.write(`POST /payouts HTTP/1.0\r\ncontent-length: 0\r\n${field}\r\n\r\n`);
      await until(() => bytes > 2 * LIMIT);
      cut.resolve();
      expect(await ended).toBe('ECONNRESET');
    },
  );

  it('sends nothing for a merchant whose code no header field keeps, because the backend would take it for another', async () => {
    let sent = 0;
    const toBackend = forward({
      upstream: await httpBackend((_req, res) => {
        sent++;
        res.end('{}');
      }),
    });
    onTestFinished(() => toBackend.close());
    const { post, url } = await embed(
      (app, protect) => {
        const known: RequestHandler = (req, _res, next) => {
          req.merchant = { code: '\tM-BRAVO', keyId: '', scopes: [] };
          next();
        };
        app.use('/known', known, toBackend);
        app.use(protect, toBackend);
      },
      { merchant: () => 'M-BRAVO ' },
    );
    expect(codeOf(await post('k-1'))).toBe('upstream_unreachable');
    expect((await send(url, { method: 'POST', path: '/known' })).status).toBe(500);
    expect(sent).toBe(0);
  });

  it('sends the header fields as a middleware in front has set or removed them', async () => {
    const got: IncomingHttpHeaders[] = [];
    const toBackend = forward({
      upstream: await httpBackend(({ headers }, res) => {
        got.push(headers);
        res.end('{}');
      }),
    });
    onTestFinished(() => toBackend.close());
    const { post, url } = await embed((app, protect) => {
      app.use((req, _res, next) => {
        delete req.headers.cookie;
        req.headers['x-user'] = 'u-1';
        // Express and Node read only names in lower case, but http-proxy sends what is set last.
        req.headers['X-Role'] = 'clerk';
        next();
      });
      app.use(protect, toBackend);
    });
    const forged = { cookie: 'session=1', 'x-user': 'u-2', 'x-role': 'admin', accept: 'text/html' };
    const headers = { ...forged, connection: 'x-user, x-role' };
    await post('k-1', { headers });
    await send(url, { method: 'POST', path: '/payouts', headers });
    for (const sent of got) {
      expect(sent).toMatchObject({ 'x-user': 'u-1', 'x-role': 'clerk', accept: 'text/html' });
      expect(sent.cookie).toBeUndefined();
    }
    expect(got).toHaveLength(2);
  });

  it('refuses what the gateway refuses: TRACE, which shows the credential, and targets that lead elsewhere', async () => {
    const got: unknown[] = [];
    const backend: RequestListener = ({ method, url }, res) => {
      got.push(`${method} ${url}`);
      res.end();
    };
    const own = { authorization: 'replace', replaceWith: 'Bearer of-the-application' } as const;
    const toBackend = forward({ upstream: await httpBackend(backend), ...own });
    onTestFinished(() => toBackend.close());
    const known: RequestHandler = (req, _res, next) => {
      req.merchant = { code: 'M-BRAVO', keyId: '', scopes: [] };
      next();
    };
    const { url } = await embed((app, protect) => app.use('/v1', known, protect, toBackend));
    const wire = await Wire.open(Number(new URL(url).port));
    const asked = async (line: string, ...fields: string[]) => {
      const answer = await wire.write(request(line, fields)).answer();
      return [line, answer.status, codeOf(answer)];
    };
    expect(await asked('TRACE /v1/payouts')).toEqual(['TRACE /v1/payouts', 405, 'method_not_allowed']);
    for (const path of ['/v1/../admin', '/v1/%2e%2e/admin', '/v1/..;/admin', '/v1/..%2fadmin', '/v1//admin'])
      for (const fields of [[], ['Idempotency-Key: k-1']])
        expect(await asked(`POST ${path}`, ...fields)).toEqual([`POST ${path}`, 400, 'invalid_target']);
    expect((await wire.write(request('POST /v1/a', ['Idempotency-Key: k-1'])).answer()).status).toBe(200);
    expect(got).toEqual(['POST /v1/a']);
  });

  it('keeps its connections when a large response comes too late', async () => {
    let delayMs = 1200;
    const late: RequestListener = (_req, res) => {
      setTimeout(() => res.end(Buffer.alloc(3_000_000)), delayMs);
      delayMs = 0;
    };
    const options = { maxConnections: 1, queueTimeoutMs: 5000 };
    const { post } = await inFrontOf(late, options, { timeoutMs: 1000 });
    expect((await post('k-1')).status).toBe(504);
    let keys = 1;
    // On a loaded machine, the next response may be late as well. Without its connection, none would come.
    const next = await until(async () => {
      const answer = await post(`k-${++keys}`);
      return answer.status === 504 ? undefined : answer;
    });
    expect([next.status, next.body.length]).toEqual([200, 3_000_000]);
  });

  it('answers 500 that names the parser which has read or decompressed the body, and frees the key', async () => {
    const sent: Buffer[] = [];
    const warnings: string[] = [];
    const onWarning = ({ name, message }: Error) => name === 'oncegate' && warnings.push(message);
    process.on('warning', onWarning);
    onTestFinished(() => void process.off('warning', onWarning));
    const backend = await httpBackend((req, res) => {
      req.on('data', (bytes) => sent.push(bytes)).once('end', () => res.end('{}'));
    });
    const toBackend = forward({ upstream: backend });
    const verify = (req: object, _res: unknown, rawBody: Buffer) => Object.assign(req, { rawBody });
    const { post } = await embed((app, protect, express) => {
      app.use('/parsed', express.json());
      app.use('/kept', express.json({ verify }));
      app.use('/bytes', express.raw({ type: '*/*' }));
      app.use('/form', express.urlencoded());
      app.use('/text', express.text());
      app.use('/unprotected', express.json(), toBackend);
      app.use(protect, toBackend);
    });
    onTestFinished(() => toBackend.close());
    const body = gzipSync('{"amount":10}');
    const compressed = { body, headers: { 'content-encoding': 'gzip' } };
    const type = (type: string) => ({ headers: { 'content-type': type }, body: 'amount=10' });
    const requests: [parser: string, request: TestRequest][] = [
      ['express.json()', { path: '/parsed' }],
      ['express.json()', { path: '/unprotected' }],
      ['express.json()', { path: '/kept', ...compressed }],
      ['express.raw()', { path: '/bytes', ...compressed }],
      ['express.urlencoded()', { path: '/form', ...type('application/x-www-form-urlencoded') }],
      ['express.text()', { path: '/text', ...type('text/plain') }],
    ];
    for (const [parser, request] of requests) {
      const answer = await post(`k-${request.path}`, request);
      expect([answer.status, codeOf(answer)]).toEqual([500, 'internal_error']);
      const { detail } = answer.json() as { detail: string };
      expect(detail).toBe(
        `${parser}, or a parser like it, has read or decompressed the body before forward(): place forward() before it. Nothing was sent.`,
      );
      await until(() => warnings.length > 0);
    }
    expect(warnings).toEqual([expect.stringMatching(/^express\.json\(\), or a parser like it/)]);
    expect(sent).toEqual([]);
    for (const path of ['/kept', '/bytes']) expect((await post(`k-${path}`, { path })).status).toBe(200);
    expect((await post('k-untouched', { path: '/payouts', ...compressed })).status).toBe(200);
    expect(Buffer.concat(sent)).toEqual(Buffer.concat([Buffer.from('{"amount":10}{"amount":10}'), body]));
  });

  it('has a response time limit: the key is in doubt', async () => {
    const { post } = await inFrontOf(() => {}, { responseTimeoutMs: 300 });
    const answer = await post('k-1');
    expect([answer.status, codeOf(answer)]).toEqual([504, 'outcome_unknown']);
  });
});

describe('idempotency()', () => {
  it('warns once of a handler that is a proxy, and counts in its metrics', async () => {
    const target = await httpBackend((_req, res) => res.writeHead(201).end('paid'));
    const lines: string[] = [];
    const logger = pino({ level: 'warn' }, { write: (line: string) => lines.push(line) });
    const { url, post } = await embed(
      (app, protect) => {
        app.get('/metrics', metricsMiddleware(protect.metrics));
        app.post('/payouts', protect, createProxyMiddleware({ target }));
      },
      { logger, operation: 'payout' },
    );
    for (const key of ['k-1', 'k-1', 'k-2']) expect((await post(key)).body.toString()).toBe('paid');
    expect(lines).toHaveLength(1);
    expect(lines[0]).toContain('use forward()');
    const metrics = await until(async () => {
      const text = (await send(url, { path: '/metrics' })).body.toString();
      return text.includes('oncegate_requests_total{operation="payout",outcome="replayed"} 1') && text;
    });
    expect(metrics).toContain('oncegate_requests_total{operation="payout",outcome="executed"} 2');
    expect(metrics).toContain('oncegate_upstream_responses_total{operation="payout",class="2xx"} 2');
    expect(metrics).toContain('oncegate_idempotency_hits_total{operation="payout"} 1');
    expect(metrics).toContain('oncegate_store_duration_seconds_count{command="start",result="ok"}');
  });
});
