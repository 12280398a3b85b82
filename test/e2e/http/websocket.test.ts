import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { describe, expect, onTestFinished, test } from 'vitest';
import { WebSocket } from 'ws';
import { backendForFile } from '../../support/backend.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { closed } from '../../support/raw.ts';
import { nothingOpen, openStack, type Stack, stackForFile } from '../../support/stack.ts';
import { acceptUpgrade } from '../../support/web-sockets.ts';
import { ALPHA, ask, chunk, codeOf, HANDSHAKE, head, payoutOf, Wire } from '../../support/wire.ts';

let onUpgrade: (socket: Socket) => void;
const server = createServer((_req, res) => res.end());
server.on('upgrade', (_req: IncomingMessage, socket: Duplex) => onUpgrade(socket as Socket));
const url = await backendForFile(server);
/** Gateways in front of the sandbox, which sends every message back, and of a backend that handles upgrades with `onUpgrade`. */
const [stack, behind] = await Promise.all([stackForFile(), stackForFile({ upstream: { url } })]);

const WEB_SOCKET = head('GET /v3/ws', ALPHA, ...HANDSHAKE);
/** A text frame, with a mask of zeros. */
const FRAME = '\x81\x85\0\0\0\0hello';

function dial({ port }: Pick<Stack, 'port'>, protocols: string[] = [], more: object = {}): WebSocket {
  const headers = { authorization: 'Bearer sk_sandbox_alpha', ...more };
  const ws = new WebSocket(`ws://127.0.0.1:${port}/v3/ws`, protocols, { headers });
  ws.on('error', () => {});
  onTestFinished(() => ws.terminate());
  return ws;
}

/** A WebSocket that the backend has accepted, at both its ends. */
async function openOn(to: Stack): Promise<{ wire: Wire; atBackend: Socket }> {
  const { promise: opened, resolve: open } = Promise.withResolvers<Socket>();
  onUpgrade = (socket) => {
    acceptUpgrade(socket);
    open(socket.resume());
  };
  const wire = (await Wire.open(to.port)).write(WEB_SOCKET);
  expect((await wire.answer()).status).toBe(101);
  return { wire, atBackend: await opened };
}

describe('an authenticated WebSocket', () => {
  test('carries text and binary messages in both directions, small and large', async () => {
    const ws = dial(stack, ['payments.v1', 'payments.v2']);
    await once(ws, 'open');
    // The backend has chosen it.
    expect(ws.protocol).toBe('payments.v1');
    for (const message of ['hello', 'ä€😀', 'x'.repeat(60_000)]) {
      ws.send(message);
      expect(String((await once(ws, 'message'))[0])).toBe(message);
    }
    const bytes = Buffer.from([0, 1, 254, 255]);
    ws.send(bytes);
    const [back, binary] = (await once(ws, 'message')) as [Buffer, boolean];
    expect([binary, back]).toEqual([true, bytes]);
    ws.ping();
    await once(ws, 'pong');
    ws.close(1000, 'bye');
    expect((await once(ws, 'close'))[0]).toBe(1000);
    await nothingOpen(stack);
  });

  test('may send its first frame together with its handshake', async () => {
    const wire = (await Wire.open(stack.port)).write(WEB_SOCKET + FRAME);
    expect((await wire.answer()).status).toBe(101);
    await wire.hears('\x81\x05hello');
  });

  test('has the merchant’s code, and no other', async () => {
    const forged = { 'X-Merchant-Code': 'M-BRAVO', x_merchant_code: 'M-BRAVO', 'X-Request-Id': 'upgrade-1' };
    await once(dial(stack, [], forged), 'open');
    const seen = stack.handshakes.at(-1);
    expect(seen?.headersDistinct).toMatchObject({
      'x-merchant-code': ['M-ALPHA'],
      'x-request-id': ['upgrade-1'],
      authorization: ['Bearer sk_sandbox_alpha'],
      upgrade: ['websocket'],
      'x-forwarded-for': ['127.0.0.1'],
    });
    expect(JSON.stringify(seen?.rawHeaders)).not.toContain('M-BRAVO');
  });

  test('is closed when the backend resets it, and nothing is written into it', async () => {
    const { wire, atBackend } = await openOn(behind);
    atBackend.resetAndDestroy();
    await wire.ended;
    expect(wire.rest).toBe('');
    await nothingOpen(behind);
  });
});

test('a handshake is refused on the socket, and not sent to the backend', async () => {
  const RESTRICTED = 'Authorization: Bearer sk_test_balance_only';
  const refused: [string, string[], number, string][] = [
    ['/v3/ws', [], 401, 'missing_credentials'],
    ['/v3/ws', [ALPHA, ALPHA], 401, 'missing_credentials'],
    ['/v3/ws', ['Authorization: Bearer sk_no'], 401, 'invalid_key'],
    ['/v3/ws', ['Authorization: Bearer sk_test_revoked'], 401, 'invalid_key'],
    ['/v3/ws', [RESTRICTED], 403, 'insufficient_scope'],
    ['/V1/index.php', [RESTRICTED], 403, 'insufficient_scope'],
    ['/v1/index.php/x', [RESTRICTED], 403, 'insufficient_scope'],
    ['/v3/ws', [ALPHA, 'Host: other.test'], 400, 'invalid_request'],
    ['//v3/ws', [ALPHA], 400, 'invalid_target'],
  ];
  await expectNothingSent(stack, () =>
    eachRowInTurn(refused, async ([target, fields, status, code]) => {
      const wire = await Wire.open(stack.port);
      const answer = await wire.write(head(`GET ${target}`, ...HANDSHAKE, ...fields)).answer();
      expect([answer.status, codeOf(answer)]).toEqual([status, code]);
      expect('www-authenticate' in answer.headers).toBe(status > 400);
      expect(answer.headers).toMatchObject({
        connection: ['close'],
        'content-type': ['application/problem+json'],
      });
      await wire.ended;
      expect(wire.rest).toBe('');
    }),
  );
});

test.each<[string, (wire: Wire) => void]>([
  ['does not close', () => {}],
  ['continues to send', (wire) => void wire.write(FRAME)],
  ['continues to send and closes', (wire) => void wire.write(FRAME).socket.end()],
])('a refused upgrade leaves no connection open, even if the merchant %s', async (_how, then) => {
  const wire = await Wire.open(stack.port);
  wire.socket.allowHalfOpen = true;
  expect((await wire.write(head('GET /v3/ws', ...HANDSHAKE)).answer()).status).toBe(401);
  then(wire);
  await nothingOpen(stack);
});

test('a refusal of the backend is passed on with new framing, and no connection stays open', async () => {
  onUpgrade = (socket) =>
    socket.end(`HTTP/1.1 426 Upgrade Required\r\nTransfer-Encoding: chunked\r\n\r\n${chunk('no')}0\r\n\r\n`);
  // Also if the merchant has sent a frame already.
  for (const frame of ['', FRAME]) {
    const wire = (await Wire.open(behind.port)).write(WEB_SOCKET + frame);
    const answer = await wire.answer();
    expect([answer.status, answer.body.toString()]).toEqual([426, 'no']);
    await wire.ended;
    await nothingOpen(behind);
  }
});

test('a connection on which the backend has refused an upgrade gets no other request', async () => {
  // What Node's `upgrade` event gives away reads no HTTP any more.
  onUpgrade = (socket) =>
    void socket.resume().write('HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno');
  const refused = await ask(behind.port, WEB_SOCKET);
  expect([refused.status, refused.body.toString()]).toEqual([426, 'no']);
  await nothingOpen(behind);
  expect((await ask(behind.port, head('GET /v3/echo', ALPHA))).status).toBe(200);
});

test('any other upgrade is handled as an ordinary request', async () => {
  for (const [key, upgrade] of [
    ['h2c-1', ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABkAAQAAP__']],
    ['websocket-1', HANDSHAKE],
    ['many-1', ['Connection: Upgrade', 'Upgrade: h2c, websocket']],
  ] as const) {
    const wire = await Wire.open(stack.port);
    const bytes = payoutOf(key, ...upgrade);
    const [first, second] = [await wire.write(bytes).answer(), await wire.write(bytes).answer()];
    expect([first.status, second.status], key).toEqual([201, 201]);
    expect(second.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  }
  const handshakes = stack.handshakes.length;
  const get = await ask(stack.port, head('GET /v3/echo', ALPHA, 'Connection: Upgrade', 'Upgrade: h2c'));
  expect(get.json<{ rawHeaders: string[][] }>().rawHeaders.flat()).not.toContain('h2c');
  expect([get.status, stack.handshakes.length]).toEqual([200, handshakes]);
});

test('a pipelined handshake is answered after the request before it, and does not take its connection', async () => {
  for (const who of [[], [ALPHA]]) {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/echo?first', ALPHA, 'X-Sandbox-Fault: delay=100'));
    wire.write(head('GET /v3/echo?second', ALPHA) + head('GET /v3/ws', ...who, ...HANDSHAKE));
    for (const url of ['/v3/echo?first', '/v3/echo?second'])
      expect((await wire.answer()).json().url).toBe(url);
    expect((await wire.answer()).status).not.toBe(101);
    wire.socket.destroy();
    await nothingOpen(stack);
  }
});

test('an open WebSocket counts as in flight, and a shutdown closes it at both ends', async () => {
  const closing = await openStack({ upstream: { url }, limits: { inFlight: 1 } });
  onTestFinished(() => closing.sandbox.close());
  const first = await openOn(closing);
  const refused = await ask(closing.port, WEB_SOCKET);
  expect([refused.status, codeOf(refused)]).toEqual([503, 'overloaded']);
  first.wire.socket.destroy();
  await nothingOpen(closing);
  const { wire, atBackend } = await openOn(closing);
  const atBackendClosed = closed(atBackend);
  const shutdown = closing.shutdown();
  await wire.ended;
  await shutdown;
  await atBackendClosed;
});
