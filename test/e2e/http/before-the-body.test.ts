import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, codeOf, head, Wire, type WireAnswer } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({ limits: { bodyBytes: 1000 } });
});
afterAll(() => stack.close());

/** The answer to a head whose body is never sent. Reads the first answer, so that a `100 Continue` would be noticed. */
async function answerToHead(...parts: Parameters<typeof head>): Promise<WireAnswer> {
  const wire = await Wire.open(stack.port);
  const answer = await wire.write(head(...parts)).answer();
  expect(answer.headers.connection).toEqual(['close']);
  expect(await wire.ended).toBe('end');
  return answer;
}

const refused: [string, string, string[], [number, string]][] = [
  ['no credentials', 'POST /v1/index.php', [], [401, 'missing_credentials']],
  ['no credentials', 'POST /v3/echo', [], [401, 'missing_credentials']],
  ['an unknown key', 'POST /v1/index.php', ['Authorization: Bearer sk_no'], [401, 'invalid_key']],
  [
    'a key without the scope',
    'PUT /v3/echo',
    ['Authorization: Bearer sk_test_balance_only'],
    [403, 'insufficient_scope'],
  ],
  ['an ambiguous target', 'POST //v1/index.php', [ALPHA], [400, 'invalid_target']],
  [
    'a key without the scope',
    'POST /v1/index.php/',
    ['Authorization: Bearer sk_test_balance_only'],
    [403, 'insufficient_scope'],
  ],
  [
    'a method override',
    'POST /v1/index.php',
    ['Authorization: Bearer sk_test_balance_only', 'X-HTTP-Method-Override: PUT'],
    [403, 'insufficient_scope'],
  ],
  ['two hosts', 'POST /v3/echo', [ALPHA, 'Host: other.test'], [400, 'invalid_request']],
];

describe.each(refused)('%s on %s', (_name, line, fields, expected) => {
  test.each([
    ['a body of known length', ['Content-Length: 1000000']],
    ['a chunked body', ['Transfer-Encoding: chunked']],
    ['a body that waits for 100 Continue', ['Content-Length: 1000000', 'Expect: 100-continue']],
    ['a chunked body that waits for 100 Continue', ['Transfer-Encoding: chunked', 'Expect: 100-continue']],
  ])('is answered before %s', async (_body, framing) => {
    const answer = await expectNothingSent(stack, () => answerToHead(line, ...fields, ...framing));
    expect([answer.status, codeOf(answer)]).toEqual(expected);
  });
});

describe('a body whose Content-Length exceeds the limit', () => {
  test.each([[['Content-Length: 1001']], [['Content-Length: 1001', 'Expect: 100-continue']]])(
    'is answered 413 without 100 Continue: %s',
    async (framing) => {
      const answer = await expectNothingSent(stack, () =>
        answerToHead('POST /v1/index.php', ALPHA, 'x-service-idempotency: large-1', ...framing),
      );
      expect([answer.status, codeOf(answer)]).toEqual([413, 'body_too_large']);
    },
  );
});

test('an unknown expectation is answered 417', async () => {
  await expectNothingSent(stack, async () => {
    const wire = await Wire.open(stack.port);
    const answer = await wire
      .write(head('POST /v3/echo', ALPHA, 'Expect: a-miracle', 'Content-Length: 0'))
      .answer();
    expect(answer.status).toBe(417);
  });
});
