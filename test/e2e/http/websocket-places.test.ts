import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { expect, onTestFinished, test } from 'vitest';
import { WebSocket } from 'ws';
import { httpBackend, NOT_LISTENING, openBlackHole } from '../../support/backend.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, codeOf, head, request, Wire } from '../../support/wire.ts';

const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
];

test('a backend that refuses connections: 502 upstream_unreachable on the socket', async () => {
  const behind = await openStack({ upstream: { url: NOT_LISTENING } });
  onTestFinished(() => behind.close());
  const wire = await Wire.open(behind.port);
  const answer = await wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer();
  expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
  await wire.ended;
});

test('a connection that is never established: 502 upstream_unreachable on the socket, after the connect timeout', async () => {
  const hole = await openBlackHole();
  onTestFinished(() => hole.close());
  const behind = await openStack({ upstream: { url: hole.url, connectTimeoutMs: 200 } });
  onTestFinished(() => behind.close());
  const wire = await Wire.open(behind.port);
  const answer = await wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer();
  expect([answer.status, codeOf(answer)]).toEqual([502, 'upstream_unreachable']);
}, 8000);

test('a shutdown closes the WebSockets, at the merchant and at the backend', async () => {
  const { promise: opened, resolve: open } = Promise.withResolvers<Duplex>();
  const url = await httpBackend(
    (_req, res) => res.end(),
    (server) =>
      server.on('upgrade', (_req, socket) => {
        socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
        socket.on('end', () => socket.end()).resume();
        open(socket);
      }),
  );
  const behind = await openStack({ upstream: { url } });
  onTestFinished(() => behind.sandbox.close());
  const wire = await Wire.open(behind.port);
  expect((await wire.write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer()).status).toBe(101);
  const backendClosed = once(await opened, 'close');
  const shutdown = behind.shutdown();
  await wire.ended;
  await shutdown;
  await backendClosed;
});

test('a gateway that is shutting down accepts no new WebSocket', async () => {
  const behind = await openStack({ shutdown: { delayMs: 0, graceMs: 5000 } });
  onTestFinished(() => behind.sandbox.close());
  const [wire, slow] = [await Wire.open(behind.port), await Wire.open(behind.port)];
  // A running request keeps the process alive, and half a head keeps this connection open.
  slow.write(head('GET /v3/echo', ALPHA, 'x-service-idempotency: slow', 'X-Sandbox-Fault: delay=60000'));
  wire.write('GET /v3/ws HTTP/1.1\r\nHost: x\r\n');
  await until(() => behind.sandbox.requests.total() === 1);
  const shutdown = behind.shutdown();
  await until(async () => (await behind.gateway.checks()).some(({ name, ok }) => name === 'draining' && !ok));
  const answer = await wire.write(`${[ALPHA, ...HANDSHAKE].join('\r\n')}\r\n\r\n`).answer();
  expect([answer.status, codeOf(answer), answer.headers['retry-after']]).toEqual([
    503,
    'shutting_down',
    ['1'],
  ]);
  behind.sandbox.endDelays('slow');
  expect((await slow.answer()).status).toBe(200);
  await shutdown;
  expect(behind.sandbox.requests.total()).toBe(1);
});

test('any other upgrade is handled as an ordinary request', async () => {
  const stack = await openStack();
  onTestFinished(() => stack.close());
  const payout = JSON.stringify(payoutBody(1));
  for (const [key, upgrade] of [
    ['h2c-1', ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABkAAQAAP__']],
    ['websocket-1', HANDSHAKE],
    ['many-1', ['Connection: Upgrade', 'Upgrade: h2c, websocket']],
  ] as const) {
    const wire = await Wire.open(stack.port);
    const fields = [ALPHA, `x-service-idempotency: ${key}`, ...upgrade];
    const first = await wire.write(request('POST /v1/index.php', fields, payout)).answer();
    const second = await wire.write(request('POST /v1/index.php', fields, payout)).answer();
    expect([first.status, second.status], key).toEqual([201, 201]);
    expect(second.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  }
  const wire = await Wire.open(stack.port);
  const get = await wire.write(head('GET /v3/echo', ALPHA, 'Connection: Upgrade', 'Upgrade: h2c')).answer();
  expect(get.json<{ rawHeaders: string[][] }>().rawHeaders.flat()).not.toContain('h2c');
  expect(get.status).toBe(200);
  expect(stack.sandbox.requests.lastUpgrade).toBeUndefined();
});

test('a pipelined handshake is answered after the request before it, and does not take its connection', async () => {
  const stack = await openStack();
  onTestFinished(() => stack.close());
  for (const who of [[], [ALPHA]]) {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/echo?first', ALPHA, 'X-Sandbox-Fault: delay=100'));
    wire.write(head('GET /v3/echo?second', ALPHA) + head('GET /v3/ws', ...who, ...HANDSHAKE));
    for (const url of ['/v3/echo?first', '/v3/echo?second']) {
      expect((await wire.answer()).json().url).toBe(url);
    }
    expect((await wire.answer()).status).not.toBe(101);
    wire.socket.destroy();
    await until(async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'));
  }
});

test('a WebSocket counts as in flight until it is closed', async () => {
  const stack = await openStack({ limits: { inFlight: 1 } });
  onTestFinished(() => stack.close());
  const headers = { authorization: 'Bearer sk_sandbox_alpha' };
  const ws = new WebSocket(`ws://127.0.0.1:${stack.port}/v3/ws`, { headers });
  onTestFinished(() => ws.terminate());
  await once(ws, 'open');
  const refused = await (await Wire.open(stack.port)).write(head('GET /v3/ws', ALPHA, ...HANDSHAKE)).answer();
  expect([refused.status, codeOf(refused), refused.headers['retry-after']]).toEqual([
    503,
    'overloaded',
    ['1'],
  ]);
  expect(stack.sandbox.requests.total()).toBe(1);
  ws.close();
  await until(async () => {
    const wire = await Wire.open(stack.port);
    const { status } = await wire.write(head('GET /v3/echo', ALPHA)).answer();
    wire.socket.destroy();
    return status === 200;
  });
});
