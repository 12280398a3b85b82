/** Every answer has one X-Request-Id: the id of its request, which is also in the log line. A replay names the first request too. */
import { createServer } from 'node:http';
import { expect, it } from 'vitest';
import { backendForFile } from '../../support/backend.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { payoutBody } from '../../support/payout.ts';
import { stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, ask, HANDSHAKE, head, request, Wire } from '../../support/wire.ts';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const POST = 'POST /v1/index.php';
const PAYOUT = JSON.stringify(payoutBody());

/** A backend may send ids that it made itself, or ids of earlier requests. */
const OF_THE_BACKEND = [
  'X-Request-Id: of-the-backend',
  'x-REQUEST-id: of-the-backend-too',
  'Idempotent-Original-Request-Id: of-the-backend',
  'Idempotent-Replayed: true',
];
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
const url = await backendForFile(server);
const stack = await stackForFile({ upstream: { url }, idempotency: { maxStoredBytes: 1024 } });

const loggedWith = (id: string | undefined) =>
  until(() => stack.log.find(({ msg, requestId }) => msg === 'request' && requestId === id));

interface Case {
  outcome: string;
  status: number;
  line: string;
  fields?: string[];
  body?: string;
  /** The id of the first request with its key, if that is another one. */
  first?: string;
}

const pay = (key: string, more: string[] = []) => ({
  ...{ line: POST, body: PAYOUT, fields: [`x-service-idempotency: ${key}`, ...more] },
});
const other = JSON.stringify(payoutBody(11));
/** The n-th has the id `request-n`. */
const cases: Case[] = [
  { outcome: 'executed', status: 201, ...pay('used') },
  { outcome: 'executed', status: 201, ...pay('large', ['X-Bytes: 5000']) },
  { outcome: 'outcome_unknown', status: 502, ...pay('lost', ['X-Status: 0']) },
  { outcome: 'replayed', status: 201, ...pay('used'), first: 'request-1' },
  { outcome: 'response_not_stored', status: 409, ...pay('large'), first: 'request-2' },
  { outcome: 'outcome_unknown', status: 409, ...pay('lost'), first: 'request-3' },
  { outcome: 'idempotency_key_reused', status: 422, ...pay('used'), body: other },
  { outcome: 'forwarded', status: 201, line: POST, body: PAYOUT },
  { outcome: 'forwarded', status: 200, line: 'GET /v2/get_balance', fields: ['X-Status: 200'] },
  { outcome: 'passed_through', status: 201, line: 'PUT /v3/echo', body: 'text' },
  { outcome: 'passed_through', status: 201, line: 'HEAD /v3/echo' },
  { outcome: 'upgraded', status: 101, line: 'GET /v3/ws', fields: HANDSHAKE },
  { outcome: 'upgraded', status: 426, line: 'GET /v3/no-ws', fields: HANDSHAKE },
  { outcome: 'invalid_request', status: 400, line: 'GET /v3/echo', fields: ['Host: other.test'] },
  { outcome: 'outcome_unknown', status: 502, line: 'GET /v3/echo', fields: ['X-Status: 0'] },
];

it('each answer and its log line have the id of the request, and not that of the backend', async () => {
  let sent = 0;
  await eachRowInTurn(cases, async ({ outcome, status, line, fields = [], body, first }) => {
    const id = `request-${++sent}`;
    const wire = await Wire.open(stack.port);
    wire.write(request(line, [ALPHA, `X-Request-Id: ${id}`, ...fields], body));
    const answer = await wire.answer({ bodiless: line.startsWith('HEAD') });
    expect(answer.headers['x-request-id']).toEqual([id]);
    expect(answer.headers['idempotent-original-request-id']).toEqual(first && [first]);
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
      const answer = await ask(stack.port, head(line, ALPHA, ...fields));
      expect(answer.headers['x-request-id']).toEqual([expect.stringMatching(UUID)]);
      await loggedWith(answer.headers['x-request-id']?.[0]);
    }
  });
  for (const malformed of ['GARBAGE\r\n\r\n', head('CONNECT other.test:443')]) {
    const answer = await ask(stack.port, malformed);
    const { request_id } = answer.json<{ error: { request_id: string } }>().error;
    expect([[request_id], request_id]).toEqual([answer.headers['x-request-id'], expect.stringMatching(UUID)]);
  }
});
