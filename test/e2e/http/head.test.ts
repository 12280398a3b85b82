import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import {
  ALPHA,
  chunk,
  codeOf,
  head,
  LAST_CHUNK,
  request,
  Wire,
  type WireAnswer,
} from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({ limits: { headerBytes: 65_536 } });
});
afterAll(() => stack.close());

const CHUNKED = 'Transfer-Encoding: chunked';
/** A request with good credentials, which would be sent if it was read as one. */
const SMUGGLED = head('POST /v3/smuggled', ALPHA);
const HANDSHAKE = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'];

/** The answer to bytes that must not reach the backend: exactly one problem document, and then the connection closes. */
async function refusalOf(bytes: string): Promise<WireAnswer> {
  return await expectNothingSent(stack, async () => {
    const wire = await Wire.open(stack.port);
    const answer = await wire.write(bytes).answer();
    expect(answer.headers).toMatchObject({
      'content-type': ['application/problem+json'],
      connection: ['close'],
    });
    expect(answer.headers['x-request-id']).toHaveLength(1);
    await wire.ended;
    expect(wire.rest).toBe('');
    return answer;
  });
}

const lines = (count: number) => Array.from({ length: count }, (_, i) => `X-${i}: y`);

describe('header lines', () => {
  test('up to 200 are forwarded, the last one included', async () => {
    const wire = await Wire.open(stack.port);
    const fields = [ALPHA, ...lines(196), 'X-Last: here'];
    const answer = await wire.write(request('POST /v3/echo', fields, 'hello')).answer();
    const echo = answer.json<{ bodyBytes: number; rawHeaders: [string, string][] }>();
    expect([answer.status, echo.bodyBytes]).toEqual([200, 5]);
    expect(echo.rawHeaders.map(([name]) => name.toLowerCase())).toContain('x-last');
  });

  test.each([
    ['a length', (inside: string) => [`Content-Length: ${inside.length}`, inside] as const],
    ['chunks', (inside: string) => [CHUNKED, chunk(inside) + LAST_CHUNK] as const],
  ])(
    '201 are answered 431, wherever %s is among them: the body is not a second request',
    async (_, framed) => {
      const [framing, body] = framed(SMUGGLED);
      for (const before of [0, 198, 199, 500, 998, 1500]) {
        const fields = [...lines(before), framing, ...lines(Math.max(0, 198 - before))];
        const answer = await refusalOf(head('POST /v3/echo', ALPHA, ...fields) + body + SMUGGLED);
        expect([before, answer.status, codeOf(answer)]).toEqual([before, 431, 'invalid_request']);
      }
    },
  );

  test('of a handshake are counted as well', async () => {
    const answer = await refusalOf(head('GET /v3/ws', ALPHA, ...HANDSHAKE, ...lines(200)));
    expect([answer.status, codeOf(answer)]).toEqual([431, 'invalid_request']);
  });
});

describe('a version of HTTP that is not supported', () => {
  const versions = ['0.9', '2.0'];

  test.each(versions)(
    '%s is answered 505, and neither body nor what follows is executed',
    async (version) => {
      for (const framing of [CHUNKED, 'Content-Length: 5', 'Connection: keep-alive']) {
        for (const line of ['POST /v3/echo', 'POST /v1/index.php']) {
          const bytes = head(line, ALPHA, framing).replace('HTTP/1.1', `HTTP/${version}`);
          const answer = await refusalOf(`${bytes}${chunk('hello')}${LAST_CHUNK}${SMUGGLED}`);
          expect([answer.status, codeOf(answer)]).toEqual([505, 'invalid_request']);
        }
      }
    },
  );

  test('none at all, as in HTTP/0.9, is answered 505', async () => {
    expect((await refusalOf('GET /v3/echo\r\n\r\n')).status).toBe(505);
  });

  test.each(versions)('%s is not upgraded', async (version) => {
    const bytes = head('GET /v3/ws', ALPHA, ...HANDSHAKE).replace('HTTP/1.1', `HTTP/${version}`);
    expect((await refusalOf(bytes)).status).toBe(505);
  });
});

test('an unknown expectation is answered 417, and later requests on the closing connection are not executed', async () => {
  const wire = await Wire.open(stack.port);
  // The connection is open until the first answer is sent.
  wire.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: delay=200'));
  wire.write(request('POST /v3/echo', [ALPHA, 'Expect: a-miracle'], 'hello')).write(SMUGGLED);
  expect((await wire.answer()).status).toBe(200);
  const answer = await wire.answer();
  expect([answer.status, answer.headers.connection]).toEqual([417, ['close']]);
  await wire.ended;
  expect(stack.sandbox.requests.ofPath('POST /v3/smuggled')).toBe(0);
});

describe('Host', () => {
  test('is required: without it there is one answer, and later requests are not executed', async () => {
    for (const fields of [[], ['Expect: 100-continue', 'Content-Length: 5'], ['Connection: keep-alive']]) {
      const bytes = head('POST /v3/echo', ALPHA, ...fields).replace('Host: gateway.test\r\n', '');
      const answer = await refusalOf(bytes + SMUGGLED);
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
    }
  });

  test('is not required in HTTP/1.0, and the gateway does not invent one', async () => {
    const wire = await Wire.open(stack.port);
    const answer = await wire.write(`GET /v3/echo HTTP/1.0\r\n${ALPHA}\r\n\r\n`).answer();
    const names = answer.json<{ rawHeaders: [string, string][] }>().rawHeaders.map(([name]) => name);
    expect(answer.status).toBe(200);
    expect(names.map((name) => name.toLowerCase())).not.toContain('x-forwarded-host');
  });

  test.each([
    ...['', 'bad host', 'a,b', 'a/b', 'user@host', 'http://host', 'host:port', 'host:1:2', 'host:123456'],
    ...['[::1', '::1', '[host]', 'h\xf6st', 'host#', 'host?', 'a%20b', '"host"', 'a\tb', 'a\\b'],
  ])('%j is invalid: answered 400', async (host) => {
    const field = `Host: ${host}`;
    for (const fields of [[], HANDSHAKE]) {
      const bytes = head('GET /v3/echo', ALPHA, ...fields).replace('Host: gateway.test', field);
      const answer = await refusalOf(bytes);
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
    }
  });

  test.each([
    ...['pay.test', 'PAY.test.', 'pay_1.test', 'localhost:8080', 'pay.test:', '192.0.2.1:80'],
    ...['[::1]:8080', '[2001:db8::192.0.2.1]', 'xn--bcher-kva.test'],
  ])('%j reaches the backend as X-Forwarded-Host', async (host) => {
    const wire = await Wire.open(stack.port);
    const bytes = head('GET /v3/echo', ALPHA).replace('gateway.test', host);
    const answer = await wire.write(bytes).answer();
    const { rawHeaders } = answer.json<{ rawHeaders: [string, string][] }>();
    const forwarded = rawHeaders.filter(([name]) => name.toLowerCase() === 'x-forwarded-host');
    expect([answer.status, forwarded.map(([, value]) => value)]).toEqual([200, [host]]);
  });
});
