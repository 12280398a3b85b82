/** The merchant gets the answer that the backend sent: status, fields and body. */
import { createServer, type Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { backendForFile } from '../../support/backend.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { stackForFile } from '../../support/stack.ts';
import { ALPHA, head, payoutOf, Wire } from '../../support/wire.ts';

/** What the backend says to each request, in Latin-1. The test may say more on the socket. */
let said = '';
let socket: Socket | undefined;
const url = await backendForFile(
  createServer((opened) => {
    socket = opened;
    opened.on('data', () => {
      opened.write(said, 'latin1');
      if (said.startsWith('HTTP/1.0')) opened.end();
    });
  }),
);
const stack = await stackForFile({ upstream: { url } });

const EVERY_BYTE = String.fromCharCode(...Array(256).keys());
const ZIPPED = gzipSync('{"success":true}').toString('latin1');

let keys = 0;
const underAKey = () => payoutOf(`order-${keys++}`);
/** The ways in which a request reaches the backend. Under a key, the second request with the same bytes gets a replay. */
const ways: [string, () => string | Buffer][] = [
  ['passed through', () => head('GET /v3/echo', ALPHA)],
  ['executed', () => head('GET /v2/get_balance', ALPHA)],
  ['executed under a key', underAKey],
];

/** Two answers to the same bytes. */
async function twice(bytes: string | Buffer) {
  const wire = await Wire.open(stack.port);
  return [await wire.write(bytes).answer(), await wire.write(bytes).answer()];
}

/** The answer without the headers that the gateway may add. */
const own = (lines: readonly string[]) => lines.filter((line) => !OF_THE_GATEWAY.test(line));
const OF_THE_GATEWAY =
  /^(?:content-length|date|connection|keep-alive|x-request-id|idempotent-(?:replayed|original-request-id)):/i;

describe.each(ways)('%s', (_way, bytes) => {
  test('the fields are as they were written', async () => {
    const fields = ['X-Two: 1', 'x-two: 2', '__proto__: x', 'constructor: c', 'X_Under: a', 'Location: /x'];
    const cookies = ['Set-Cookie: a', 'set-cookie: b'];
    const all = [...fields, ...cookies];
    said = `HTTP/1.1 200 OK\r\nContent-Length: 2\r\n${all.join('\r\n')}\r\n\r\nok`;
    const answers = await twice(bytes());
    // Cookies belong to the first request, so a replay has none.
    expect(answers.map(({ lines }) => own(lines))).toEqual([all, bytes === underAKey ? fields : all]);
  });

  // Node decodes the value as UTF-8 if Content-Length comes before it, and throws if it is not valid UTF-8.
  test('a Content-Disposition behind a Content-Length is as it was written', async () => {
    const names = [
      Buffer.from('ü.pdf').toString('latin1'),
      Buffer.from('€.pdf').toString('latin1'),
      '\xdc.pdf',
    ];
    await eachRowInTurn(names, async (name) => {
      const field = `Content-Disposition: attachment; filename="${name}"`;
      said = `HTTP/1.1 200 OK\r\nContent-Length: 2\r\n${field}\r\n\r\nok`;
      for (const answer of await twice(bytes()))
        expect([answer.status, own(answer.lines), answer.body.toString()]).toEqual([200, [field], 'ok']);
    });
  });

  test.each([204, 304])('%i has no body, and the next bytes are the next answer', async (status) => {
    said = `HTTP/1.1 ${status} Nothing\r\n\r\n`;
    for (const answer of await twice(bytes())) {
      expect(answer.status).toBe(status);
      expect(answer.headers).not.toHaveProperty('transfer-encoding');
      expect(answer.headers['content-length'] ?? ['0']).toEqual(['0']);
    }
  });

  test('fields of the connection are not passed on', async () => {
    said =
      'HTTP/1.1 200 OK\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\n' +
      'Proxy-Authenticate: Basic\r\nTrailer: X-Sum\r\nUpgrade: h2c\r\nX-Kept: 1\r\nContent-Length: 4\r\n\r\nbody';
    for (const answer of await twice(bytes())) {
      expect(own(answer.lines)).toEqual(['X-Kept: 1']);
      // The backend's connection is closed; the merchant's stays open.
      expect(answer.headers).toMatchObject({ connection: ['keep-alive'], 'keep-alive': ['timeout=65'] });
    }
  });
});

const CREATED = 'HTTP/1.1 201 Created\r\n';
const TYPE = 'Content-Type: application/json';
const TEXT = '{"until":"the end"}';
/** What the backend says, and which fields and which body the merchant gets, also from a replay. */
const bodies: [what: string, said: string, fields: string[], body: string][] = [
  ['every byte', `${CREATED}Content-Length: 256\r\n\r\n${EVERY_BYTE}`, ['Content-Length: 256'], EVERY_BYTE],
  [
    'a coding that nobody asked for',
    `${CREATED}Content-Encoding: gzip\r\nContent-Length: ${ZIPPED.length}\r\n\r\n${ZIPPED}`,
    ['Content-Encoding: gzip', `Content-Length: ${ZIPPED.length}`],
    ZIPPED,
  ],
  [
    'chunks, which become a length',
    `${CREATED}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n`,
    ['Content-Length: 7'],
    'abcdefg',
  ],
  [
    'the end of the connection, which becomes a length',
    `HTTP/1.0 201 Created\r\n${TYPE}\r\n\r\n${TEXT}`,
    [TYPE, `Content-Length: ${TEXT.length}`],
    TEXT,
  ],
  ['no byte', `${CREATED}Content-Length: 0\r\n\r\n`, ['Content-Length: 0'], ''],
];

test('the body of an answer to a payout is what the backend said, byte for byte, also of a replay', async () => {
  await eachRowInTurn(bodies, async ([, text, fields, body]) => {
    said = text;
    const answers = await twice(underAKey());
    for (const { status, lines, body: bytes } of answers) {
      const got = lines.filter((line) => /^content-/i.test(line));
      expect([status, got, bytes.toString('latin1')]).toEqual([201, fields, body]);
    }
    expect(answers.map(({ headers }) => headers['idempotent-replayed'])).toEqual([undefined, ['true']]);
  });
});

test('status, reason and bytes of every answer that is passed through are unchanged', async () => {
  await eachRowInTurn([200, 201, 206, 301, 401, 404, 418, 500, 503, 599], async (status) => {
    said = `HTTP/1.1 ${status} Stra\xdfe\r\nX-City: K\xf6ln\r\nContent-Length: 6\r\n\r\n`;
    const wire = (await Wire.open(stack.port)).write(head('GET /v3/echo', ALPHA));
    // The head arrives before the body.
    await wire.hears('\r\n\r\n');
    expect(wire.rest).toContain(`HTTP/1.1 ${status} Stra\xdfe\r\nX-City: K\xf6ln\r\n`);
    socket?.write(Buffer.from([0, 255, 13, 10, 13, 10]));
    expect([...(await wire.answer()).body]).toEqual([0, 255, 13, 10, 13, 10]);
  });
});

test('HEAD has the head of the answer and no body, refused or not', async () => {
  said = 'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n';
  const wire = await Wire.open(stack.port);
  for (const path of ['/v3/echo', '/v2/get_balance']) {
    const answer = await wire.write(head(`HEAD ${path}`, ALPHA)).answer({ bodiless: true });
    expect([answer.status, answer.headers['content-length']]).toEqual([200, ['500']]);
  }
  const refused = await wire.write(head('HEAD /v3/echo', 'Connection: close')).answer({ bodiless: true });
  expect(refused.status).toBe(401);
  await wire.ended;
  expect(wire.rest).toBe('');
});
