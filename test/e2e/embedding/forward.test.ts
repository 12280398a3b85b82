import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { RequestHandler } from 'express';
import { createProxyMiddleware } from 'http-proxy-middleware';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { listen } from '../../../src/gateway/http-server.ts';
import { forward, metricsMiddleware } from '../../../src/index.ts';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { send } from '../../support/client.ts';
import { closeAfterTest, embed, expressVersions } from '../../support/embedded.ts';
import { payoutBody } from '../../support/payout.ts';
import { until } from '../../support/until.ts';

const PAYOUT = payoutBody();
const problemCode = (answer: { json<T>(): T }) => answer.json<{ error?: { code: string } }>().error?.code;

describe.each(expressVersions)('forward() behind idempotency() on %s', (_, express) => {
  async function withSandbox(options: Partial<Parameters<typeof forward>[0]> = {}) {
    const sandbox = await createSandbox({ port: 0 });
    closeAfterTest(() => sandbox.close());
    const toBackend = forward({ upstream: sandbox.url, ...options });
    const app = await embed((to, protect) => to.use(protect, toBackend), { express });
    closeAfterTest(() => toBackend.close());
    const pay = (key: string | undefined, fault = '', more: object = {}) =>
      send(app.url, {
        method: 'POST',
        path: '/v1/index.php',
        headers: {
          authorization: 'Bearer sk_sandbox_alpha',
          'content-type': 'application/json',
          ...(key !== undefined && { 'idempotency-key': key }),
          ...(fault && { 'x-sandbox-fault': fault }),
        },
        body: JSON.stringify(PAYOUT),
        ...more,
      });
    return { ...app, sandbox, pay, payouts: () => sandbox.ledger.payouts() };
  }

  it('sends a payout once, and replays its response', async () => {
    const { pay, payouts } = await withSandbox();
    const [first, again] = [await pay('k-1'), await pay('k-1')];
    expect([first.status, again.status]).toEqual([201, 201]);
    expect(again.body).toEqual(first.body);
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect(payouts()).toBe(1);
  });

  it('sends requests without a key every time', async () => {
    const { pay, payouts, url } = await withSandbox();
    expect([(await pay(undefined)).status, (await pay(undefined)).status]).toEqual([201, 201]);
    const headers = { authorization: 'Bearer sk_sandbox_alpha' };
    expect((await send(url, { path: '/v2/get_balance', headers })).status).toBe(200);
    expect(payouts()).toBe(2);
  });

  it('pays once when the backend executes and then resets', async () => {
    const { pay, payouts } = await withSandbox();
    const first = await pay('k-1', 'execute-then-reset');
    expect([first.status, problemCode(first)]).toEqual([502, 'outcome_unknown']);
    expect(problemCode(await pay('k-1'))).toBe('outcome_unknown');
    expect(payouts()).toBe(1);
  });

  it('frees the key when nothing was sent', async () => {
    const { pay, payouts, sandbox } = await withSandbox({ connectTimeoutMs: 500 });
    await sandbox.close();
    const answer = await pay('k-1');
    expect([answer.status, problemCode(answer)]).toEqual([502, 'upstream_unreachable']);
    expect(problemCode(await pay('k-1'))).toBe('upstream_unreachable');
    expect(() => payouts()).toThrow();
  });
});

describe('forward()', () => {
  async function toSandbox(middle: RequestHandler, options: object = {}, more: object = {}) {
    const sandbox = await createSandbox({ port: 0 });
    closeAfterTest(() => sandbox.close());
    const toBackend = forward({ upstream: sandbox.url, maxConnections: 1, ...options });
    const app = await embed(
      (to, protect, express) =>
        to.post('/v1/index.php', express.raw({ type: '*/*' }), protect, middle, toBackend),
      more,
    );
    closeAfterTest(() => toBackend.close());
    const pay = (key: string) =>
      app.post(key, {
        path: '/v1/index.php',
        headers: { authorization: 'Bearer sk_sandbox_alpha' },
        body: JSON.stringify(PAYOUT),
      });
    return { pay, sandbox };
  }

  it('sends nothing when a slow middleware before it has used up the time of the handler', async () => {
    const passed = Promise.withResolvers<void>();
    const { pay, sandbox } = await toSandbox(
      async (_req, _res, next) => {
        await sleep(300);
        next();
        passed.resolve();
      },
      {},
      { timeoutMs: 100 },
    );
    expect(problemCode(await pay('k-1'))).toBe('outcome_unknown');
    await passed.promise;
    expect(problemCode(await pay('k-1'))).toBe('outcome_unknown');
    expect([sandbox.requests.total(), sandbox.ledger.payouts()]).toEqual([0, 0]);
  });

  it('keeps its connections when `target` throws', async () => {
    let fails = 3;
    const target = () => {
      if (fails-- > 0) throw new Error('broken');
      return '/v1/index.php';
    };
    const { pay } = await toSandbox((_req, _res, next) => next(), { target });
    for (const key of ['k-1', 'k-2', 'k-3']) expect((await pay(key)).status).toBe(502);
    expect((await pay('k-1')).status).toBe(201);
  });

  it('keeps its connections when a large response comes too late', async () => {
    let delayMs = 300;
    const backend = createServer((_req, res) => {
      setTimeout(() => res.end(Buffer.alloc(3_000_000)), delayMs);
      delayMs = 0;
    });
    const port = await listen(backend, '127.0.0.1', 0);
    closeAfterTest(async () => {
      backend.closeAllConnections();
      backend.close();
    });
    const toBackend = forward({
      upstream: `http://127.0.0.1:${port}`,
      maxConnections: 1,
      queueTimeoutMs: 5000,
    });
    const { post } = await embed((app, protect) => app.post('/payouts', protect, toBackend), {
      timeoutMs: 1000,
    });
    closeAfterTest(() => toBackend.close());
    delayMs = 1200;
    expect((await post('k-1')).status).toBe(504);
    const second = await post('k-2');
    expect([second.status, second.body.length]).toEqual([200, 3_000_000]);
  });

  it('refuses a body that a parser has read, and frees the key', async () => {
    const toBackend = forward({ upstream: 'http://127.0.0.1:9' });
    const { post } = await embed((app, protect, express) =>
      app.post('/payouts', express.json(), protect, toBackend),
    );
    closeAfterTest(() => toBackend.close());
    const answer = await post('k-1');
    expect([answer.status, problemCode(answer)]).toEqual([502, 'upstream_unreachable']);
  });

  it('has a response time limit: the key is in doubt', async () => {
    const silent = createServer(() => {});
    const port = await listen(silent, '127.0.0.1', 0);
    closeAfterTest(async () => {
      silent.closeAllConnections();
      silent.close();
    });
    const toBackend = forward({ upstream: `http://127.0.0.1:${port}`, responseTimeoutMs: 1500 });
    const { post } = await embed((app, protect) => app.post('/payouts', protect, toBackend));
    closeAfterTest(() => toBackend.close());
    const answer = await post('k-1');
    expect([answer.status, problemCode(answer)]).toEqual([504, 'outcome_unknown']);
  });
});

describe('idempotency()', () => {
  it('warns once of a handler that is a proxy, and counts in its metrics', async () => {
    const backend = createServer((_req, res) => res.writeHead(201).end('paid'));
    const port = await listen(backend, '127.0.0.1', 0);
    closeAfterTest(async () => {
      backend.closeAllConnections();
      backend.close();
    });
    const lines: string[] = [];
    const logger = pino({ level: 'warn' }, { write: (line: string) => lines.push(line) });
    const { url, post } = await embed(
      (app, protect) => {
        app.get('/metrics', metricsMiddleware(protect.metrics));
        app.post('/payouts', protect, createProxyMiddleware({ target: `http://127.0.0.1:${port}` }));
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
    expect(metrics).toContain('oncegate_idempotency_hits_total{operation="payout"} 1');
    expect(metrics).toContain('oncegate_store_duration_seconds_count{command="start",result="ok"}');
  });
});
