import { describe, expect, test } from 'vitest';
import { eachRowInTurn } from '../../support/each-row.ts';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { rawConnection } from '../../support/raw.ts';
import { stackForFile } from '../../support/stack.ts';
import {
  ALPHA,
  ask,
  chunk,
  codeOf,
  HANDSHAKE,
  head,
  LAST_CHUNK,
  request,
  Wire,
  type WireAnswer,
} from '../../support/wire.ts';

const stack = await stackForFile({ limits: { headerBytes: 65_536 } });

const CHUNKED = 'Transfer-Encoding: chunked';
/** A request with good credentials, which would be sent if it was read as one. */
const SMUGGLED = head('POST /v3/smuggled', ALPHA);
const PAYOUT = JSON.stringify(payoutBody());

interface Echo extends Record<string, unknown> {
  bodyBytes: number;
  rawHeaders: [string, string][];
}

const answerTo = (bytes: string | Buffer) => ask(stack.port, bytes);

/** The answer to bytes that must not reach the backend: exactly one problem document, and then the connection closes. */
async function refusalOf(bytes: string): Promise<[status: number, code: string]> {
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
    return [answer.status, codeOf(answer)];
  });
}

const lines = (count: number) => Array.from({ length: count }, (_, i) => `X-${i}: y`);

describe('header lines', () => {
  test('up to 200 are forwarded, the last one included', async () => {
    const answer = await answerTo(request('POST /v3/echo', [ALPHA, ...lines(196), 'X-Last: here'], 'hello'));
    const echo = answer.json<Echo>();
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
        const refused = await refusalOf(head('POST /v3/echo', ALPHA, ...fields) + body + SMUGGLED);
        expect([before, ...refused]).toEqual([before, 431, 'invalid_request']);
      }
    },
  );

  test('and a target over the limit are answered 431', async () => {
    const large = 'x'.repeat(66_000);
    for (const bytes of [
      head('GET /v3/echo', ALPHA, `X-Large: ${large}`),
      head(`GET /v3/echo?${large}`, ALPHA),
    ])
      expect((await refusalOf(bytes))[0]).toBe(431);
  });
});

describe('a version of HTTP that is not supported', () => {
  test.each(['0.9', '2.0'])(
    '%s is answered 505, neither body nor what follows is executed, and nothing is upgraded',
    async (version) => {
      for (const framing of [CHUNKED, 'Content-Length: 5', 'Connection: keep-alive'])
        for (const line of ['POST /v3/echo', 'POST /v1/index.php']) {
          const bytes = head(line, ALPHA, framing).replace('HTTP/1.1', `HTTP/${version}`);
          const refused = await refusalOf(`${bytes}${chunk('hello')}${LAST_CHUNK}${SMUGGLED}`);
          expect(refused).toEqual([505, 'invalid_request']);
        }
      const handshake = head('GET /v3/ws', ALPHA, ...HANDSHAKE).replace('HTTP/1.1', `HTTP/${version}`);
      expect(await refusalOf(handshake)).toEqual([505, 'invalid_request']);
    },
  );

  test('none at all, as in HTTP/0.9, is answered 505', async () => {
    expect(await refusalOf('GET /v3/echo\r\n\r\n')).toEqual([505, 'invalid_request']);
  });
});

test('what is no head is answered 400 and closed', async () => {
  const none = [
    'GET /v3/echo HTTP/3.0\r\n\r\n',
    'GET /v3/echo HTTP/1.1 \r\nHost: x\r\n\r\n',
    'G\u00cbT /v3/echo HTTP/1.1\r\nHost: x\r\n\r\n',
    'get /v3/echo HTTP/1.1\r\nHost: x\r\n\r\n',
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
    'HELO gateway\r\n',
  ];
  await eachRowInTurn(none, async (bytes) => {
    expect(await refusalOf(bytes)).toEqual([400, 'invalid_request']);
  });
});

describe('Host', () => {
  test('is required, once: otherwise there is one answer, and later requests are not executed', async () => {
    for (const fields of [[], ['Expect: 100-continue', 'Content-Length: 5'], ['Connection: keep-alive']])
      for (const host of ['', 'Host: gateway.test\r\nHost: gateway.test\r\n']) {
        const bytes = head('POST /v3/echo', ALPHA, ...fields).replace('Host: gateway.test\r\n', host);
        expect(await refusalOf(bytes + SMUGGLED)).toEqual([400, 'invalid_request']);
      }
  });

  test('is answered 400 if it is invalid', async () => {
    const invalid = [
      ...['', 'bad host', 'a,b', 'a/b', 'user@host', 'http://host', 'host:port', 'host:1:2', 'host:123456'],
      ...['[::1', '::1', '[host]', 'h\xf6st', 'host#', 'host?', 'a%20b', '"host"', 'a\tb', 'a\\b'],
    ];
    await eachRowInTurn(invalid, async (host) => {
      for (const fields of [[], HANDSHAKE]) {
        const bytes = head('GET /v3/echo', ALPHA, ...fields).replace('gateway.test', host);
        expect(await refusalOf(bytes)).toEqual([400, 'invalid_request']);
      }
    });
  });

  test('reaches the backend as X-Forwarded-Host', async () => {
    const valid = [
      ...['pay.test', 'PAY.test.', 'pay_1.test', 'localhost:8080', 'pay.test:', '192.0.2.1:80'],
      ...['[::1]:8080', '[2001:db8::192.0.2.1]', 'xn--bcher-kva.test'],
    ];
    await eachRowInTurn(valid, async (host) => {
      const answer = await answerTo(head('GET /v3/echo', ALPHA).replace('gateway.test', host));
      const forwarded = answer
        .json<Echo>()
        .rawHeaders.filter(([name]) => name.toLowerCase() === 'x-forwarded-host');
      expect([answer.status, forwarded.map(([, value]) => value)]).toEqual([200, [host]]);
    });
  });
});

describe('a target', () => {
  const post = (target: string, missing = 0) =>
    head(`POST ${target}`, ALPHA, `Content-Length: ${PAYOUT.length + missing}`) + PAYOUT;

  test('that is ambiguous is answered 400 invalid_target, and nothing is sent', async () => {
    const ambiguous = [
      ...['http://evil.test/v1/index.php', 'https://evil.test:443/v1/index.php', 'a://', 'http://?/v1/x'],
      ...['//evil.test/v1/index.php', '/v1/index.php//', '/x/../v1/index.php', '/v1/.%2E/x', '/x/..;y/v1'],
      ...['/v1%2findex.php', '/v1\\index.php', '/v1/index.php%00', '/v1/%252e%252e/', '/v1/%zz'],
      ...['/v1%C0%AFindex.php', '/v1%EF%BC%8Findex.php', '/v1/index.php#/x', '/x?a#b'],
    ];
    await eachRowInTurn(ambiguous, async (target) => {
      // One byte of the body is missing. If the connection stayed open, the body would be read as the next request.
      expect(await refusalOf(post(target, 1))).toEqual([400, 'invalid_target']);
      const whole = await expectNothingSent(stack, () => answerTo(post(target)));
      expect([whole.status, codeOf(whole)]).toEqual([400, 'invalid_target']);
    });
    expect(stack.log.at(-1)).toMatchObject({ msg: 'request', operation: expect.any(String) });
  });

  test('that is none is answered 400, and nothing is sent', async () => {
    const none = [
      ...['/v1/index.php\0', '/v1/\xedndex.php', '/v1/index.php?\xe9', '/v1/\tindex.php', '/v1/index php'],
      ...['/x?a b', '?x', ''],
    ];
    await eachRowInTurn(none, async (target) => {
      const answer = await expectNothingSent(stack, () => answerTo(post(target)));
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
    });
  });

  test('of CONNECT, and the asterisk, are answered 400 invalid_target', async () => {
    for (const line of ['CONNECT evil.test:443', 'CONNECT /v1/index.php', 'OPTIONS *', 'POST *'])
      expect(await refusalOf(head(line, ALPHA, 'Content-Length: 1'))).toEqual([400, 'invalid_target']);
  });

  // Node removes its error listener from the socket, and an error without a listener ends the process.
  test('of CONNECT, from a client that resets the connection at once, does not end the gateway', async () => {
    for (let i = 0; i < 20; i++) {
      const socket = await rawConnection(stack.port);
      socket.write(head('CONNECT evil.test:443'));
      // Sometimes before the request was read, sometimes behind it.
      if (i % 2 === 0) await new Promise((resolve) => setImmediate(resolve));
      socket.resetAndDestroy();
    }
    expect((await answerTo(post('/v1/index.php'))).status).toBe(201);
  });

  test('reaches the backend byte for byte', async () => {
    for (const target of ['/v3/echo?a=%2F..//\\&b=%00', '/v3/echo?', '/v3/echo?http://x/'])
      expect((await answerTo(post(target))).json().url).toBe(target);
    const payouts = stack.sandbox.ledger.payouts();
    for (const target of ['/v3/caf%C3%A9/%e6%97%a5', '/v1/index.php?x=/../%2f%00//', '/v1/index.php?'])
      expect((await answerTo(post(target))).status).toBe(201);
    expect(stack.sandbox.requests.ofPath('POST /v3/caf%C3%A9/%e6%97%a5')).toBe(1);
    expect(stack.sandbox.ledger.payouts()).toBe(payouts + 2);
  });
});

describe('HTTP/1.0', () => {
  const askOfOld = async (line: string, fields: string[] = [], body = '') => {
    const wire = await Wire.open(stack.port);
    wire.write(`${[`${line} HTTP/1.0`, ...fields, '', ''].join('\r\n')}${body}`);
    const answer = await wire.answer();
    await wire.ended;
    return answer;
  };

  test('a request without Host is answered, its connection closed, and the gateway invents no Host', async () => {
    for (const path of ['/v2/get_balance', '/v3/echo']) {
      const answer = await askOfOld(`GET ${path}`, [ALPHA]);
      expect([answer.status, answer.headers.connection]).toEqual([200, ['close']]);
      expect(answer.body.toString()).not.toMatch(/x-forwarded-host/i);
    }
    expect((await expectNothingSent(stack, () => askOfOld('GET /v3/echo'))).status).toBe(401);
  });

  test('an answer of unknown length ends with its connection, and has no chunks', async () => {
    const answer = await askOfOld('GET /v3/stream?chunks=2&intervalMs=1', [ALPHA]);
    expect(answer.headers).not.toHaveProperty('transfer-encoding');
    expect(answer.body.toString()).toBe('data: chunk 1\n\ndata: chunk 2\n\n');
  });

  test('100 Continue and chunks, which it does not have, are not used', async () => {
    for (const path of ['/v3/echo', '/v1/index.php']) {
      const invited = await askOfOld(
        `POST ${path}`,
        [ALPHA, 'Content-Length: 2', 'Expect: 100-continue'],
        '{}',
      );
      expect(invited.status).not.toBe(100);
      const fields = [ALPHA, CHUNKED, 'Connection: keep-alive'];
      const answer = await askOfOld(`POST ${path}`, fields, chunk('{}') + LAST_CHUNK);
      expect([200, 400, 422]).toContain(answer.status);
      expect(answer.headers.connection).toEqual(['close']);
    }
  });
});

const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'PROPFIND', 'QUERY'];

const framingOf = (answer: WireAnswer) =>
  answer
    .json<{ rawHeaders: [string, string][] }>()
    .rawHeaders.filter(([name]) => /^(?:content-length|transfer-encoding)$/i.test(name))
    .map(([name, value]) => `${name.toLowerCase()}: ${value}`);

const INSIDE = chunk('hello') + chunk(' ') + chunk('GET /v3/smuggled HTTP/1.1\r\n\r\n') + LAST_CHUNK;

test.each<[string, (line: string) => string | Buffer, bodyBytes: number, framing: string[]]>([
  ['a chunked body', (line) => head(line, ALPHA, CHUNKED) + INSIDE, 35, ['transfer-encoding: chunked']],
  ['a body of known length', (line) => request(line, [ALPHA], 'hello'), 5, ['content-length: 5']],
  ['no body', (line) => head(line, ALPHA), 0, []],
])(
  'the backend gets every method with %s, and the next request is the next request',
  async (_body, bytes, bodyBytes, framing) => {
    await eachRowInTurn(METHODS, async (method) => {
      const wire = await Wire.open(stack.port);
      wire.write(bytes(`${method} /v3/echo?1`)).write(head('GET /v3/echo?2', ALPHA));
      const first = await wire.answer();
      expect(first.json()).toMatchObject({ method, url: '/v3/echo?1', bodyBytes });
      expect(framingOf(first).filter((line) => line !== 'content-length: 0')).toEqual(framing);
      expect((await wire.answer()).json()).toMatchObject({ method: 'GET', url: '/v3/echo?2', bodyBytes: 0 });
    });
    expect(stack.sandbox.requests.ofPath('GET /v3/smuggled')).toBe(0);
  },
);

test('TRACE with two hosts closes its connection too: what follows is not executed', async () => {
  const bytes = head('TRACE /v3/echo', ALPHA, 'Host: gateway.test');
  expect(await refusalOf(bytes + SMUGGLED)).toEqual([405, 'method_not_allowed']);
});

test('TRACE is refused before anything else: a backend would answer with the gateway’s own credential', async () => {
  await expectNothingSent(stack, async () => {
    for (const lines of [[ALPHA], [], [ALPHA, 'Host: b'], [ALPHA, 'x-service-idempotency: traced']]) {
      const answer = await answerTo(head('TRACE /v3//echo', ...lines));
      expect([answer.status, codeOf(answer)]).toEqual([405, 'method_not_allowed']);
      expect(answer.headers.allow).toEqual(['GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS']);
    }
  });
});
