import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

/** The pauses that the payment API advises after a network error. */
const PAUSES_MS = [1000, 2000, 4000];
const BACKEND_MS = 6000;

describe.concurrent.each(storeKinds)('on %s', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind, { upstream: { responseTimeoutMs: 20_000 } });
  });
  afterAll(() => stack?.close());

  /** An attempt that the client aborts once the gateway has the request. */
  async function attempt(key: string, arrived: () => Promise<boolean> | boolean): Promise<void> {
    const network = new AbortController();
    const { signal } = network;
    const failed = withdraw(stack.url, { key, fault: `delay=${BACKEND_MS}`, signal }).catch(
      ({ name }: Error) => name,
    );
    await until(arrived);
    network.abort();
    expect(await failed).toBe('AbortError');
  }

  it('a client that follows the retry advice gets the original result of a backend that takes 6 s', async () => {
    const key = randomUUID();
    await attempt(key, () => stack.sandbox.requests.ofKey(key) === 1);
    let answer: TestAnswer | undefined;
    for (const [at, pauseMs] of PAUSES_MS.entries()) {
      await sleep(pauseMs);
      const last = at === PAUSES_MS.length - 1;
      if (last) answer = await withdraw(stack.url, { key, fault: `delay=${BACKEND_MS}` });
      else await attempt(key, async () => (await metric(stack.adminUrl, 'oncegate_waiting')) > 0);
    }
    expect([answer?.status, answer?.headers['idempotent-replayed']]).toEqual([201, 'true']);
    const [transaction] = stack.sandbox.ledger.transactions({ key });
    expect(answer?.json<{ data: { transaction_id: string } }>().data.transaction_id).toBe(transaction?.id);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });
});
