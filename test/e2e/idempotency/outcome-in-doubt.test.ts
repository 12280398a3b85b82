import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';

interface Lost {
  fault: string;
  payouts: number;
}

/** The connection breaks after the first byte of the request and before the last byte of the answer. */
const broken: Lost[] = [
  { fault: 'refuse', payouts: 0 },
  { fault: 'reset-before-execute', payouts: 0 },
  { fault: 'execute-then-reset', payouts: 1 },
  { fault: 'garbage', payouts: 1 },
  { fault: 'truncate', payouts: 1 },
  { fault: 'truncate-chunked', payouts: 1 },
  { fault: 'huge=30000,truncate', payouts: 1 },
];

/** The complete answer does not arrive within `responseTimeoutMs`. */
const late: Lost[] = [
  { fault: 'hang', payouts: 0 },
  { fault: 'execute-then-hang', payouts: 1 },
  { fault: 'drip=300', payouts: 1 },
];

describe.concurrent.each(storeKinds)('on %s', (kind) => {
  describe('a truncated answer', () => {
    let stack: Stack;
    beforeAll(async () => {
      stack = await openStackOn(kind);
    });
    afterAll(() => stack?.close());

    it.each(broken)('($fault) leaves the key in doubt', async (lost) => {
      await staysInDoubt(stack, lost, 502);
    });

    it('does not leave another merchant’s key, or another key, in doubt', async () => {
      const [key, other] = [randomUUID(), randomUUID()];
      await staysInDoubt(stack, { fault: 'execute-then-reset', payouts: 1 }, 502, key);
      expect((await withdraw(stack.url, { key, secret: 'sk_sandbox_bravo' })).status).toBe(201);
      expect((await withdraw(stack.url, { key: other })).status).toBe(201);
      expect(stack.sandbox.ledger.payouts({ key, merchant: 'M-ALPHA' })).toBe(1);
    });
  });

  describe('an answer that is late', () => {
    let stack: Stack;
    beforeAll(async () => {
      stack = await openStackOn(kind, { upstream: { responseTimeoutMs: 1500 } });
    });
    afterAll(() => stack?.close());

    it.each(late)('($fault) leaves the key in doubt', async (lost) => {
      await staysInDoubt(stack, lost, 504);
    });

    it('informs the waiting duplicates', async () => {
      const key = randomUUID();
      const first = withdraw(stack.url, { key, fault: 'execute-then-hang' });
      const waiting = Array.from({ length: 5 }, () =>
        withdraw(stack.url, { key, fault: 'execute-then-hang' }),
      );
      const answers = await Promise.all([first, ...waiting]);
      const [firstAnswer, ...others] = answers.toSorted((a, b) => b.status - a.status);
      if (firstAnswer) expectProblem(firstAnswer, { status: 504, code: 'outcome_unknown' });
      for (const other of others) expectProblem(other, { status: 409, code: 'outcome_unknown' });
      expect(others).toHaveLength(5);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    });
  });
});

/** The first gets `status`, every retry 409, and the backend sees one request. */
async function staysInDoubt(
  { url, sandbox }: Stack,
  { fault, payouts }: Lost,
  status: number,
  key: string = randomUUID(),
): Promise<void> {
  expectProblem(await withdraw(url, { key, fault }), { status, code: 'outcome_unknown' });
  for (const _ of ['second', 'third']) {
    expectProblem(await withdraw(url, { key }), { status: 409, code: 'outcome_unknown' });
  }
  // Another request under this key still gets its own answer.
  expectProblem(await withdraw(url, { key, amount: 11 }), { status: 422, code: 'idempotency_key_reused' });
  expect(sandbox.ledger.payouts({ key })).toBe(payouts);
  expect(sandbox.requests.ofKey(key)).toBe(1);
}
