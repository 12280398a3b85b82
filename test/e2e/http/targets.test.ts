import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, codeOf, head, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const payout = JSON.stringify(payoutBody());

/** Sends a payout to a target, byte for byte. */
async function ask(target: string, method = 'POST', fields = [ALPHA, `Content-Length: ${payout.length}`]) {
  const wire = await Wire.open(stack.port);
  const answer = await wire.write(head(`${method} ${target}`, ...fields) + payout).answer();
  return { answer, wire };
}

const ambiguous = {
  'no origin form': [
    'http://evil.test/v1/index.php',
    'HTTP://gateway.test/v1/index.php',
    'http://evil.test',
    'https://evil.test:443/v1/index.php',
    'ftp://x@evil.test/v1/index.php',
  ],
  'an absolute form that Express cannot read': ['a://', 'http://?/v1/index.php', 'foo://'],
  'an empty segment': [
    '//v1/index.php',
    '//evil.test/v1/index.php',
    '/v1//index.php',
    '/v1/index.php//',
    '///',
  ],
  'a dot segment': [
    ...['/./v1/index.php', '/../v1/index.php', '/x/../v1/index.php', '/v1/./index.php', '/v1/index.php/..'],
    ...[
      '/v1/%2e%2e/v1/index.php',
      '/v1/.%2E/x',
      '/%2e/v1/index.php',
      '/x/..;y/v1/index.php',
      '/x/..%3by/v1/x',
    ],
  ],
  'an encoded separator': ['/v1%2findex.php', '/v1%2Findex.php', '/v1%5cindex.php', '/x%2f..%2fv1/index.php'],
  'a backslash': ['/v1\\index.php', '/\\evil.test/v1', '/x\\..\\v1/index.php'],
  'NUL and other control characters': [
    '/v1/index.php%00',
    '/v1/index.php%00.txt',
    '/v1/index.php%0d%0aX:%20y',
    '/v1/%7f',
  ],
  'twice or badly encoded': [
    '/v1/%252e%252e/',
    '/v1/index%252ephp',
    '/v1/%25%36%39ndex.php',
    '/v1/%',
    '/v1/%zz',
  ],
  'not UTF-8': ['/x/%C0%AE%C0%AE/v1/index.php', '/v1%C0%AFindex.php', '/caf%E9'],
  'a character like a slash or a dot': ['/v1%EF%BC%8Findex.php', '/x/%E2%80%A4%E2%80%A4/v1/index.php'],
  'a fragment': ['/v1/index.php#', '/v1/index.php#/x', '/x?a#b'],
};

describe.each(Object.entries(ambiguous))('%s', (_name, targets) => {
  test.each(targets)('%s is answered 400 invalid_target, and nothing is sent', async (target) => {
    // One byte of the body is missing. If the connection stayed open, the body would be read as the next request.
    const fields = [ALPHA, `Content-Length: ${payout.length + 1}`];
    const { answer, wire } = await expectNothingSent(stack, () => ask(target, 'POST', fields));
    expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_target']);
    expect(answer.headers.connection).toEqual(['close']);
    await wire.ended;
    const whole = await expectNothingSent(stack, () => ask(target));
    expect([whole.answer.status, codeOf(whole.answer)]).toEqual([400, 'invalid_target']);
    expect(stack.log.at(-1)).toMatchObject({ msg: 'request', operation: expect.any(String) });
  });
});

test.each([
  '/v1/index.php\0',
  '/v1/\xedndex.php',
  '/v1/index.php?\xe9',
  '/v1/\tindex.php',
  '/v1/index php',
  '/x?a b',
  '?x',
  '',
])('an invalid target, %j, is answered 400, and nothing is sent', async (target) => {
  const { answer } = await expectNothingSent(stack, () => ask(target));
  expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_request']);
});

test('the asterisk is answered 400 invalid_target', async () => {
  const { answer } = await expectNothingSent(stack, () => ask('*', 'OPTIONS'));
  expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_target']);
});

test.each(['evil.test:443', '/v1/index.php', '127.0.0.1:80'])(
  'CONNECT %s is answered 400 invalid_target and its connection closed',
  async (target) => {
    const { answer, wire } = await expectNothingSent(stack, () => ask(target, 'CONNECT'));
    expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_target']);
    await wire.ended;
  },
);

/** The sandbox books a charge on each of these paths. Another backend may take them for the declared path. */
test.each([
  ...['/v1/index.php/', '/V1/index.php', '/v1/Index.PHP', '/v1/index%2ephp', '/v1/index.php/withdraw'],
  ...['/v1/index.php;x', '/v1;x/index.php', '/v1/index.php.', '/v1/index.php%20', '/v1/index.php%3bx=y'],
  ...['/v2/get_balance/', '/v2/GET_balance', '/v2/get%5Fbalance', '/v2/get_balance;jsessionid=1'],
  ...['/v1', '/v1/', '/v1/index', '/v1/index.html', '/v1/index.php::$DATA', '/v1/index.php:x'],
  ...['/v1/%EF%BD%89ndex.php', '/v2/get_balance.php'],
])('%s, a lookalike of a declared path, is forwarded as the operation `other`', async (target) => {
  const total = stack.sandbox.requests.total();
  const { answer } = await ask(target);
  expect(answer.status).toBe(201);
  expect(stack.sandbox.requests.total()).toBe(total + 1);
  const line = await until(() =>
    stack.log.find(({ requestId }) => requestId === answer.headers['x-request-id']?.[0]),
  );
  expect(line).toMatchObject({ operation: 'other' });
});

test.each(['/v1/index.php', '/v1/index.php?x=/../%2f%00//', '/v1/index.php?'])(
  '%s is a payout',
  async (target) => {
    const before = stack.sandbox.ledger.payouts();
    const { answer } = await ask(target);
    expect(answer.status).toBe(201);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  },
);

test('any other target is forwarded byte for byte', async () => {
  for (const target of ['/v3/echo?a=%2F..//\\&b=%00', '/v3/echo?', '/v3/echo?http://x/']) {
    const { answer } = await ask(target);
    expect(answer.json().url).toBe(target);
  }
});

test('a path with encoded UTF-8 is forwarded byte for byte', async () => {
  const path = '/v3/caf%C3%A9/%e6%97%a5';
  const { answer } = await ask(path);
  expect(answer.status).toBe(201);
  expect(stack.sandbox.requests.ofPath(`POST ${path}`)).toBe(1);
});
