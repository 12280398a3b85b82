import { randomUUID } from 'node:crypto';
import { createServer, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { backendForFile, NOT_LISTENING, openBlackHole, rawBackend } from '../../support/backend.ts';
import { withdraw } from '../../support/client.ts';
import { freePort } from '../../support/free-port.ts';
import { expectProblem } from '../../support/problem.ts';
import { nothingOpen, openSandbox, type Stack, stackForFile, stackForTest } from '../../support/stack.ts';
import { ALPHA, ask, BRAVO, codeOf, HANDSHAKE, head, payoutOf, request, Wire } from '../../support/wire.ts';

const RESPONSE_TIMEOUT_MS = 1000;

/** The ways in which a request reaches the backend. */
const ways: [string, () => string | Buffer][] = [
  ['passed through', () => head('GET /v3/echo', ALPHA)],
  ['passed through with a body', () => request('POST /v3/echo', [ALPHA], 'hello')],
  ['executed', () => head('GET /v2/get_balance', ALPHA)],
  ['executed under a key', () => payoutOf(randomUUID())],
  ['a WebSocket', () => head('GET /v3/ws', ALPHA, ...HANDSHAKE)],
];

/** Sends one request in each way, all at once, and expects this problem for all of them. */
async function expectInEachWay(behind: Stack, status: number, code: string): Promise<void> {
  const answers = ways.map(async ([way, bytes]) => {
    const answer = await ask(behind.port, bytes());
    return [way, answer.status, codeOf(answer)];
  });
  expect(await Promise.all(answers)).toEqual(ways.map(([way]) => [way, status, code]));
}

describe('a backend that no byte can reach', () => {
  const unreachable: [string, () => Promise<string>][] = [
    // A label of more than 63 characters: no name server is asked for it.
    ['has a name that does not exist', async () => `http://${'x'.repeat(70)}.test:9000`],
    ['refuses the connection', async () => NOT_LISTENING],
    [
      'does not accept the connection in time',
      async () => {
        const hole = await openBlackHole();
        onTestFinished(hole.close);
        return hole.url;
      },
    ],
    [
      'does not finish the TLS handshake in time',
      async () => (await rawBackend(() => {})).replace('http:', 'https:'),
    ],
    [
      'speaks no TLS',
      async () => {
        const url = await rawBackend((socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'));
        return url.replace('http:', 'https:');
      },
    ],
  ];

  test.each(unreachable)('%s: 502 upstream_unreachable, and the key is free', async (_what, open) => {
    const behind = await stackForTest({ upstream: { url: await open(), connectTimeoutMs: 300 } });
    const key = randomUUID();
    const [refused] = await Promise.all([
      withdraw(behind.url, { key }),
      expectInEachWay(behind, 502, 'upstream_unreachable'),
    ]);
    expectProblem(refused, { status: 502, code: 'upstream_unreachable' });
    expect((await behind.gateway.desk.find('M-ALPHA', key)).kind).not.toBe('found');
  });

  test('is used at once when it comes up', async () => {
    const port = await freePort();
    const behind = await stackForTest({ upstream: { url: `http://127.0.0.1:${port}` } });
    const key = randomUUID();
    await expectInEachWay(behind, 502, 'upstream_unreachable');
    expect((await withdraw(behind.url, { key })).status).toBe(502);
    const late = await openSandbox({ port });
    const paid = await withdraw(behind.url, { key });
    expect([paid.status, paid.headers['idempotent-replayed']]).toEqual([201, undefined]);
    expect((await withdraw(behind.url, { key })).headers['idempotent-replayed']).toBe('true');
    expect(late.requests.ofKey(key)).toBe(1);
  });
});

/** Answers each request that arrives. */
let reply: (socket: Socket) => unknown;
const replying = createServer((socket) =>
  socket.on('data', (bytes) => {
    if (bytes.includes(' HTTP/1.1\r\n')) reply(socket);
  }),
);
const behind = await stackForFile({
  upstream: { url: await backendForFile(replying), responseTimeoutMs: RESPONSE_TIMEOUT_MS },
});

describe('a backend that', () => {
  test.each<[string, number, typeof reply]>([
    ['resets the connection', 502, (socket) => socket.resetAndDestroy()],
    ['closes without a response', 502, (socket) => socket.end()],
    ['answers garbage', 502, (socket) => socket.end('garbage\r\n\r\n')],
    ['does not answer', 504, () => {}],
  ])('gets a request and %s: %i outcome_unknown', async (_what, status, replies) => {
    reply = replies;
    await expectInEachWay(behind, status, 'outcome_unknown');
  });

  test('resets a connection at the moment when it gets a request: not sent again, and 502 outcome_unknown', async () => {
    for (const [way, bytes] of ways.filter(([name]) => name !== 'a WebSocket')) {
      let requests = 0;
      reply = (socket) => {
        requests++;
        if (requests === 1) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}');
        else socket.resetAndDestroy();
      };
      expect((await ask(behind.port, bytes())).status).toBe(200);
      const answer = await ask(behind.port, bytes());
      expect([way, answer.status, codeOf(answer), requests]).toEqual([way, 502, 'outcome_unknown', 2]);
    }
  });

  test('sends a body where there is none: it is not the response to the next request', async () => {
    const rows = [
      ['HEAD /v3/export', '200 OK', 'Content-Length: 42'],
      ['HEAD /v3/export', '200 OK', 'Transfer-Encoding: chunked'],
      ['GET /v3/export', '204 No Content', 'Content-Length: 42'],
      ['GET /v3/export', '304 Not Modified', 'Transfer-Encoding: chunked'],
    ] as const;
    for (const [line, status, field] of rows) {
      const answered = new Set<Socket>();
      reply = (socket) => {
        const isFirst = answered.size === 0;
        // The body of the first response is late: it comes with the next request of that connection.
        if (answered.has(socket)) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL');
        answered.add(socket);
        socket.write(`HTTP/1.1 ${isFirst ? `${status}\r\n${field}` : '200 OK\r\nContent-Length: 4'}\r\n\r\n`);
        if (!isFirst) socket.write('MINE');
      };
      const wire = await Wire.open(behind.port);
      wire.write(head(line, ALPHA));
      await wire.hears('\r\n\r\n');
      await nothingOpen(behind);
      const next = await ask(behind.port, head('GET /v3/mine', BRAVO));
      expect([line, field, next.body.toString()]).toEqual([line, field, 'MINE']);
    }
  });

  test.each([
    ['with Content-Length', 'Content-Length: 10\r\n\r\n12345'],
    ['in chunks', 'Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n'],
    ['within a chunk', 'Transfer-Encoding: chunked\r\n\r\na\r\n12345'],
  ])('truncates its response %s: it does not look complete', async (_how, framing) => {
    reply = (socket) => socket.write(`HTTP/1.1 200 OK\r\n${framing}`, () => socket.destroy());
    const wire = await Wire.open(behind.port);
    wire.write(head('GET /v3/download', ALPHA));
    await wire.hears('12345');
    await expect(wire.answer()).rejects.toThrow('the connection ended');
    expect(wire.rest).not.toContain('\r\n0\r\n');
  });

  test('takes longer than responseTimeoutMs for the body of what is passed through is not cut off', async () => {
    reply = async (socket) => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345');
      await sleep(RESPONSE_TIMEOUT_MS + 600);
      socket.write('67890');
    };
    const answer = await ask(behind.port, head('GET /v3/download', ALPHA));
    expect(answer.body.toString()).toBe('1234567890');
  });
});
