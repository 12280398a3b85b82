import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, codeOf, head, LAST_CHUNK, request, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const CHUNKED = 'Transfer-Encoding: chunked';
const SMUGGLED = head('POST /v3/smuggled', 'X-Merchant-Code: M-BRAVO');

/** Byte streams that two parsers could split into different requests. */
const heads: [string, string[]][] = [
  ['Content-Length and Transfer-Encoding', ['Content-Length: 3', CHUNKED]],
  ['Transfer-Encoding and Content-Length', [CHUNKED, 'Content-Length: 3']],
  ['two equal lengths', ['Content-Length: 3', 'Content-Length: 3']],
  ['two different lengths', ['Content-Length: 3', 'Content-Length: 300']],
  ['a list of lengths', ['Content-Length: 3, 3']],
  ['a signed length', ['Content-Length: +3']],
  ['a negative length', ['Content-Length: -3']],
  ['a length in hexadecimal', ['Content-Length: 0x3']],
  ['a length in two words', ['Content-Length: 3 3']],
  ['a length beyond all numbers', ['Content-Length: 99999999999999999999']],
  ['no length', ['Content-Length:']],
  ['a space before the colon', ['Content-Length : 3']],
  ['a space before the name', [' Content-Length: 3']],
  ['a space within the name', ['Content Length: 3']],
  ['no name', [': 3']],
  ['chunks that are not last', ['Transfer-Encoding: chunked, gzip']],
  ['chunks twice', [CHUNKED, CHUNKED]],
  ['chunks twice in one line', ['Transfer-Encoding: chunked, chunked']],
  ['chunks and identity', [CHUNKED, 'Transfer-Encoding: identity']],
  ['nearly chunked', ['Transfer-Encoding: xchunked']],
  ['chunked in quotes', ['Transfer-Encoding: "chunked"']],
  ['chunked after a vertical tab', ['Transfer-Encoding: \x0bchunked']],
  ['identity', ['Transfer-Encoding: identity']],
  ['no coding, and a length', ['Transfer-Encoding:', 'Content-Length: 3']],
  ['a folded coding', ['Transfer-Encoding:\r\n chunked']],
  ['a folded field', ['X-Folded: a\r\n b', 'Content-Length: 3']],
  ['a bare line feed', ['X-Bare: a\nContent-Length: 3']],
  ['a bare carriage return', ['X-Bare: a\rb', 'Content-Length: 3']],
  ['NUL in a value', ['X-Nul: a\0b', 'Content-Length: 3']],
  // Codings that the gateway removes without informing the backend.
  ['a coding in addition to chunked', ['Transfer-Encoding: gzip, chunked']],
];

describe.each([
  ['passed through', 'POST /v3/echo'],
  ['executed', 'POST /v1/index.php'],
])('%s', (_name, line) => {
  test.each(heads)('%s: refused and closed, and nothing is sent', async (_shape, fields) => {
    await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      wire.write(head(line, ALPHA, ...fields) + LAST_CHUNK + SMUGGLED);
      const answer = await wire.answer();
      expect([400, 501]).toContain(answer.status);
      expect(codeOf(answer)).toBe('invalid_request');
      expect(answer.headers.connection).toEqual(['close']);
      await wire.ended;
      expect(wire.rest).toBe('');
    });
  });
});

const chunks: [string, string][] = [
  ['a line feed behind the size', `1\nx\r\n${LAST_CHUNK}`],
  ['a line feed behind the data', `1\r\nx\n${LAST_CHUNK}`],
  ['more data than its size', `1\r\nxyz\r\n${LAST_CHUNK}`],
  ['a size that is no number', `g\r\nx\r\n${LAST_CHUNK}`],
  ['a size with a prefix', `0x1\r\nx\r\n${LAST_CHUNK}`],
  ['a negative size', `-1\r\nx\r\n${LAST_CHUNK}`],
  ['a size beyond all numbers', `fffffffffffffffff\r\nx\r\n${LAST_CHUNK}`],
  ['a space behind the size', `1 \r\nx\r\n${LAST_CHUNK}`],
  ['a line feed in an extension', `1;a\nb\r\nx\r\n${LAST_CHUNK}`],
];

describe('a chunk with', () => {
  test.each(chunks)('%s: nothing is executed', async (_shape, bytes) => {
    await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      const answer = await wire.write(head('POST /v1/index.php', ALPHA, CHUNKED) + bytes + SMUGGLED).answer();
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
      await wire.ended;
      expect(wire.rest).toBe('');
    });
  });

  test.each(chunks)(
    '%s: what is passed through is cut off, and nothing follows it',
    async (_shape, bytes) => {
      const wire = await Wire.open(stack.port);
      const answer = await wire
        .write(head('POST /v3/echo', ALPHA, CHUNKED) + chunk('ok') + bytes + SMUGGLED)
        .answer();
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
      await wire.ended;
      await until(async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'));
      expect(stack.sandbox.requests.ofPath('POST /v3/smuggled')).toBe(0);
    },
  );
});

test('the bytes after a body are the next request, and must be authenticated', async () => {
  const wire = await Wire.open(stack.port);
  wire.write(request('POST /v3/echo', [ALPHA], 'body')).write(SMUGGLED);
  expect((await wire.answer()).json().bodyBytes).toBe(4);
  expect([(await wire.answer()).status, stack.sandbox.requests.ofPath('POST /v3/smuggled')]).toEqual([
    401, 0,
  ]);
});

describe('a head', () => {
  const refusedHead = async (bytes: string) =>
    await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      const answer = await wire.write(bytes).answer();
      await wire.ended;
      return answer;
    });

  test('with two Host lines is answered 400, even if they are equal', async () => {
    for (const host of ['other.test', 'gateway.test']) {
      const answer = await refusedHead(head('GET /v3/echo', ALPHA, 'Connection: close', `Host: ${host}`));
      expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
    }
  });

  test('over the limit is answered 431', async () => {
    for (const bytes of [
      head('GET /v3/echo', ALPHA, `X-Large: ${'x'.repeat(17_000)}`),
      head(`GET /v3/echo?${'x'.repeat(17_000)}`, ALPHA),
    ]) {
      expect((await refusedHead(bytes)).status).toBe(431);
    }
  });

  test.each([
    'GET /v3/echo HTTP/3.0\r\n\r\n',
    'GET /v3/echo HTTP/1.1 \r\nHost: x\r\n\r\n',
    'G\u00cbT /v3/echo HTTP/1.1\r\nHost: x\r\n\r\n',
    'get /v3/echo HTTP/1.1\r\nHost: x\r\n\r\n',
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
    'HELO gateway\r\n',
  ])('that is none, %j, is answered 400 and closed', async (bytes) => {
    const answer = await refusedHead(bytes);
    expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
  });

  test('that does not arrive in time is answered 408', async () => {
    const hasty = await openStack({ limits: { headerTimeoutMs: 200 } });
    try {
      const wire = await Wire.open(hasty.port);
      const answer = await wire.write('GET /v3/echo HTTP/1.1\r\nHost: x\r\n').answer();
      expect([answer.status, codeOf(answer)]).toEqual([408, 'request_timeout']);
      await wire.ended;
    } finally {
      await hasty.close();
    }
  }, 8000);
});

describe('garbage after a request that is being answered', () => {
  test('does not get into its answer', async () => {
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v3/echo', ALPHA, 'X-Sandbox-Fault: drip=5'));
    await wire.hears('rawHeaders');
    wire.write('GARBAGE\r\n\r\n');
    await wire.ended;
    expect(wire.rest.match(/HTTP\/1\.1 /g)).toHaveLength(1);
  });

  test('is not answered in place of a payout', async () => {
    const wire = await Wire.open(stack.port);
    const payout = payoutBody();
    const fields = [ALPHA, 'x-service-idempotency: garbage-1', 'X-Sandbox-Fault: delay=100'];
    wire.write(request('POST /v1/index.php', fields, JSON.stringify(payout))).write('GARBAGE\r\n\r\n');
    await wire.ended;
    expect(wire.rest).not.toMatch(/^HTTP\/1\.1 4/);
    await until(() => stack.sandbox.ledger.payouts({ key: 'garbage-1' }) === 1);
  });
});
