import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const RETENTION_MS = 1500;

describe.concurrent.each(storeKinds)('on %s, once its retention has passed', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind, { idempotency: { retentionMs: RETENTION_MS } });
  });
  afterAll(() => stack?.close());

  it('a key is new, however often it was asked for meanwhile', async () => {
    const key = randomUUID();
    const startedMs = performance.now();
    const first = await withdraw(stack.url, { key });
    expect(first.status).toBe(201);
    const second = await until(async () => {
      const answer = await withdraw(stack.url, { key });
      if (!answer.headers['idempotent-replayed']) return answer;
      expect(answer.body).toEqual(first.body);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
      return undefined;
    });
    // The clocks of the store and of this test need not agree to the millisecond.
    expect(performance.now() - startedMs).toBeGreaterThan(RETENTION_MS - 20);
    expect(second.status).toBe(201);
    expect(second.body).not.toEqual(first.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(2);
    const third = await withdraw(stack.url, { key });
    expect(third.headers['idempotent-replayed']).toBe('true');
    expect(third.body).toEqual(second.body);
  });

  it('a key in doubt is new as well', async () => {
    const key = randomUUID();
    await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    const answer = await until(async () => {
      const retry = await withdraw(stack.url, { key });
      return retry.status === 409 ? undefined : retry;
    });
    expect(answer.status).toBe(201);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(2);
  });
});
