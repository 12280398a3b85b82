import { randomUUID } from 'node:crypto';
import request from 'supertest';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { type ExpectedProblem, expectProblem } from '../../support/problem.ts';
import { answersOn, payoutBytes, rawConnection, rawExchange } from '../../support/raw.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { operations, payout } from './requests.ts';

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
  stack = await openStackOn('lmdb', { operations, limits: { bodyBytes: BODY_LIMIT } });
});
afterAll(() => stack?.close());
beforeEach(() => {
  received = stack.sandbox.requests.total();
});

/** Every answer of this part means: nothing was sent to the backend. */
describe('before anything is sent', () => {
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
    expectProblem(await post(authorization, payout(), randomUUID()), missing);
  });

  it('Authorization on two lines: missing_credentials', async () => {
    const [answer] = await rawExchange(stack.port, payoutBytes({ lines: [`Authorization: ${ALPHA}`] }));
    expectProblem(answer ?? expect.fail('no answer'), missing);
  });

  it.each(['sk_nobody', 'sk_test_revoked', 'sk_test_expired', 'sk_test_future'])(
    'the secret key %s: invalid_key',
    async (secret) => {
      const authenticate = `${REALM}, error="invalid_token"`;
      const answer = await post(`Bearer ${secret}`, payout(), randomUUID());
      expectProblem(answer, { status: 401, code: 'invalid_key', authenticate });
    },
  );

  it('a secret key without the scope: insufficient_scope', async () => {
    const authenticate = `${REALM}, error="insufficient_scope", scope="withdraw"`;
    const answer = await post('Bearer sk_test_balance_only', payout(), randomUUID());
    expectProblem(answer, { status: 403, code: 'insufficient_scope', authenticate });
  });

  it.each([
    '/v1/./index.php',
    '/v1/x/../index.php',
    '//v1/index.php',
    '/v1%2findex.php',
    '/v1\\index.php',
    '/v1/index.php%00',
    '/V1/index.php',
    '/v1/index.php/',
    '/v1/index.php/more',
    '/v1/index%2ephp',
  ])('the target %s: invalid_target', async (target) => {
    const [answer] = await rawExchange(
      stack.port,
      payoutBytes({ target, lines: [`x-service-idempotency: ${randomUUID()}`] }),
    );
    expectProblem(answer ?? expect.fail('no answer'), { status: 400, code: 'invalid_target' });
  });

  it.each<[string, string | Buffer]>([
    ['that is empty', ''],
    ['that is no JSON', '{"action":"withdraw"'],
    ['that is no object', '[{"action":"withdraw"}]'],
    ['with a member twice', '{"action":"checkout","action":"withdraw"}'],
    ['with a member twice, once escaped', '{"action":"checkout","\\u0061ction":"withdraw"}'],
    ['with a member of another case', '{"Action":"withdraw"}'],
    ['with an action that is no string', '{"action":true}'],
    ['with an action in another spelling', '{"action":" Withdraw"}'],
    ['that is not UTF-8', Buffer.from('{"action":"withdraw","note":"\xff"}', 'latin1')],
    ['with a byte order mark', '\ufeff{"action":"withdraw"}'],
  ])('a body %s: invalid_body', async (_, body) => {
    const key = `x-service-idempotency: ${randomUUID()}`;
    const [answer] = await rawExchange(stack.port, payoutBytes({ body, lines: [key] }));
    expectProblem(answer ?? expect.fail('no answer'), { status: 400, code: 'invalid_body' });
  });

  it('a body over the limit: body_too_large', async () => {
    const body = { ...payout(), note: 'x'.repeat(BODY_LIMIT) };
    const answer = await post(ALPHA, body, randomUUID());
    expectProblem(answer, { status: 413, code: 'body_too_large' });
  });

  it('a body over the limit whose length is not announced: body_too_large', async () => {
    const chunk = 'x'.repeat(BODY_LIMIT / 2);
    const chunks = `${chunk.length.toString(16)}\r\n${chunk}\r\n`.repeat(3);
    const head = 'POST /v1/index.php HTTP/1.1\r\nHost: gateway.test\r\nTransfer-Encoding: chunked\r\n';
    const bytes = `${head}Authorization: ${ALPHA}\r\nConnection: close\r\n\r\n${chunks}0\r\n\r\n`;
    const [answer] = await rawExchange(stack.port, bytes);
    expectProblem(answer ?? expect.fail('no answer'), { status: 413, code: 'body_too_large' });
  });

  it('a malformed key: idempotency_key_invalid', async () => {
    const answer = await post(ALPHA, payout(), 'x'.repeat(256));
    expectProblem(answer, { status: 400, code: 'idempotency_key_invalid' });
  });

  it('an operation that requires a key, without one: idempotency_key_required', async () => {
    const answer = await post(ALPHA, { action: 'checkout', amount: 5 });
    expectProblem(answer, { status: 400, code: 'idempotency_key_required' });
    expect(stack.sandbox.ledger.checkouts()).toBe(0);
  });

  it('no room: overloaded', async () => {
    const full = await openStackOn('lmdb', { limits: { inFlight: 1 } });
    try {
      const key = randomUUID();
      const running = request(full.url)
        .post('/v1/index.php')
        .set({ Authorization: ALPHA, 'x-service-idempotency': key, 'X-Sandbox-Fault': 'delay=500' })
        .send(payout())
        .then((answer) => answer);
      await until(() => full.sandbox.requests.ofKey(key) === 1);
      const refused = await request(full.url)
        .post('/v1/index.php')
        .set('Authorization', ALPHA)
        .send(payout());
      expectProblem(refused, { status: 503, code: 'overloaded', retryAfter: 1 });
      expect((await running).status).toBe(201);
      expect(full.sandbox.ledger.payouts()).toBe(1);
    } finally {
      await full.close();
    }
  });
});

it('on a connection that outlives the gateway: shutting_down', async () => {
  const ending = await openStackOn('lmdb', { shutdown: { graceMs: 10_000 } });
  try {
    const [first, second] = [randomUUID(), randomUUID()];
    const connection = await rawConnection(ending.port);
    const answered = answersOn(connection);
    const keepAlive = ['Connection: keep-alive', 'X-Sandbox-Fault: delay=500'];
    connection.write(payoutBytes({ lines: [...keepAlive, `x-service-idempotency: ${first}`] }));
    await until(() => ending.sandbox.requests.ofKey(first) === 1);
    const ended = ending.shutdown();
    connection.write(payoutBytes({ lines: [`x-service-idempotency: ${second}`] }));

    const [executed, refused] = await answered;
    expect(executed?.status).toBe(201);
    expectProblem(refused ?? expect.fail('no second answer'), {
      status: 503,
      code: 'shutting_down',
      retryAfter: 1,
    });
    await ended;
    expect(ending.sandbox.ledger.payouts({ key: first })).toBe(1);
    expect(ending.sandbox.requests.ofKey(second)).toBe(0);
  } finally {
    await ending.close();
  }
});

describe.each(storeKinds)('about a key on %s', (kind) => {
  let running: Stack;
  beforeAll(async () => {
    running = await openStackOn(kind, { upstream: { responseTimeoutMs: 3000 } });
  });
  afterAll(() => running?.close());

  const withdraw = (key: string, { amount = 10, fault = '', prefer = '' } = {}) => {
    const test = request(running.url).post('/v1/index.php').set('Authorization', ALPHA);
    if (fault) test.set('X-Sandbox-Fault', fault);
    if (prefer) test.set('Prefer', prefer);
    return test.set('x-service-idempotency', key).send(payout(amount));
  };

  it('the same key with another request, behind the first one: idempotency_key_reused', async () => {
    const key = randomUUID();
    await withdraw(key).expect(201);
    expectProblem(await withdraw(key, { amount: 11 }), { status: 422, code: 'idempotency_key_reused' });
    const otherTarget = await request(running.url)
      .post('/v1/index.php?source=app')
      .set({ Authorization: ALPHA, 'x-service-idempotency': key })
      .send(payout());
    expectProblem(otherTarget, { status: 422, code: 'idempotency_key_reused' });
    expect(running.sandbox.ledger.payouts({ key })).toBe(1);
    expect(running.sandbox.requests.ofKey(key)).toBe(1);
  });

  it('the same key while the first one runs: idempotency_key_reused, request_in_flight', async () => {
    const key = randomUUID();
    const first = withdraw(key, { fault: 'delay=600' }).then((answer) => answer);
    await until(() => running.sandbox.requests.ofKey(key) === 1);
    expectProblem(await withdraw(key, { amount: 11 }), { status: 422, code: 'idempotency_key_reused' });
    const impatient = await withdraw(key, { prefer: 'wait=0' });
    expectProblem(impatient, { status: 409, code: 'request_in_flight', retryAfter: 1 });
    expect(running.sandbox.ledger.payouts({ key })).toBe(0);
    expect((await first).status).toBe(201);
    expect(running.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('an outcome that cannot be known: outcome_unknown, to the first and to the retries', async () => {
    const [reset, hung] = [randomUUID(), randomUUID()];
    const lost = await Promise.all([
      withdraw(reset, { fault: 'execute-then-reset' }),
      withdraw(hung, { fault: 'execute-then-hang' }),
    ]);
    expectProblem(lost[0], { status: 502, code: 'outcome_unknown' });
    expectProblem(lost[1], { status: 504, code: 'outcome_unknown' });
    for (const key of [reset, hung]) {
      const retry = await withdraw(key);
      expectProblem(retry, { status: 409, code: 'outcome_unknown' });
      expect(retry.body.detail).toMatch(/ since 20\d\d-\d\d-\d\dT/);
      expect(running.sandbox.ledger.payouts({ key })).toBe(1);
    }
  });

  it('a result that was too large: response_not_stored', async () => {
    const key = randomUUID();
    await withdraw(key, { fault: 'huge=1100000' }).expect(201);
    expectProblem(await withdraw(key), { status: 409, code: 'response_not_stored' });
    expect(running.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('the request id is the merchant’s own where it is well formed', async () => {
    const key = randomUUID();
    await withdraw(key).expect(201);
    const told = await withdraw(key, { amount: 11 }).set('X-Request-Id', 'order-7.retry_1');
    expectProblem(told, { status: 422, code: 'idempotency_key_reused' });
    expect(told.headers['x-request-id']).toBe('order-7.retry_1');
    for (const malformed of ['short', 'with a space', 'x'.repeat(129)]) {
      const replaced = await withdraw(key, { amount: 11 }).set('X-Request-Id', malformed);
      expectProblem(replaced, { status: 422, code: 'idempotency_key_reused' });
      expect(replaced.headers['x-request-id']).not.toBe(malformed);
    }
  });
});
