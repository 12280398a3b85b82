import { randomUUID } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { rawBackend } from '../../support/backend.ts';
import { Authority } from '../../support/certificates.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { nothingOpen, type Stack, stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, ask, chunk, codeOf, head, LAST_CHUNK, payoutOf, request, Wire } from '../../support/wire.ts';

const authority = new Authority();
const [stack, encrypted] = await Promise.all([
  stackForFile(),
  stackForFile({ listen: { tls: authority.issue() } }),
]);

const CHUNKED = 'Transfer-Encoding: chunked';
/** A request that must never be read as one. Its credentials are valid, so that the gateway would send it. */
const SMUGGLED = head('POST /v3/smuggled', ALPHA);
const PASSED_THROUGH = 'POST /v3/echo';
const EXECUTED = 'POST /v1/index.php';

/** Fields that two parsers could read as different framings. */
const fields: [string, string[]][] = [
  ['Content-Length and Transfer-Encoding', ['Content-Length: 3', CHUNKED]],
  ['Transfer-Encoding and Content-Length', [CHUNKED, 'Content-Length: 3']],
  ['two equal lengths', ['Content-Length: 3', 'Content-Length: 3']],
  ['two different lengths', ['Content-Length: 3', 'Content-Length: 300']],
  ['a list of lengths', ['Content-Length: 3, 3']],
  ['a length and its list', ['Content-Length: 3', 'Content-Length: 3, 3']],
  ['a signed length', ['Content-Length: +3']],
  ['a negative length', ['Content-Length: -3']],
  ['a length with a sign behind it', ['Content-Length: 3-']],
  ['a length in hexadecimal', ['Content-Length: 0x3']],
  ['a length in two words', ['Content-Length: 3 3']],
  ['a length with a dot', ['Content-Length: 3.0']],
  ['a length in quotes', ['Content-Length: "3"']],
  ['a length in letters beyond ASCII', ['Content-Length: \xb3']],
  ['a length beyond all numbers', ['Content-Length: 99999999999999999999']],
  ['no length', ['Content-Length:']],
  ['NUL behind the length', ['Content-Length: 3\0']],
  ['a length with a space before the colon', ['Content-Length : 3']],
  ['a length with a space before its name', [' Content-Length: 3']],
  ['a space within the name', ['Content Length: 3']],
  ['a name with a bracket', ['Content-Length[]: 3', CHUNKED]],
  ['no name', [': 3']],
  ['chunks that are not last', ['Transfer-Encoding: chunked, gzip']],
  ['chunks twice', [CHUNKED, CHUNKED]],
  ['chunks twice in one line', ['Transfer-Encoding: chunked, chunked']],
  ['chunks and identity', [CHUNKED, 'Transfer-Encoding: identity']],
  ['chunks and nearly chunks', [CHUNKED, 'Transfer-Encoding: chunke']],
  ['nearly chunked', ['Transfer-Encoding: xchunked']],
  ['chunked in quotes', ['Transfer-Encoding: "chunked"']],
  ['chunked between commas', ['Transfer-Encoding: ,chunked,']],
  ['chunked with a parameter', ['Transfer-Encoding: chunked;q=1']],
  ['chunked after a vertical tab', ['Transfer-Encoding: \x0bchunked']],
  ['chunked before a tab', ['Transfer-Encoding: chunked\t']],
  ['NUL in the coding', ['Transfer-Encoding: chunked\0']],
  ['a coding with a space before the colon', ['Transfer-Encoding : chunked']],
  ['a coding with a tab before the colon', ['Transfer-Encoding\t: chunked']],
  ['a coding with a tab before its name', ['\tTransfer-Encoding: chunked']],
  ['a coding folded with a space', ['Transfer-Encoding:\r\n chunked']],
  ['a coding folded with a tab', ['Transfer-Encoding:\r\n\tchunked']],
  ['identity', ['Transfer-Encoding: identity']],
  ['no coding, and a length', ['Transfer-Encoding:', 'Content-Length: 3']],
  // The gateway would remove this coding without informing the backend.
  ['a coding in addition to chunked', ['Transfer-Encoding: gzip, chunked']],
  ['a folded field', ['X-Folded: a\r\n b', 'Content-Length: 3']],
  ['a bare line feed', ['X-Bare: a\nContent-Length: 3']],
  ['a bare carriage return', ['X-Bare: a\rb', 'Content-Length: 3']],
  ['NUL in a value', ['X-Nul: a\0b', 'Content-Length: 3']],
  ['NUL in a name', ['X-N\0l: a', CHUNKED]],
];

const crowd = ['Host: gateway.test', ALPHA, CHUNKED, '', ''];
/** Heads with their own line endings. */
const heads: [string, (line: string) => string][] = [
  ...fields.map(([name, lines]): [string, (line: string) => string] => [
    name,
    (line) => head(line, ALPHA, ...lines),
  ]),
  ['bare line feeds throughout', (line) => [`${line} HTTP/1.1`, ...crowd].join('\n')],
  ['bare carriage returns', (line) => [`${line} HTTP/1.1`, ...crowd].join('\r')],
  ['one bare line feed, behind the request line', (line) => head(line, ALPHA, CHUNKED).replace('\r\n', '\n')],
  ['a bare line feed that ends the head', (line) => `${head(line, ALPHA, CHUNKED).slice(0, -2)}\n`],
  ['a folded line before the first field', (line) => head(line, ALPHA, CHUNKED).replace('Host', ' Host')],
];

test.each([
  ['passed through', PASSED_THROUGH, false],
  ['executed', EXECUTED, false],
  ['executed, over TLS', EXECUTED, true],
])('a head with ambiguous framing is refused and closed, and nothing is sent: %s', async (_, line, isTls) => {
  const watched: Stack & { ca?: Buffer } = isTls ? { ...encrypted, ca: authority.caBytes } : stack;
  await expectNothingSent(watched, () =>
    eachRowInTurn(heads, async ([, made]) => {
      const wire = await Wire.open(watched.port, watched.ca);
      const answer = await wire.write(made(line) + LAST_CHUNK + SMUGGLED).answer();
      expect([400, 501]).toContain(answer.status);
      expect([codeOf(answer), answer.headers.connection]).toEqual(['invalid_request', ['close']]);
      await wire.ended;
      expect(wire.rest).toBe('');
    }),
  );
});

describe('a malformed chunk', () => {
  const chunks: [string, string][] = [
    ['a line feed behind the size', '1\nx\r\n'],
    ['a line feed behind the data', '1\r\nx\n'],
    ['more data than its size', '1\r\nxyz\r\n'],
    ['a size that is no number', 'g\r\nx\r\n'],
    ['a size with a prefix', '0x1\r\nx\r\n'],
    ['a negative size', '-1\r\nx\r\n'],
    ['a size beyond all numbers', 'fffffffffffffffff\r\nx\r\n'],
    ['a space behind the size', '1 \r\nx\r\n'],
    ['a line feed in an extension', '1;a\nb\r\nx\r\n'],
  ];
  const expectRefused = (before: string) =>
    eachRowInTurn(chunks, async ([, bytes]) => {
      const wire = await Wire.open(stack.port);
      const answer = await wire.write(before + bytes + LAST_CHUNK + SMUGGLED).answer();
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
      await wire.ended;
      expect(wire.rest).toBe('');
    });

  test('is answered 400, and nothing is executed', async () => {
    await expectNothingSent(stack, () => expectRefused(head(EXECUTED, ALPHA, CHUNKED)));
  });

  test('cuts off what is passed through, and nothing follows it', async () => {
    await expectRefused(head(PASSED_THROUGH, ALPHA, CHUNKED) + chunk('ok'));
    await nothingOpen(stack);
    expect(stack.sandbox.requests.ofPath('POST /v3/smuggled')).toBe(0);
  });
});

/** Unusual, but allowed by RFC 9112. The gateway must read it as the backend does. */
const bodies: [string, string[], string, number?][] = [
  ['a coding in capitals', ['TRANSFER-ENCODING: CHUNKED'], chunk('hello') + LAST_CHUNK],
  ['a coding after a tab', ['Transfer-Encoding:\tchunked'], chunk('hello') + LAST_CHUNK],
  ['a length after a tab, with zeros', ['Content-Length:\t005 '], 'hello'],
  ['a chunk size with zeros', [CHUNKED], `0005\r\nhello\r\n${LAST_CHUNK}`],
  ['a chunk extension', [CHUNKED], `5;a=b;c="d;e"\r\nhello\r\n${LAST_CHUNK}`],
  ['an extension of the last chunk', [CHUNKED], `${chunk('hello')}0;x=1\r\n\r\n`],
  ['many chunks', [CHUNKED], [...'hello'].map(chunk).join('') + LAST_CHUNK],
  ['a request as a body', [`Content-Length: ${SMUGGLED.length}`], SMUGGLED, SMUGGLED.length],
  ['a request in a chunk', [CHUNKED], chunk(SMUGGLED) + LAST_CHUNK, SMUGGLED.length],
];

test('the bytes after a body are the next request, and must be authenticated', async () => {
  await eachRowInTurn(bodies, async ([, framing, body, bodyBytes = 5]) => {
    for (const line of [PASSED_THROUGH, 'GET /v3/echo']) {
      const wire = await Wire.open(stack.port);
      wire.write(head(line, ALPHA, ...framing) + body + head('GET /v3/smuggled'));
      const answer = await wire.answer();
      expect([answer.status, answer.json().bodyBytes]).toEqual([200, bodyBytes]);
      expect((await wire.answer()).status).toBe(401);
    }
  });
  for (const method of ['GET', 'POST'])
    expect(stack.sandbox.requests.ofPath(`${method} /v3/smuggled`)).toBe(0);
});

test('a body that the backend does not expect is the last thing that it reads on its connection', async () => {
  const got: string[] = [];
  // Ignores bodies, as old servers do those of GET and DELETE, and ends a connection when it is asked to.
  const url = await rawBackend((socket) => {
    let bytes = '';
    socket.on('data', (more) => {
      bytes += more;
      for (let end = bytes.indexOf('\r\n\r\n'); end >= 0; end = bytes.indexOf('\r\n\r\n')) {
        const answered = bytes.slice(0, end);
        bytes = bytes.slice(end + 4);
        got.push(answered.split(' HTTP/')[0] ?? '');
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
        if (!/^connection: close$/im.test(answered)) continue;
        socket.removeAllListeners('data').resume().end();
        return;
      }
    });
  });
  const { port } = await stackForTest({ upstream: { url } });
  const lines = ['GET /v3/streamed', 'OPTIONS /v3/streamed', 'GET /v2/get_balance', 'DELETE /v3/executed'];
  for (const line of lines) {
    const fields = line.startsWith('DELETE') ? [ALPHA, `Idempotency-Key: ${randomUUID()}`] : [ALPHA];
    const answer = await ask(port, request(line, fields, SMUGGLED));
    expect([answer.status, answer.body.toString()]).toEqual([200, 'ok']);
  }
  expect(got).toEqual(lines);
});

test('a connection with a body that the backend does not expect is not used again', async () => {
  // Reads the body as the next request, and ends no connection.
  const url = await rawBackend((socket) => {
    socket.on('data', (bytes) => {
      for (const [, path = ''] of bytes.toString().matchAll(/^[A-Z]+ (\S+) HTTP/gm))
        socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${path.length}\r\n\r\n${path}`);
    });
  });
  const behind = await stackForTest({ upstream: { url } });
  const chunks = chunk(SMUGGLED) + LAST_CHUNK;
  for (const asked of [
    request('OPTIONS /v3/streamed', [ALPHA], SMUGGLED),
    head('OPTIONS /v3/streamed', ALPHA, CHUNKED) + chunks,
    request('GET /v2/get_balance', [ALPHA], SMUGGLED),
  ]) {
    await ask(behind.port, asked);
    const next = await ask(behind.port, head('GET /v3/mine', ALPHA));
    expect([asked, next.body.toString()]).toEqual([asked, '/v3/mine']);
  }
});

test('trailers do not become headers, and are not forwarded', async () => {
  const trailers = 'Authorization: Bearer sk_sandbox_bravo\r\nX-Merchant-Code: M-BRAVO\r\n\r\n';
  const wire = await Wire.open(stack.port);
  const bytes = head(PASSED_THROUGH, ALPHA, CHUNKED, 'Trailer: Authorization');
  const answer = await wire.write(`${bytes}${chunk('hello')}0\r\n${trailers}`).answer();
  expect([answer.status, answer.json().bodyBytes]).toEqual([200, 5]);
  expect(answer.body.toString()).not.toMatch(/bravo/i);
  expect((await wire.write(head('GET /v3/smuggled')).answer()).status).toBe(401);
});

/** The backend must see the same framing as the gateway: no headers that CGI merges, and no removed headers. */
test.each([
  ['a length with an underscore', 'Content_Length: 1'],
  ['a coding with an underscore', 'Transfer_Encoding: chunked'],
  ['a length that Connection nominates', 'Connection: Content-Length'],
  ['a coding that Connection nominates', 'Connection: Transfer-Encoding, Host'],
])('%s does not change the request that the backend gets', async (_name, field) => {
  const answer = await ask(stack.port, request(PASSED_THROUGH, [ALPHA, field], SMUGGLED));
  const echo = answer.json<{ bodyBytes: number; rawHeaders: [string, string][] }>();
  expect([answer.status, echo.bodyBytes]).toEqual([200, SMUGGLED.length]);
  const got = echo.rawHeaders.map(([name, value]) => `${name.toLowerCase()}: ${value}`);
  const framing = got.filter((line) => /^(?:content.length|transfer.encoding):/.test(line));
  expect(framing).toEqual([`content-length: ${SMUGGLED.length}`]);
});

describe.each([
  ['garbage', 'GARBAGE\r\n\r\n'],
  ['CONNECT', head('CONNECT other.test:443')],
])('%s after a request that is being answered', (_, bytes) => {
  test('puts no second response into the first one', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: drip=5'));
    await wire.hears('rawHeaders');
    wire.write(bytes);
    await wire.ended;
    expect(wire.rest.match(/HTTP\/1\.1 /g)).toHaveLength(1);
  });

  test('is not answered in place of a payout', async () => {
    const wire = await Wire.open(stack.port);
    const key = randomUUID();
    wire.write(payoutOf(key, 'X-Sandbox-Fault: delay=100')).write(bytes);
    await wire.ended;
    expect(wire.rest).toMatch(/^HTTP\/1\.1 201 /);
    await until(() => stack.sandbox.ledger.payouts({ key }) === 1);
  });
});

test('CONNECT after a request whose merchant disconnects ends the connection, and the gateway goes on', async () => {
  const wire = await Wire.open(stack.port);
  const key = randomUUID();
  wire.write(payoutOf(key, 'X-Sandbox-Fault: delay=100')).write(head('CONNECT other.test:443') + SMUGGLED);
  await until(() => stack.sandbox.requests.ofKey(key) === 1);
  wire.socket.resetAndDestroy();
  await nothingOpen(stack);
  expect((await ask(stack.port, payoutOf(key))).status).toBe(201);
  expect(stack.sandbox.requests.ofKey(key)).toBe(1);
});
