import { randomUUID } from 'node:crypto';
import request from 'supertest';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { payoutBody } from '../../support/payout.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { operations } from './requests.ts';

describe.each(storeKinds)('on %s, a key', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind, { operations });
  });
  afterAll(() => stack?.close());

  const post = (secret: string, key: string, body: object = payoutBody()) =>
    request(stack.url)
      .post('/v1/index.php')
      .set({ Authorization: `Bearer ${secret}`, 'x-service-idempotency': key })
      .send(body);

  it('belongs to its merchant: two merchants, two payouts, and no data of one in the other’s answer', async () => {
    const key = randomUUID();
    const alpha = await post('sk_sandbox_alpha', key).expect(201);
    const bravo = await post('sk_sandbox_bravo', key).expect(201);
    expect(bravo.headers).not.toHaveProperty('idempotent-replayed');
    expect(bravo.text).not.toContain(alpha.body.data.transaction_id);

    const { ledger } = stack.sandbox;
    expect(ledger.payouts({ key })).toBe(2);
    for (const [merchant, secret, first] of [
      ['M-ALPHA', 'sk_sandbox_alpha', alpha],
      ['M-BRAVO', 'sk_sandbox_bravo', bravo],
    ] as const) {
      const again = await post(secret, key).expect(201).expect('Idempotent-Replayed', 'true');
      expect(again.text).toBe(first.text);
      const ids = ledger.transactions({ key, merchant }).map(({ id }) => id);
      expect(ids).toEqual([first.body.data.transaction_id]);
    }
  });

  it('of one merchant does not show another what is stored under it', async () => {
    const key = randomUUID();
    await post('sk_sandbox_alpha', key).expect(201);
    // Another amount: with a shared scope this would be a 422.
    await post('sk_sandbox_bravo', key, payoutBody(77)).expect(201);
    expect(stack.sandbox.ledger.payouts({ key, merchant: 'M-BRAVO' })).toBe(1);
  });

  it('outlives the secret key: after a rotation the old payout is found', async () => {
    const key = randomUUID();
    const old = await post('sk_sandbox_alpha', key).expect(201);
    const rotated = await post('sk_sandbox_alpha_2', key).expect(201).expect('Idempotent-Replayed', 'true');
    expect(rotated.text).toBe(old.text);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('protects payouts and checkouts, which share one key space', async () => {
    const [key, other] = [randomUUID(), randomUUID()];
    const checkout = { action: 'checkout', amount: 5 };
    const first = await post('sk_sandbox_alpha', key, checkout).expect(201);
    const again = await post('sk_sandbox_alpha', key, checkout).expect('Idempotent-Replayed', 'true');
    expect(again.text).toBe(first.text);
    await post('sk_sandbox_alpha', key).expect(422);
    await post('sk_sandbox_alpha', other).expect(201);
    expect(stack.sandbox.ledger.checkouts({ key })).toBe(1);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
  });

  it('is required for a replay: without one every request is executed', async () => {
    const before = stack.sandbox.ledger.payouts();
    const answers = await Promise.all(
      Array.from({ length: 3 }, () =>
        request(stack.url)
          .post('/v1/index.php')
          .set('Authorization', 'Bearer sk_sandbox_alpha')
          .send(payoutBody())
          .expect(201),
      ),
    );
    for (const { headers } of answers) expect(headers).not.toHaveProperty('idempotent-replayed');
    expect(stack.sandbox.ledger.payouts()).toBe(before + 3);
  });

  it('has no effect on safe methods, well formed or not', async () => {
    const key = randomUUID();
    const balance = () =>
      request(stack.url).get('/v2/get_balance').set('Authorization', 'Bearer sk_sandbox_charlie');
    for (const _ of ['first', 'second']) {
      const answer = await balance().set('x-service-idempotency', key).expect(200);
      expect(answer.headers).not.toHaveProperty('idempotent-replayed');
    }
    expect(stack.sandbox.requests.ofKey(key)).toBe(2);
    await balance().set('x-service-idempotency', 'x'.repeat(300)).expect(200);
  });

  it('protects an action that no operation declares', async () => {
    const key = randomUUID();
    await post('sk_sandbox_alpha', key, { action: 'refund' }).expect(422, /unknown_action/);
    const second = await post('sk_sandbox_alpha', key, { action: 'refund' }).expect(422, /unknown_action/);
    expect(second.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });
});
