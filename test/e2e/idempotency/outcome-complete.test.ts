import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { send, type TestAnswer, type Withdrawal, withdraw } from '../../support/client.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { endToEndLines } from './answers.ts';

interface Complete {
  what: string;
  fault?: string;
  amount?: number;
  status: number;
  payouts: number;
}

/** Complete responses of any status: each is the result of the one execution. */
const completed: Complete[] = [
  { what: 'a success', status: 201, payouts: 1 },
  { what: 'a success after early hints', fault: 'early-hints', status: 201, payouts: 1 },
  { what: 'a success in many small pieces', fault: 'drip=1', status: 201, payouts: 1 },
  { what: '500 behind an execution', fault: '500-after', status: 500, payouts: 1 },
  { what: '503 behind an execution', fault: '503-after', status: 503, payouts: 1 },
  { what: '500 without one', fault: '500-before', status: 500, payouts: 0 },
  { what: '503 without one', fault: '503-before', status: 503, payouts: 0 },
  { what: 'too little money', amount: 2_000_000, status: 402, payouts: 0 },
  { what: 'no content', fault: 'status=204', status: 204, payouts: 0 },
  { what: 'not modified', fault: 'status=304', status: 304, payouts: 0 },
  { what: '404', fault: 'status=404', status: 404, payouts: 0 },
  { what: '409 of the backend', fault: 'status=409', status: 409, payouts: 0 },
];

describe.each(storeKinds)('on %s', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind);
  });
  afterAll(() => stack?.close());

  it.each(completed)(
    '$what is completed, and replayed byte for byte',
    async ({ fault, amount, ...expected }) => {
      const key = randomUUID();
      const payout: Withdrawal = amount === undefined ? { key } : { key, amount };
      const first = await withdraw(stack.url, fault === undefined ? payout : { ...payout, fault });
      expect(first.status).toBe(expected.status);
      expect(first.headers).not.toHaveProperty('idempotent-replayed');

      for (const _ of ['second', 'third']) {
        const again = await withdraw(stack.url, payout);
        expect(again.status).toBe(expected.status);
        expect(again.body).toEqual(first.body);
        expect(endToEndLines(again)).toEqual([...endToEndLines(first), ['Idempotent-Replayed', 'true']]);
      }
      expect(stack.sandbox.ledger.payouts({ key })).toBe(expected.payouts);
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
    },
  );

  it.each([401, 403, 429])('%i is passed on unchanged, and the key is free for a retry', async (status) => {
    const key = randomUUID();
    const direct = await refusedBy(stack.sandbox.url, status);
    for (const _ of ['first', 'second']) {
      const refused = await withdraw(stack.url, { key, fault: `status=${status}` });
      expect(refused.status).toBe(status);
      expect(refused.body).toEqual(direct.body);
      expect(undated(endToEndLines(refused))).toEqual(undated(endToEndLines(direct)));
    }
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);

    const executed = await withdraw(stack.url, { key });
    expect([executed.status, executed.headers['idempotent-replayed']]).toEqual([201, undefined]);
    const replayed = await withdraw(stack.url, { key });
    expect([replayed.status, replayed.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(replayed.body).toEqual(executed.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });
});

describe('an operation with configured release statuses', () => {
  let stack: Stack;
  beforeAll(async () => {
    const match = { method: 'POST', path: '/v1/index.php', body: { action: 'withdraw' } };
    stack = await openStackOn('sqlite', {
      operations: [{ name: 'withdraw', match, idempotency: { key: 'optional', release: [503] } }],
    });
  });
  afterAll(() => stack?.close());

  it('releases those, and completes the others', async () => {
    const [released, completed] = [randomUUID(), randomUUID()];
    expect((await withdraw(stack.url, { key: released, fault: '503-before' })).status).toBe(503);
    expect((await withdraw(stack.url, { key: released })).status).toBe(201);
    expect((await withdraw(stack.url, { key: completed, fault: '429-before' })).status).toBe(429);
    expect((await withdraw(stack.url, { key: completed })).status).toBe(429);
    expect(stack.sandbox.ledger.payouts({ key: released })).toBe(1);
    expect(stack.sandbox.ledger.payouts({ key: completed })).toBe(0);
  });
});

/** The backend's answer without the gateway. */
async function refusedBy(url: string, status: number): Promise<TestAnswer> {
  const headers = { 'X-Sandbox-Fault': `status=${status}`, 'Content-Type': 'application/json' };
  return await send(url, { method: 'POST', path: '/v1/index.php', headers, body: '{}' });
}

const undated = (lines: [string, string][]) => lines.filter(([name]) => name !== 'Date');
