/** Every answer has one X-Request-Id: the id of its request, which is also in the log line. A replay names the first request too. */
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { type OpenBackend, openBackend } from '../../support/backend.ts';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { executionOf } from '../../support/execution.ts';
import { payoutBody } from '../../support/payout.ts';
import { expectProblem } from '../../support/problem.ts';
import { openGateway, openStack, type Stack, type TestGateway } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, HANDSHAKE, head, request, Wire } from '../../support/wire.ts';
import { idsOf } from '../idempotency/answers.ts';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const JSON_BODY = 'Content-Type: application/json';
const PAYOUT = JSON.stringify(payoutBody());

/** A backend may send ids that it made itself, or ids of earlier requests. */
const OF_THE_BACKEND = [
  'X-Request-Id: of-the-backend',
  'x-REQUEST-id: of-the-backend-too',
  'Idempotent-Original-Request-Id: of-the-backend',
  'Idempotent-Replayed: true',
];

describe('in front of a backend that sends an X-Request-Id', () => {
  let backend: OpenBackend;
  let stack: Stack;
  beforeAll(async () => {
    const lines = OF_THE_BACKEND.flatMap((line) => line.split(': '));
    const server = createServer((req, res) => {
      const body = 'x'.repeat(Number(req.headers['x-bytes'] ?? 2));
      const status = Number(req.headers['x-status'] ?? 201);
      if (status === 0) req.socket.destroy();
      else res.writeHead(status, ['Content-Length', `${body.length}`, ...lines]).end(body);
    });
    server.on('upgrade', (req, socket) => {
      const refuses = req.url === '/v3/no-ws';
      const status = refuses ? '426 Upgrade Required' : '101 Switching Protocols';
      const own = refuses
        ? ['Content-Length: 0', 'Connection: close']
        : ['Connection: Upgrade', 'Upgrade: websocket'];
      socket.write([`HTTP/1.1 ${status}`, ...own, ...OF_THE_BACKEND, '', ''].join('\r\n'));
      socket.once('end', () => socket.end()).resume();
    });
    backend = await openBackend(server);
    stack = await openStack({
      upstream: { url: backend.url },
      idempotency: { maxStoredBytes: 1024 },
    });
  });
  afterAll(async () => {
    await stack.close();
    await backend.close();
  });

  const loggedWith = (id: string | undefined) =>
    until(() => stack.log.find(({ msg, requestId }) => msg === 'request' && requestId === id));
  const POST = 'POST /v1/index.php';
  const key = (name: string) => `x-service-idempotency: ${name}`;

  it('each answer and its log line have the id of the request, and not that of the backend', async () => {
    const used = request(POST, [ALPHA, key('used')], PAYOUT);
    expect((await (await Wire.open(stack.port)).write(used).answer()).status).toBe(201);
    const cases: [outcome: string, status: number, line: string, fields: string[], body?: string][] = [
      ['executed', 201, POST, [ALPHA, key('executed')], PAYOUT],
      ['replayed', 201, POST, [ALPHA, key('executed')], PAYOUT],
      ['released', 429, POST, [ALPHA, key('released'), 'X-Status: 429'], PAYOUT],
      ['outcome_unknown', 504, POST, [ALPHA, key('of-a-proxy'), 'X-Status: 504'], PAYOUT],
      ['executed', 201, POST, [ALPHA, key('large'), 'X-Bytes: 5000'], PAYOUT],
      ['forwarded', 201, POST, [ALPHA], PAYOUT],
      ['forwarded', 201, POST, [ALPHA, 'X-Bytes: 5000'], PAYOUT],
      ['forwarded', 200, 'GET /v2/get_balance', [ALPHA, 'X-Status: 200']],
      ['passed_through', 201, 'PUT /v3/echo', [ALPHA], 'text'],
      ['passed_through', 304, 'GET /v3/echo', [ALPHA, 'X-Status: 304']],
      ['passed_through', 201, 'HEAD /v3/echo', [ALPHA]],
      ['upgraded', 101, 'GET /v3/ws', [ALPHA, ...HANDSHAKE]],
      ['upgraded', 426, 'GET /v3/no-ws', [ALPHA, ...HANDSHAKE]],
      ['invalid_request', 400, 'GET /v3/echo', [ALPHA, 'Host: other.test']],
      ['idempotency_key_reused', 422, POST, [ALPHA, key('used')], JSON.stringify(payoutBody(11))],
      ['outcome_unknown', 502, POST, [ALPHA, key('lost'), 'X-Status: 0'], PAYOUT],
      ['outcome_unknown', 502, 'GET /v3/echo', [ALPHA, 'X-Status: 0']],
    ];
    await eachRowInTurn(cases, async ([outcome, status, line, fields, body]) => {
      const id = `request-${randomUUID()}`;
      const wire = await Wire.open(stack.port);
      wire.write(request(line, [JSON_BODY, `X-Request-Id: ${id}`, ...fields], body));
      const answer = await wire.answer({ bodiless: line.startsWith('HEAD') });
      expect(answer.headers['x-request-id']).toEqual([id]);
      const original = outcome === 'replayed' ? 1 : 0;
      expect(answer.headers['idempotent-original-request-id'] ?? []).toHaveLength(original);
      expect(answer.headers['idempotent-original-request-id'] ?? []).not.toContain('of-the-backend');
      wire.socket.end();
      expect([answer.status, (await loggedWith(id)).outcome]).toEqual([status, outcome]);
      if (answer.headers['content-type']?.[0] === 'application/problem+json')
        expect(answer.json().error).toMatchObject({ code: outcome, request_id: id });
    });
  });

  it('a request without one well-formed id gets a new one', async () => {
    const twice = ['X-Request-Id: of-the-merchant', 'X-Request-Id: of-the-merchant'];
    const ids = ['short', 'x'.repeat(129), 'with space', 'a"b"c"d"e', '12345678, 87654321'];
    await eachRowInTurn([[], twice, ...ids.map((id) => [`X-Request-Id: ${id}`])], async (fields) => {
      for (const line of ['GET /v2/get_balance', 'GET /v3/echo']) {
        const answer = await (await Wire.open(stack.port)).write(head(line, ALPHA, ...fields)).answer();
        expect(answer.headers['x-request-id']).toEqual([expect.stringMatching(UUID)]);
        await loggedWith(answer.headers['x-request-id']?.[0]);
      }
    });
    for (const malformed of ['GARBAGE\r\n\r\n', head('CONNECT other.test:443')]) {
      const answer = await (await Wire.open(stack.port)).write(malformed).answer();
      const { request_id } = answer.json<{ error: { request_id: string } }>().error;
      expect([[request_id], request_id]).toEqual([
        answer.headers['x-request-id'],
        expect.stringMatching(UUID),
      ]);
    }
  });
});

describe('a replay', () => {
  let stack: Stack;
  let second: TestGateway;
  beforeAll(async () => {
    stack = await openStack({ idempotency: { maxStoredBytes: 1024 } });
    second = await openGateway(stack.config);
  });
  afterAll(async () => {
    await second.shutdown();
    await stack.close();
  });

  const replayed = ({ headers }: TestAnswer) => headers['idempotent-replayed'];
  /** A payout with a request id. */
  const pay = (url: string, key: string, id: string, fault?: string) =>
    withdraw(url, { key, headers: { 'X-Request-Id': id }, ...(fault === undefined ? {} : { fault }) });

  it('has its own request id and that of the first request, at each gateway', async () => {
    const key = randomUUID();
    const first = await pay(stack.url, key, 'the-first');
    expect(idsOf(first)).toEqual({ own: ['the-first'], first: [] });
    for (const [at, url] of [stack.url, second.url, stack.url].entries()) {
      const again = await pay(url, key, `retry-no-${at}`);
      expect([replayed(again), idsOf(again)]).toEqual([
        'true',
        { own: [`retry-no-${at}`], first: ['the-first'] },
      ]);
    }
  });

  it.each([
    ['of a response that was too large to store', 'huge=5000', 'response_not_stored'],
    ['of a key in doubt', 'execute-then-reset', 'outcome_unknown'],
  ] as const)('that is refused because %s names the first request', async (_, fault, code) => {
    const key = randomUUID();
    expect(idsOf(await pay(stack.url, key, 'the-first', fault))).toEqual({ own: ['the-first'], first: [] });
    const again = await pay(second.url, key, 'the-retry');
    expectProblem(again, { status: 409, code });
    expect(idsOf(again)).toEqual({ own: ['the-retry'], first: ['the-first'] });
  });

  it('of a key that was resolved names the first request', async () => {
    const key = randomUUID();
    await pay(stack.url, key, 'the-first', 'execute-then-reset');
    const { desk } = stack.gateway;
    const scope = recordIdOf('gateway', 'M-ALPHA', key);
    const resolved = await desk.answer({
      ...{ kind: 'resolve', scope, execution: await executionOf(desk, scope) },
      ...{ by: 'ada', reason: 'the books show it' },
      ...{ as: 'completed', status: 201, headers: ['X-Request-Id', 'of-the-books', 'X-Kept', '1'], body: '' },
    });
    expect(resolved.kind).toBe('found');
    const replay = await pay(second.url, key, 'the-retry');
    expect([replay.status, replayed(replay), replay.headers['x-kept']]).toEqual([201, 'true', '1']);
    expect(idsOf(replay)).toEqual({ own: ['the-retry'], first: ['the-first'] });
  });
});
