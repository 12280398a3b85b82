import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import { payoutBytes, rawExchange } from '../../support/raw.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const replayed = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';
const bodies = (answers: TestAnswer[]) => new Set(answers.map(({ body }) => body.toString()));

describe.each(storeKinds)('on %s', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind);
  });
  afterAll(() => stack?.close());

  it('50 payouts at once with one key are one payout, and all get the same bytes', async () => {
    const key = randomUUID();
    const burst = Array.from({ length: 50 }, () => withdraw(stack.url, { key, fault: 'delay=150' }));
    const answers = await Promise.all(burst);
    expect(answers.map(({ status }) => status)).toEqual(Array(50).fill(201));
    expect(bodies(answers).size).toBe(1);
    expect(answers.filter(replayed)).toHaveLength(49);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });

  it('50 payouts at once with 50 keys are 50 payouts', async () => {
    const keys = Array.from({ length: 50 }, () => randomUUID());
    const answers = await Promise.all(keys.map((key) => withdraw(stack.url, { key })));
    expect(answers.map(({ status }) => status)).toEqual(Array(50).fill(201));
    expect(bodies(answers).size).toBe(50);
    expect(answers.filter(replayed)).toHaveLength(0);
    for (const key of keys) expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('20 keys, 10 times each and all at once, are 20 payouts', async () => {
    const keys = Array.from({ length: 20 }, () => randomUUID());
    const rounds = Array.from({ length: 10 }, () =>
      keys.map(async (key) => ({ key, answer: await withdraw(stack.url, { key, fault: 'delay=30' }) })),
    );
    const answers = await Promise.all(rounds.flat());
    for (const key of keys) {
      const ofKey = answers.filter((entry) => entry.key === key).map(({ answer }) => answer);
      expect(bodies(ofKey).size).toBe(1);
      expect(ofKey.filter(replayed)).toHaveLength(9);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    }
  });

  it('2 payouts on one connection, the second sent before the first is answered, are one payout', async () => {
    const key = randomUUID();
    const lines = [`x-service-idempotency: ${key}`, 'X-Sandbox-Fault: delay=100'];
    const bytes = [payoutBytes({ lines: ['Connection: keep-alive', ...lines] }), payoutBytes({ lines })];
    const [first, second, ...more] = await rawExchange(stack.port, Buffer.concat(bytes));
    expect([first?.status, second?.status, more.length]).toEqual([201, 201, 0]);
    expect(second?.body).toEqual(first?.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('of simultaneous requests with different amounts the first is executed, and the others are refused', async () => {
    const key = randomUUID();
    const amounts = Array.from({ length: 20 }, (_, at) => at + 1);
    const answers = await Promise.all(
      amounts.map((amount) => withdraw(stack.url, { key, amount, fault: 'delay=100' })),
    );
    const refused = answers.filter(({ status }) => status !== 201);
    expect(refused).toHaveLength(19);
    for (const answer of refused) expectProblem(answer, { status: 422, code: 'idempotency_key_reused' });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('when the first is released, one waiting duplicate is executed, and the others get its result', async () => {
    const key = randomUUID();
    const first = withdraw(stack.url, { key, fault: 'status=429,delay=60000' });
    await until(() => stack.sandbox.requests.ofKey(key) === 1);
    const waiting = Array.from({ length: 8 }, () => withdraw(stack.url, { key }));
    await until(() => stack.gateway.metrics.text().then((text) => text.includes('oncegate_waiting 8')));
    stack.sandbox.endDelays(key);
    expect((await first).status).toBe(429);
    const answers = await Promise.all(waiting);
    expect(answers.map(({ status }) => status)).toEqual(Array(8).fill(201));
    expect(bodies(answers).size).toBe(1);
    expect(answers.filter(replayed)).toHaveLength(7);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(stack.sandbox.requests.ofKey(key)).toBe(2);
  });
});
