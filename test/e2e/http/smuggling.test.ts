import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Authority } from '../../support/certificates.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, chunk, codeOf, head, LAST_CHUNK, request, Wire } from '../../support/wire.ts';

const authority = new Authority();
let stack: Stack;
let encrypted: Stack;
beforeAll(async () => {
  stack = await openStack();
  encrypted = await openStack({ listen: { tls: authority.issue() } });
});
afterAll(() => Promise.all([stack.close(), encrypted.close()]));

const CHUNKED = 'Transfer-Encoding: chunked';
/** A request that must never be read as one. Its credentials are valid, so that the gateway would send it. */
const SMUGGLED = head('GET /v3/smuggled', ALPHA);
const lines = ['passed through', 'executed'] as const;
const lineOf = { 'passed through': 'POST /v3/echo', executed: 'POST /v1/index.php' };

const crowd = (...fields: string[]) => ['Host: gateway.test', ALPHA, ...fields];
/** Whole heads, with their own line endings. `framing.test.ts` tests single fields. */
const heads: [string, (line: string) => string][] = [
  ['bare line feeds throughout', (line) => [`${line} HTTP/1.1`, ...crowd(CHUNKED), '', ''].join('\n')],
  ['one bare line feed, behind the request line', (line) => head(line, ALPHA, CHUNKED).replace('\r\n', '\n')],
  ['bare carriage returns', (line) => [`${line} HTTP/1.1`, ...crowd(CHUNKED), '', ''].join('\r')],
  ['a bare line feed that ends the head', (line) => `${head(line, ALPHA, CHUNKED).slice(0, -2)}\n`],
  ['a folded line before the first field', (line) => head(line, ALPHA, CHUNKED).replace('Host', ' Host')],
  ['a field folded with a tab', (line) => head(line, ALPHA, 'Transfer-Encoding:\r\n\tchunked')],
  ['a coding with a space before the colon', (line) => head(line, ALPHA, 'Transfer-Encoding : chunked')],
  ['a coding with a tab before the colon', (line) => head(line, ALPHA, 'Transfer-Encoding\t: chunked')],
  ['a coding with a tab before its name', (line) => head(line, ALPHA, '\tTransfer-Encoding: chunked')],
  ['a coding with a tab behind it', (line) => head(line, ALPHA, 'Transfer-Encoding: chunked\t')],
  ['NUL in a name', (line) => head(line, ALPHA, 'X-N\0l: a', CHUNKED)],
  ['NUL in the coding', (line) => head(line, ALPHA, 'Transfer-Encoding: chunked\0')],
  ['NUL behind the length', (line) => head(line, ALPHA, 'Content-Length: 3\0')],
  ['a coding and a comma before it', (line) => head(line, ALPHA, 'Transfer-Encoding: ,chunked,')],
  ['a coding with a parameter', (line) => head(line, ALPHA, 'Transfer-Encoding: chunked;q=1')],
  ['two codings, one of them nearly', (line) => head(line, ALPHA, CHUNKED, 'Transfer-Encoding: chunke')],
  ['a length and its list', (line) => head(line, ALPHA, 'Content-Length: 3', 'Content-Length: 3, 3')],
  ['a length with a dot', (line) => head(line, ALPHA, 'Content-Length: 3.0')],
  ['a length in quotes', (line) => head(line, ALPHA, 'Content-Length: "3"')],
  ['a length with a sign behind it', (line) => head(line, ALPHA, 'Content-Length: 3-')],
  ['a name with a bracket', (line) => head(line, ALPHA, 'Content-Length[]: 3', CHUNKED)],
  ['a length in letters beyond ASCII', (line) => head(line, ALPHA, 'Content-Length: \xb3')],
];

async function expectRefusedAndClosed(wire: Wire, smuggling: string): Promise<void> {
  const answer = await wire.write(smuggling + LAST_CHUNK + SMUGGLED).answer();
  expect([400, 501]).toContain(answer.status);
  expect([codeOf(answer), answer.headers.connection]).toEqual(['invalid_request', ['close']]);
  await wire.ended;
  expect(wire.rest).toBe('');
}

describe.each(lines)('%s', (how) => {
  test.each(heads)('a head with %s: refused and closed, and nothing is sent', async (_shape, made) => {
    await expectNothingSent(stack, async () => {
      await expectRefusedAndClosed(await Wire.open(stack.port), made(lineOf[how]));
    });
  });

  test.each(heads)('a head with %s, over TLS: refused and closed, and nothing is sent', async (...row) => {
    const [, made] = row;
    await expectNothingSent({ ...encrypted, ca: authority.caBytes }, async () => {
      const wire = await Wire.open(encrypted.port, authority.caBytes);
      await expectRefusedAndClosed(wire, made(lineOf[how]));
    });
  });
});

/** Unusual, but allowed by RFC 9112. The gateway must read it as the backend does. */
const bodies: [string, string[], string][] = [
  ['a coding in capitals', ['TRANSFER-ENCODING: CHUNKED'], chunk('hello') + LAST_CHUNK],
  ['a coding after a tab', ['Transfer-Encoding:\tchunked'], chunk('hello') + LAST_CHUNK],
  ['a length after a tab, with zeros', ['Content-Length:\t005 '], 'hello'],
  ['a chunk size with zeros', [CHUNKED], `0005\r\nhello\r\n${LAST_CHUNK}`],
  ['a chunk extension', [CHUNKED], `5;a=b;c="d;e"\r\nhello\r\n${LAST_CHUNK}`],
  ['an extension of the last chunk', [CHUNKED], `${chunk('hello')}0;x=1\r\n\r\n`],
  ['many chunks', [CHUNKED], [...'hello'].map(chunk).join('') + LAST_CHUNK],
];

describe('unusual but allowed requests', () => {
  test.each(bodies)('%s: the body ends where it ends, and behind it is the next request', async (...row) => {
    const [, fields, body] = row;
    const wire = await Wire.open(stack.port);
    const answer = await wire.write(head('POST /v3/echo', ALPHA, ...fields) + body).answer();
    expect([answer.status, answer.json().bodyBytes]).toEqual([200, 5]);
    const before = stack.sandbox.requests.total();
    expect((await wire.write(head('GET /v3/smuggled')).answer()).status).toBe(401);
    expect(stack.sandbox.requests.total()).toBe(before);
  });

  test('a request within a body is a body', async () => {
    for (const [fields, body] of [
      [[`Content-Length: ${SMUGGLED.length}`], SMUGGLED],
      [[CHUNKED], chunk(SMUGGLED) + LAST_CHUNK],
    ] as const) {
      for (const line of ['POST /v3/echo', 'GET /v3/echo']) {
        const wire = await Wire.open(stack.port);
        const answer = await wire.write(head(line, ALPHA, ...fields) + body).answer();
        expect([answer.status, answer.json().bodyBytes]).toEqual([200, SMUGGLED.length]);
      }
    }
    expect(stack.sandbox.requests.ofPath('GET /v3/smuggled')).toBe(0);
  });

  test('trailers do not become headers, and are not forwarded', async () => {
    const trailers = 'Authorization: Bearer sk_sandbox_bravo\r\nX-Merchant-Code: M-BRAVO\r\n\r\n';
    const wire = await Wire.open(stack.port);
    const fields = [ALPHA, CHUNKED, 'Trailer: Authorization'];
    const answer = await wire
      .write(`${head('POST /v3/echo', ...fields)}${chunk('hello')}0\r\n${trailers}`)
      .answer();
    expect([answer.status, answer.json().bodyBytes]).toEqual([200, 5]);
    expect(answer.body.toString()).not.toContain('BRAVO');
    expect(answer.body.toString()).not.toContain('bravo');
    expect((await wire.write(head('GET /v3/smuggled')).answer()).status).toBe(401);
  });
});

/** The backend must see the same framing as the gateway: no headers that CGI merges, and no removed headers. */
test.each([
  ['a length with an underscore', ['Content_Length: 1']],
  ['a coding with an underscore', ['Transfer_Encoding: chunked']],
  ['a length that Connection nominates', ['Connection: Content-Length']],
  ['a coding that Connection nominates', ['Connection: Transfer-Encoding, Host']],
])('%s does not change the request that the backend gets', async (_name, fields) => {
  const wire = await Wire.open(stack.port);
  const answer = await wire.write(request('POST /v3/echo', [ALPHA, ...fields], SMUGGLED)).answer();
  const echo = answer.json<{ bodyBytes: number; rawHeaders: [string, string][] }>();
  expect([answer.status, echo.bodyBytes]).toEqual([200, SMUGGLED.length]);
  const got = echo.rawHeaders.map(([name, value]) => `${name.toLowerCase()}: ${value}`);
  const framing = got.filter((line) => /^(?:content.length|transfer.encoding):/.test(line));
  expect(framing).toEqual([`content-length: ${SMUGGLED.length}`]);
  expect(stack.sandbox.requests.ofPath('GET /v3/smuggled')).toBe(0);
});
