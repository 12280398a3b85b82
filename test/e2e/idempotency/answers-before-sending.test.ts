import { randomUUID } from 'node:crypto';
import request from 'supertest';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { payoutBody } from '../../support/payout.ts';
import { type ExpectedProblem, expectProblem } from '../../support/problem.ts';
import { payoutBytes, rawExchange } from '../../support/raw.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn } from '../../support/stores.ts';
import { operations } from './requests.ts';

const BODY_LIMIT = 4096;
const REALM = 'Bearer realm="oncegate"';
const ALPHA = 'Bearer sk_sandbox_alpha';

let stack: Stack;
let received: number;

const post = (authorization: string | undefined, body: string | object | Buffer, key?: string) => {
  const test = request(stack.url).post('/v1/index.php').set('Content-Type', 'application/json');
  if (authorization !== undefined) test.set('Authorization', authorization);
  if (key !== undefined) test.set('x-service-idempotency', key);
  return test.send(body);
};

beforeAll(async () => {
  stack = await openStackOn('sqlite', { operations, limits: { bodyBytes: BODY_LIMIT } });
});
afterAll(() => stack?.close());
beforeEach(() => {
  received = stack.sandbox.requests.total();
});

/** Every answer here means: nothing was sent to the backend. */
afterEach(() => {
  expect(stack.sandbox.requests.total()).toBe(received);
  expect(stack.sandbox.ledger.payouts()).toBe(0);
});

const missing: ExpectedProblem = { status: 401, code: 'missing_credentials', authenticate: REALM };
it.each([
  ['no Authorization', undefined],
  ['another scheme', 'Basic c2tfc2FuZGJveF9hbHBoYTo='],
  ['a scheme without a secret key', 'Bearer'],
  ['two secret keys', `${ALPHA}, ${ALPHA}`],
  ['a secret key that is none', 'Bearer sk sandbox'],
])('%s: missing_credentials', async (_, authorization) => {
  expectProblem(await post(authorization, payoutBody(), randomUUID()), missing);
});

it('Authorization on two lines: missing_credentials', async () => {
  const [answer] = await rawExchange(stack.port, payoutBytes({ lines: [`Authorization: ${ALPHA}`] }));
  expectProblem(answer ?? expect.fail('no answer'), missing);
});

it.each(['sk_nobody', 'sk_test_revoked', 'sk_test_expired', 'sk_test_future'])(
  'the secret key %s: invalid_key',
  async (secret) => {
    const authenticate = `${REALM}, error="invalid_token"`;
    const answer = await post(`Bearer ${secret}`, payoutBody(), randomUUID());
    expectProblem(answer, { status: 401, code: 'invalid_key', authenticate });
  },
);

it('a secret key without the scope: insufficient_scope', async () => {
  const authenticate = `${REALM}, error="insufficient_scope", scope="withdraw"`;
  const answer = await post('Bearer sk_test_balance_only', payoutBody(), randomUUID());
  expectProblem(answer, { status: 403, code: 'insufficient_scope', authenticate });
});

it.each([
  '/v1/./index.php',
  '/v1/x/../index.php',
  '//v1/index.php',
  '/v1%2findex.php',
  '/v1\\index.php',
  '/v1/index.php%00',
])('the target %s: invalid_target', async (target) => {
  const [answer] = await rawExchange(
    stack.port,
    payoutBytes({ target, lines: [`x-service-idempotency: ${randomUUID()}`] }),
  );
  expectProblem(answer ?? expect.fail('no answer'), { status: 400, code: 'invalid_target' });
});

/** On this path a checkout requires a key, and it is unclear whether each of these is one. */
it.each<[string, string | Buffer]>([
  ['that is no JSON', '{"action":"withdraw"'],
  ['that is no object', '[{"action":"withdraw"}]'],
  ['with a member twice', '{"action":"checkout","action":"withdraw"}'],
  ['with a member twice, once escaped', '{"action":"checkout","\\u0061ction":"withdraw"}'],
  ['with a member of another case', '{"Action":"withdraw"}'],
  ['with an action that is no string', '{"action":true}'],
  ['with an action in another spelling', '{"action":" Withdraw"}'],
  ['that is not UTF-8', Buffer.from('{"action":"withdraw","note":"\xff"}', 'latin1')],
  ['with a byte order mark', '\ufeff{"action":"withdraw"}'],
  ['over the limit', `{"action":"withdraw","note":"${'x'.repeat(BODY_LIMIT)}"}`],
])('a body %s, without a key: idempotency_key_required', async (_, body) => {
  const [answer] = await rawExchange(stack.port, payoutBytes({ body }));
  expectProblem(answer ?? expect.fail('no answer'), { status: 400, code: 'idempotency_key_required' });
});

it.each(['/V1/index.php', '/v1/index.php/', '/v1/index.php/more', '/v1/index%2ephp'])(
  'the target %s, which resembles that path, without a key: idempotency_key_required',
  async (target) => {
    const [answer] = await rawExchange(stack.port, payoutBytes({ target }));
    expectProblem(answer ?? expect.fail('no answer'), { status: 400, code: 'idempotency_key_required' });
  },
);

it.each(['PUT', 'DELETE', 'PATCH'])(
  'the method %s on that path, without a key: idempotency_key_required',
  async (method) => {
    const bytes = payoutBytes().toString('latin1').replace('POST', method);
    const [answer] = await rawExchange(stack.port, bytes);
    expectProblem(answer ?? expect.fail('no answer'), { status: 400, code: 'idempotency_key_required' });
  },
);

it('a header that overrides the method, without a key: idempotency_key_required', async () => {
  const lines = ['X-HTTP-Method-Override: PUT'];
  const [answer] = await rawExchange(stack.port, payoutBytes({ lines }));
  expectProblem(answer ?? expect.fail('no answer'), { status: 400, code: 'idempotency_key_required' });
});

it('a body over the limit: body_too_large', async () => {
  const body = { ...payoutBody(), note: 'x'.repeat(BODY_LIMIT) };
  const answer = await post(ALPHA, body, randomUUID());
  expectProblem(answer, { status: 413, code: 'body_too_large' });
});

it('a body over the limit whose length is not announced: body_too_large', async () => {
  const chunk = 'x'.repeat(BODY_LIMIT / 2);
  const chunks = `${chunk.length.toString(16)}\r\n${chunk}\r\n`.repeat(3);
  const head = 'POST /v1/index.php HTTP/1.1\r\nHost: gateway.test\r\nTransfer-Encoding: chunked\r\n';
  const fields = `Authorization: ${ALPHA}\r\nx-service-idempotency: ${randomUUID()}\r\nConnection: close\r\n`;
  const bytes = `${head}${fields}\r\n${chunks}0\r\n\r\n`;
  const [answer] = await rawExchange(stack.port, bytes);
  expectProblem(answer ?? expect.fail('no answer'), { status: 413, code: 'body_too_large' });
});

it('a malformed key: idempotency_key_invalid', async () => {
  const answer = await post(ALPHA, payoutBody(), 'x'.repeat(256));
  expectProblem(answer, { status: 400, code: 'idempotency_key_invalid' });
});

it('an operation that requires a key, without one: idempotency_key_required', async () => {
  const answer = await post(ALPHA, { action: 'checkout', amount: 5 });
  expectProblem(answer, { status: 400, code: 'idempotency_key_required' });
  expect(stack.sandbox.ledger.checkouts()).toBe(0);
});
