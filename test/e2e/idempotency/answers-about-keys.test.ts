import { randomUUID } from 'node:crypto';
import request from 'supertest';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { payoutBody } from '../../support/payout.ts';
import { expectProblem } from '../../support/problem.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const ALPHA = 'Bearer sk_sandbox_alpha';

describe.concurrent.each(storeKinds)('on %s, the answer to', (kind) => {
  let running: Stack;
  beforeAll(async () => {
    running = await openStackOn(kind, { upstream: { responseTimeoutMs: 4000 } });
  });
  afterAll(() => running?.close());

  const withdraw = (key: string, { amount = 10, fault = '', prefer = '' } = {}) => {
    const test = request(running.url).post('/v1/index.php').set('Authorization', ALPHA);
    if (fault) test.set('X-Sandbox-Fault', fault);
    if (prefer) test.set('Prefer', prefer);
    return test.set('x-service-idempotency', key).send(payoutBody(amount));
  };

  it('the same key with another request, after the first one: idempotency_key_reused', async () => {
    const key = randomUUID();
    await withdraw(key).expect(201);
    expectProblem(await withdraw(key, { amount: 11 }), { status: 422, code: 'idempotency_key_reused' });
    const otherTarget = await request(running.url)
      .post('/v1/index.php?source=app')
      .set({ Authorization: ALPHA, 'x-service-idempotency': key })
      .send(payoutBody());
    expectProblem(otherTarget, { status: 422, code: 'idempotency_key_reused' });
    expect(running.sandbox.ledger.payouts({ key })).toBe(1);
    expect(running.sandbox.requests.ofKey(key)).toBe(1);
  });

  it('the same key while the first one runs: idempotency_key_reused, request_in_flight', async () => {
    const key = randomUUID();
    const first = withdraw(key, { fault: 'delay=60000' }).then((answer) => answer);
    await until(() => running.sandbox.requests.ofKey(key) === 1);
    expectProblem(await withdraw(key, { amount: 11 }), { status: 422, code: 'idempotency_key_reused' });
    const impatient = await withdraw(key, { prefer: 'wait=0' });
    expectProblem(impatient, { status: 409, code: 'request_in_flight', retryAfter: 1 });
    expect(running.sandbox.ledger.payouts({ key })).toBe(0);
    running.sandbox.endDelays(key);
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

  it('the answer has the merchant’s request id if it is well formed', async () => {
    const key = randomUUID();
    await withdraw(key).expect(201);
    const refused = await withdraw(key, { amount: 11 }).set('X-Request-Id', 'order-7.retry_1');
    expectProblem(refused, { status: 422, code: 'idempotency_key_reused' });
    expect(refused.headers['x-request-id']).toBe('order-7.retry_1');
    for (const malformed of ['short', 'with a space', 'x'.repeat(129)]) {
      const replaced = await withdraw(key, { amount: 11 }).set('X-Request-Id', malformed);
      expectProblem(replaced, { status: 422, code: 'idempotency_key_reused' });
      expect(replaced.headers['x-request-id']).not.toBe(malformed);
    }
  });
});
