import request from 'supertest';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expectNothingSent } from '../../support/nothing-sent.ts';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, codeOf, head, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const payout = payoutBody();
const pay = (authorization?: string) => {
  const post = request(stack.url).post('/v1/index.php').set('x-service-idempotency', 'auth-1');
  return (authorization === undefined ? post : post.set('Authorization', authorization)).send(payout);
};

describe('a request without valid credentials', () => {
  test.each([
    ['no Authorization', undefined],
    ['an empty Authorization', ''],
    ['another scheme', 'Basic c2tfc2FuZGJveF9hbHBoYTo='],
    ['the bare secret key', 'sk_sandbox_alpha'],
    ['a scheme without a key', 'Bearer'],
    ['two keys', 'Bearer sk_sandbox_alpha, Bearer sk_sandbox_bravo'],
    ['a key with a space', 'Bearer sk_sandbox alpha'],
    ['a key of 600 characters', `Bearer ${'x'.repeat(600)}`],
  ])('%s is answered 401 missing_credentials, and nothing is sent', async (_name, authorization) => {
    const answer = await expectNothingSent(stack, () => pay(authorization));
    expect(answer.status).toBe(401);
    expect(answer.headers['www-authenticate']).toBe('Bearer realm="oncegate"');
    expect(answer.headers['content-type']).toBe('application/problem+json');
    expect(answer.headers['cache-control']).toBe('no-store');
    expect(answer.body).toMatchObject({
      success: false,
      type: 'urn:oncegate:problem:missing_credentials',
      status: 401,
      error: { code: 'missing_credentials', request_id: answer.headers['x-request-id'] },
    });
  });

  test.each([
    ['two different keys', [ALPHA, 'Authorization: Bearer sk_sandbox_bravo']],
    ['the same key', [ALPHA, ALPHA]],
    ['in another letter case', [ALPHA, 'AUTHORIZATION: Bearer sk_sandbox_alpha']],
    ['the second one empty', [ALPHA, 'Authorization:']],
  ])('Authorization twice, %s, is answered 401 missing_credentials', async (_name, fields) => {
    const answer = await expectNothingSent(stack, async () => {
      const wire = await Wire.open(stack.port);
      return await wire.write(head('GET /v3/echo', ...fields)).answer();
    });
    expect([answer.status, codeOf(answer)]).toEqual([401, 'missing_credentials']);
  });

  test('is answered 401 on every path, declared or not', async () => {
    await expectNothingSent(stack, async () => {
      for (const path of ['/', '/v3/echo', '/v2/get_balance', '/_sandbox/ledger', '/favicon.ico']) {
        expect((await request(stack.url).get(path)).status).toBe(401);
        expect((await request(stack.url).head(path)).status).toBe(401);
        expect((await request(stack.url).options(path)).status).toBe(401);
      }
    });
  });
});

describe('a secret key that is not valid', () => {
  const keys = {
    unknown: 'sk_test_unknown',
    revoked: 'sk_test_revoked',
    expired: 'sk_test_expired',
    future: 'sk_test_future',
  };

  test('gets the same answer if it is unknown, revoked, expired or not yet valid', async () => {
    const seen = await expectNothingSent(stack, async () => {
      const answers: string[] = [];
      for (const secret of Object.values(keys)) {
        const fields = [`Authorization: Bearer ${secret}`, 'X-Request-Id: the-same-one', 'Connection: close'];
        const wire = await Wire.open(stack.port);
        await wire.write(head('GET /v2/get_balance', ...fields)).ended;
        answers.push(wire.rest.replace(/\r\nDate: [^\r]+/, ''));
      }
      return answers;
    });
    expect(seen[0]).toMatch(/^HTTP\/1\.1 401 /);
    expect(new Set(seen).size).toBe(1);
  });

  test.each(Object.entries(keys))('%s is answered 401 invalid_key', async (_name, secret) => {
    const answer = await expectNothingSent(stack, () => pay(`Bearer ${secret}`));
    expect(answer.status).toBe(401);
    expect(answer.headers['www-authenticate']).toBe('Bearer realm="oncegate", error="invalid_token"');
    expect(answer.body.error.code).toBe('invalid_key');
    expect(answer.text).not.toContain(secret);
  });
});

describe('a secret key with scopes', () => {
  const only = 'Bearer sk_test_balance_only';

  test('may call what its scopes name', async () => {
    const answer = await request(stack.url).get('/v2/get_balance').set('Authorization', only);
    // The sandbox does not know this key. Its own challenge shows that the request reached it.
    expect(answer.headers['www-authenticate']).toBe('Bearer realm="sandbox"');
    // Also with another method on the path of its operation.
    const head = await request(stack.url).head('/v2/get_balance').set('Authorization', only);
    expect(head.headers['www-authenticate']).toBe('Bearer realm="sandbox"');
  });

  test.each([
    ['withdraw', () => pay(only)],
    ['checkout', () => pay(only).send({ action: 'checkout', amount: 1, reference: 'r' })],
    ['other', () => pay(only).send({ action: 'refund' })],
    ['undeclared', () => request(stack.url).post('/v3/echo').set('Authorization', only).send('x')],
    ['withdraw', () => request(stack.url).get('/v1/index.php').set('Authorization', only)],
  ])('without the scope %s is answered 403 insufficient_scope, and nothing is sent', async (scope, ask) => {
    const answer = await expectNothingSent(stack, async () => await ask());
    expect(answer.status).toBe(403);
    expect(answer.headers['www-authenticate']).toBe(
      `Bearer realm="oncegate", error="insufficient_scope", scope="${scope}"`,
    );
    if (answer.text) expect(answer.body.error.code).toBe('insufficient_scope');
  });
});

test('a well-formed request id of the merchant is kept, and any other is replaced', async () => {
  const answeredId = async (id: string) => {
    const answer = await request(stack.url).get('/').set('X-Request-Id', id);
    expect(answer.body.error.request_id).toBe(answer.headers['x-request-id']);
    return answer.headers['x-request-id'];
  };
  expect(await answeredId('order-4711.a_b')).toBe('order-4711.a_b');
  for (const id of ['short', 'x'.repeat(129), 'with space', 'a"b"c"d"e', '12345678, 87654321']) {
    expect(await answeredId(id)).toMatch(/^[0-9a-f-]{36}$/);
  }
});
