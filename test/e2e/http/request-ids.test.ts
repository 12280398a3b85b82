/** Every answer has one X-Request-Id: the id of its request, which is also in the log line. */
import { describe, expect, onTestFinished, test } from 'vitest';
import { httpBackend, NOT_LISTENING } from '../../support/backend.ts';
import { payoutBody } from '../../support/payout.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, request, Wire } from '../../support/wire.ts';
import { operations } from '../idempotency/requests.ts';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const JSON_BODY = 'Content-Type: application/json';
const PAYOUT = JSON.stringify(payoutBody());
const CHECKOUT = JSON.stringify({ ...payoutBody(), action: 'checkout' });
const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
];

/** A backend may send ids that it made itself, or ids of earlier requests. */
const OF_THE_BACKEND = [
  'X-Request-Id: of-the-backend',
  'x-REQUEST-id: of-the-backend-too',
  'Idempotent-Original-Request-Id: of-the-backend',
];

/** A backend that sends an X-Request-Id. The request selects the status and the size of its response. */
function backendWithIds(): Promise<string> {
  const lines = OF_THE_BACKEND.flatMap((line) => line.split(': '));
  return httpBackend(
    (req, res) => {
      const status = Number(req.headers['x-status'] ?? 201);
      const body = 'x'.repeat(Number(req.headers['x-bytes'] ?? 2));
      if (status === 0) req.socket.destroy();
      else res.writeHead(status, ['Content-Length', `${body.length}`, ...lines]).end(body);
    },
    (server) =>
      server.on('upgrade', (req, socket) => {
        const refuses = req.url === '/v3/no-ws';
        const status = refuses ? '426 Upgrade Required' : '101 Switching Protocols';
        const own = refuses ? ['Content-Length: 0'] : ['Connection: Upgrade', 'Upgrade: websocket'];
        socket
          .on('error', () => {})
          .write([`HTTP/1.1 ${status}`, ...own, ...OF_THE_BACKEND, '', ''].join('\r\n'));
        socket.once('end', () => socket.end()).resume();
      }),
  );
}

async function openBehind(url: string): Promise<Stack> {
  const stack = await openStack({
    operations,
    upstream: { url },
    idempotency: { maxStoredBytes: 1024 },
    limits: { bodyBytes: 2000 },
  });
  onTestFinished(() => stack.close());
  return stack;
}

let sent = 0;

/** Sends the request with a request id. The answer and the log line must have that id. */
async function answered(stack: Stack, bytesWith: (id: string) => string | Buffer) {
  const id = `request-of-test-${++sent}`;
  const bytes = bytesWith(`X-Request-Id: ${id}`);
  const wire = await Wire.open(stack.port);
  const answer = await wire.write(bytes).answer({ bodiless: bytes.toString().startsWith('HEAD') });
  expect(answer.headers['x-request-id']).toEqual([id]);
  wire.socket.end();
  const logged = await until(() =>
    stack.log.find(({ msg, requestId }) => msg === 'request' && requestId === id),
  );
  return { answer, logged };
}

/** The same for a problem of the gateway, whose body must have the id too. Returns its code. */
async function refused(stack: Stack, bytesWith: (id: string) => string | Buffer): Promise<string> {
  const { answer, logged } = await answered(stack, bytesWith);
  const { code, request_id } = answer.json<{ error: { code: string; request_id: string } }>().error;
  expect([logged.requestId, logged.outcome]).toEqual([request_id, code]);
  return code;
}

const POST = 'POST /v1/index.php';
const key = (name: string) => `x-service-idempotency: ${name}`;

test('a response of the backend has the gateway’s request id and not its own', async () => {
  const stack = await openBehind(await backendWithIds());
  const cases: [outcome: string, status: number, line: string, fields: string[], body?: string][] = [
    ['executed', 201, POST, [key('executed')], PAYOUT],
    ['released', 429, POST, [key('released'), 'X-Status: 429'], PAYOUT],
    ['outcome_unknown', 504, POST, [key('of-a-proxy'), 'X-Status: 504'], PAYOUT],
    ['executed', 201, POST, [key('large'), 'X-Bytes: 5000'], PAYOUT],
    ['forwarded', 201, POST, [], PAYOUT],
    ['forwarded', 201, POST, ['X-Bytes: 5000'], PAYOUT],
    ['forwarded', 200, 'GET /v2/get_balance', ['X-Status: 200']],
    ['passed_through', 201, 'PUT /v3/echo', [], 'text'],
    ['passed_through', 304, 'GET /v3/echo', ['X-Status: 304']],
    ['passed_through', 201, 'HEAD /v3/echo', []],
    ['upgraded', 101, 'GET /v3/ws', HANDSHAKE],
    ['upgraded', 426, 'GET /v3/no-ws', HANDSHAKE],
  ];
  for (const [outcome, status, line, fields, body] of cases) {
    const { answer, logged } = await answered(stack, (id) =>
      request(line, [ALPHA, JSON_BODY, id, ...fields], body),
    );
    expect([answer.status, logged.outcome]).toEqual([status, outcome]);
    expect(answer.headers).not.toHaveProperty('idempotent-original-request-id');
  }
});

describe('a problem has the id of its request:', () => {
  test('for every refused request', async () => {
    const stack = await openBehind(await backendWithIds());
    const post = (fields: string[], body = PAYOUT): Parameters<typeof request> => [
      POST,
      [ALPHA, JSON_BODY, ...fields],
      body,
    ];
    const first = request(...post([key('used')]));
    expect((await (await Wire.open(stack.port)).write(first).answer()).status).toBe(201);
    const wrong: [code: string, ...Parameters<typeof request>][] = [
      ['missing_credentials', POST, [], PAYOUT],
      ['invalid_key', POST, ['Authorization: Bearer sk_no'], PAYOUT],
      ['insufficient_scope', 'GET /v3/echo', ['Authorization: Bearer sk_test_balance_only']],
      ['invalid_target', 'GET //v3/echo', [ALPHA]],
      ['invalid_request', 'GET /v3/echo', [ALPHA, 'Host: other.test']],
      ['idempotency_key_invalid', ...post([key('a'), key('b')])],
      ['idempotency_key_required', ...post([], CHECKOUT)],
      ['idempotency_key_reused', ...post([key('used')], JSON.stringify(payoutBody(11)))],
      ['body_too_large', ...post([key('large')], 'x'.repeat(3000))],
      ['outcome_unknown', ...post([key('lost'), 'X-Status: 0'])],
      ['outcome_unknown', ...post([key('lost')])],
      ['outcome_unknown', 'GET /v3/echo', [ALPHA, 'X-Status: 0']],
      ['missing_credentials', 'GET /v3/ws', HANDSHAKE],
    ];
    for (const [code, line, fields, body] of wrong) {
      expect(await refused(stack, (id) => request(line, [id, ...fields], body))).toBe(code);
    }
  });

  test('if the backend cannot be reached', async () => {
    const stack = await openBehind(NOT_LISTENING);
    const unreachable = (id: string) => [
      request(POST, [ALPHA, JSON_BODY, id], PAYOUT),
      head('GET /v3/echo', ALPHA, id),
      head('GET /v3/ws', ALPHA, id, ...HANDSHAKE),
    ];
    for (const at of [0, 1, 2])
      expect(await refused(stack, (id) => unreachable(id)[at] ?? '')).toBe('upstream_unreachable');
  });

  test('if the store cannot be reached', async () => {
    const redis = await startRedis();
    const stack = await openStack(onRedis(redis));
    onTestFinished(() => stack.close());
    await redis.kill();
    const payoutWith = (id: string) => request(POST, [ALPHA, JSON_BODY, id, key('away')], PAYOUT);
    expect(await refused(stack, payoutWith)).toBe('store_unavailable');
  });

  test('if the gateway is overloaded', async () => {
    const stack = await openStack({ limits: { inFlight: 1 } });
    onTestFinished(() => stack.close());
    const slow = await Wire.open(stack.port);
    slow.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: hang'));
    await until(() => stack.sandbox.requests.total() === 1);
    expect(await refused(stack, (id) => head('GET /v3/echo', ALPHA, id))).toBe('overloaded');
    slow.socket.destroy();
  });

  test('malformed HTTP gets a new id', async () => {
    const stack = await openBehind(NOT_LISTENING);
    const cases: [status: number, bytes: string][] = [
      [400, 'GARBAGE\r\n\r\n'],
      [400, head('CONNECT other.test:443')],
      [417, head('GET /v3/echo', ALPHA, 'Expect: a-miracle')],
    ];
    for (const [status, bytes] of cases) {
      const answer = await (await Wire.open(stack.port)).write(bytes).answer();
      expect(answer.status).toBe(status);
      const { request_id } = answer.json<{ error: { request_id: string } }>().error;
      expect(request_id).toMatch(UUID);
      expect(answer.headers['x-request-id']).toEqual([request_id]);
    }
  });
});

test('a request without a well-formed id gets a new one, and its answer has it', async () => {
  const stack = await openBehind(await backendWithIds());
  const twice = ['X-Request-Id: of-the-merchant', 'X-Request-Id: of-the-merchant'];
  for (const fields of [[], ['X-Request-Id: a b'], twice]) {
    for (const line of ['GET /v2/get_balance', 'GET /v3/echo']) {
      const answer = await (await Wire.open(stack.port)).write(head(line, ALPHA, ...fields)).answer();
      const [requestId, ...others] = answer.headers['x-request-id'] ?? [];
      expect(requestId).toMatch(UUID);
      expect(others).toEqual([]);
      await until(() => stack.log.find((one) => one.msg === 'request' && one.requestId === requestId));
    }
  }
});
