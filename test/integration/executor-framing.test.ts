/** Which responses count as complete, by how they show their end and how their connection ends. */
import { readFileSync } from 'node:fs';
import { createServer as createNetServer, type Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { createSecureContext, TLSSocket } from 'node:tls';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Executor } from '../../src/backend/executor.ts';
import { upstreamOptions } from '../../src/backend/upstream-options.ts';
import type { ClientTls } from '../../src/lib/certificate.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { type OpenBackend, openBackend } from '../support/backend.ts';
import { Authority } from '../support/certificates.ts';
import { eachRowInTurn } from '../support/each-row.ts';

const MAX_BYTES = 1000;
/** What the backend does after it has sent these bytes. `fin` over TLS: without close_notify. */
type End = 'stays' | 'closes' | 'fin' | 'rst';
type Row = [what: string, bytes: string, end: End, kind: 'complete' | 'unknown', method?: string];

const authority = new Authority();
const files = authority.issue();
const [key, cert] = [readFileSync(files.key), readFileSync(files.cert)];
const trust = {
  options: { secureContext: createSecureContext({ ca: authority.caBytes }) },
  certificate: { onChange: () => {} },
} as unknown as ClientTls;

let reply: { bytes: string; end: End };
const executors: Executor[] = [];
const servers: OpenBackend[] = [];
let plain: Executor;
let trusting: Executor;
let encrypted: Executor;

/** A TLS server on a socket that it can end without close_notify. */
function tlsOver(raw: Socket): TLSSocket {
  const wire = new Duplex({ read() {}, write: (chunk, _encoding, done) => raw.write(chunk, done) });
  raw.on('data', (chunk) => wire.push(chunk));
  wire.on('finish', () => raw.end());
  return new TLSSocket(wire, { isServer: true, key, cert }).on('error', () => {});
}

async function executorFor(secure: boolean, endOfConnection: 'trusted' | 'untrusted'): Promise<Executor> {
  const server = createNetServer((raw) => {
    const socket = secure ? tlsOver(raw) : raw;
    socket.on('data', () => {
      const { bytes, end } = reply;
      socket.write(bytes, () => {
        if (end === 'closes') socket.end();
        else if (end === 'fin') raw.end();
        else if (end === 'rst') raw.resetAndDestroy();
      });
    });
  });
  const backend = await openBackend(server);
  servers.push(backend);
  const url = secure ? backend.url.replace('http:', 'https:') : backend.url;
  const options = upstreamOptions.parse({ url, endOfConnection, responseTimeoutMs: 20_000 });
  const executor = new Executor(options, MAX_BYTES, systemClock, secure ? trust : undefined);
  executors.push(executor);
  return executor;
}

beforeAll(async () => {
  plain = await executorFor(false, 'untrusted');
  trusting = await executorFor(false, 'trusted');
  encrypted = await executorFor(true, 'untrusted');
});
afterAll(async () => {
  for (const executor of executors) await executor.destroy();
  for (const server of servers) await server.close();
});

const send = async (executor: Executor, bytes: string, end: End, method = 'POST') => {
  reply = { bytes, end };
  return await executor.send({ method, target: '/', headers: [], body: Buffer.from('x') });
};

const allAre = (executor: Executor, rows: readonly Row[]) =>
  eachRowInTurn(rows, async ([, bytes, end, kind, method]) =>
    expect((await send(executor, bytes, end, method)).kind).toBe(kind),
  );

const head = (...fields: string[]) => ['HTTP/1.1 201 Created', ...fields, '', ''].join('\r\n');
const TEXT = 'Content-Type: text/plain';
const JSON_TYPE = 'Content-Type: application/json';
const CHUNKED = 'Transfer-Encoding: chunked';
const old = (bytes: string) => bytes.replace('HTTP/1.1', 'HTTP/1.0');
const json = (body: string, ...fields: string[]) => `${head(JSON_TYPE, ...fields)}${body}`;

it('a response with an end of its own is complete when that end was read, and never before', async () => {
  await allAre(plain, [
    ['a length', `${head('Content-Length: 5')}hello`, 'stays', 'complete'],
    ['a length, of HTTP/1.0', old(`${head('Content-Length: 5')}hello`), 'closes', 'complete'],
    ['a length, and a reset behind it', `${head('Content-Length: 5')}hello`, 'rst', 'complete'],
    ['a length of 0', head('Content-Length: 0'), 'stays', 'complete'],
    ['a length, cut', `${head('Content-Length: 5')}hell`, 'closes', 'unknown'],
    ['a length, whole JSON before it, cut', json('{}', 'Content-Length: 9'), 'closes', 'unknown'],
    ['a length, reset', `${head('Content-Length: 5')}hell`, 'rst', 'unknown'],
    ['two lengths', `${head('Content-Length: 2', 'Content-Length: 5')}{}`, 'closes', 'unknown'],
    ['chunks', `${head(CHUNKED)}5\r\nhello\r\n0\r\n\r\n`, 'stays', 'complete'],
    ['chunks, of HTTP/1.0', old(`${head(CHUNKED)}5\r\nhello\r\n0\r\n\r\n`), 'closes', 'complete'],
    ['chunks, of HTTP/1.0, cut', old(`${head(CHUNKED)}5\r\nhello\r\n`), 'closes', 'unknown'],
    ['chunks, without the last one', `${head(CHUNKED)}5\r\nhello\r\n`, 'closes', 'unknown'],
    ['chunks, whole JSON, without the last one', `${json('2\r\n{}\r\n', CHUNKED)}`, 'closes', 'unknown'],
    ['chunks, reset', `${head(CHUNKED)}5\r\nhello\r\n`, 'rst', 'unknown'],
    [
      'another coding in chunks',
      `${head('Transfer-Encoding: gzip, chunked')}2\r\n{}\r\n0\r\n\r\n`,
      'stays',
      'unknown',
    ],
    ['both', `${head('Content-Length: 5', CHUNKED)}5\r\nhello\r\n0\r\n\r\n`, 'closes', 'unknown'],
    ['no body by its status', 'HTTP/1.1 204 No Content\r\n\r\n', 'stays', 'complete'],
    [
      'a length, behind 103',
      `HTTP/1.1 103 Early Hints\r\n\r\n${head('Content-Length: 0')}`,
      'stays',
      'complete',
    ],
    [
      'a length, behind an unsolicited 100',
      `HTTP/1.1 100 Continue\r\n\r\n${head('Content-Length: 0')}`,
      'stays',
      'unknown',
    ],
    [
      'a length, and a head over 16 KiB',
      head(`X-Long: ${'x'.repeat(17_000)}`, 'Content-Length: 0'),
      'stays',
      'unknown',
    ],
    ['no body by its status, and a reset behind it', 'HTTP/1.1 304 Not Modified\r\n\r\n', 'rst', 'complete'],
    ['no body by the method', head(TEXT), 'closes', 'complete', 'HEAD'],
  ]);
});

it('a response without an end of its own is complete only if it is whole JSON, and its connection ended well', async () => {
  await allAre(plain, [
    ['an object', json('{"id":1}'), 'closes', 'complete'],
    ['an array, of HTTP/1.0', old(json('[]')), 'closes', 'complete'],
    [
      'a type with a suffix',
      `${head('content-type: Application/Problem+JSON; a=b')}{} `,
      'closes',
      'complete',
    ],
    ['an object, reset', json('{"id":1}'), 'rst', 'unknown'],
    ['an object, cut', json('{"id":1'), 'closes', 'unknown'],
    ['an object, cut and reset', json('{"id":1'), 'rst', 'unknown'],
    ['a number, perhaps cut', json('12'), 'closes', 'unknown'],
    ['nothing', json(''), 'closes', 'unknown'],
    ['the head, reset', json(''), 'rst', 'unknown'],
    ['two objects', json('{}{}'), 'closes', 'unknown'],
    ['a content coding', json('{}', 'Content-Encoding: br'), 'closes', 'unknown'],
    ['chunks in another coding', json('{', 'Transfer-Encoding: chunked, gzip'), 'closes', 'unknown'],
    [
      'a length, but another coding',
      json('{', 'Content-Length: 1', 'Transfer-Encoding: gzip'),
      'closes',
      'unknown',
    ],
    ['two types', json('{}', TEXT), 'closes', 'unknown'],
    ['a text', `${head(TEXT)}{}`, 'closes', 'unknown'],
    ['no type', `${head()}{}`, 'closes', 'unknown'],
    ['a text, of HTTP/1.0', old(`${head(TEXT)}hello`), 'closes', 'unknown'],
    ['a text, reset', `${head(TEXT)}hel`, 'rst', 'unknown'],
  ]);
  // What came is kept for a request without a key, unless it was cut for sure.
  expect(await send(plain, `${head(TEXT)}hello`, 'closes')).toHaveProperty('response.status', 201);
  expect(await send(plain, `${head(TEXT)}hel`, 'rst')).not.toHaveProperty('response');
});

it('endOfConnection: trusted believes every end of the connection but a reset', async () => {
  await allAre(trusting, [
    ['a text', `${head(TEXT)}hello`, 'closes', 'complete'],
    ['nothing, of HTTP/1.0', old(head(TEXT)), 'closes', 'complete'],
    ['a text, reset', `${head(TEXT)}hel`, 'rst', 'unknown'],
    ['the head, reset', head(TEXT), 'rst', 'unknown'],
    ['a length, cut', `${head('Content-Length: 5')}hell`, 'closes', 'unknown'],
  ]);
});

it('over TLS a response without an end of its own is complete only if it is whole JSON', async () => {
  await allAre(encrypted, [
    ['an object', json('{"id":1}'), 'closes', 'complete'],
    // Node does not show that close_notify is missing. What was read is a whole object nevertheless.
    ['an object, without close_notify', json('{"id":1}'), 'fin', 'complete'],
    ['an object, cut without close_notify', json('{"id":1'), 'fin', 'unknown'],
    ['an object, reset', json('{"id":1}'), 'rst', 'unknown'],
    ['a text', `${head(TEXT)}hello`, 'closes', 'unknown'],
    ['a text, cut without close_notify', `${head(TEXT)}hel`, 'fin', 'unknown'],
    ['a length, without close_notify', `${head('Content-Length: 5')}hello`, 'fin', 'complete'],
  ]);
});

it('a response without an end of its own that is too large to store is streamed whole, or breaks off if it was reset', async () => {
  const bytes = `${head(TEXT)}${'x'.repeat(2 * MAX_BYTES)}`;
  for (const [end, expected] of [
    ['closes', 2 * MAX_BYTES],
    ['rst', 'StreamCut'],
  ] as const) {
    const result = await send(plain, bytes, end);
    if (result.kind !== 'oversize') throw new Error(`not oversize: ${result.kind}`);
    const read = await result.body.toArray().then(
      (chunks) => Buffer.concat(chunks).length,
      ({ name }: Error) => name,
    );
    expect(read).toBe(expected);
  }
});

it('a response that comes before the request was sent whole is complete', async () => {
  reply = { bytes: `${head('Content-Length: 5')}early`, end: 'stays' };
  const body = Buffer.alloc(30_000_000);
  expect(await plain.send({ method: 'POST', target: '/', headers: [], body })).toMatchObject({
    kind: 'complete',
    response: { body: Buffer.from('early') },
  });
});
