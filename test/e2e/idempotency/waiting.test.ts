import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { isReplay, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { type Stack, stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { payoutOf, Wire } from '../../support/wire.ts';

const inFlight = { status: 409, code: 'request_in_flight', retryAfter: 1 } as const;
const upstream = { responseTimeoutMs: 20_000 };

/** A payout that the backend has received, and does not execute before `end` is called. */
async function begin({ url, sandbox }: Stack, key: string, fault = 'delay=60000') {
  const answer = withdraw(url, { key, fault });
  await until(() => sandbox.requests.ofKey(key) === 1);
  const end = async () => {
    sandbox.endDelays(key);
    return await answer;
  };
  return { answer, end };
}

const waiting = ({ adminUrl }: Stack, count: number) =>
  until(async () => (await metric(adminUrl, 'oncegate_waiting')) === count);

const stack = await stackForFile({ upstream, idempotency: { maxWaiters: 100 } });

describe('a duplicate', () => {
  it('waits for the result of the first request', async () => {
    const key = randomUUID();
    const first = await begin(stack, key);
    const duplicates = [{}, { Prefer: 'wait=9' }].map((headers) => withdraw(stack.url, { key, headers }));
    await waiting(stack, 2);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
    const executed = await first.end();
    for (const again of await Promise.all(duplicates)) {
      expect([again.status, isReplay(again)]).toEqual([201, true]);
      expect(again.body).toEqual(executed.body);
    }
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('with Prefer: wait=0 is answered at once', async () => {
    const key = randomUUID();
    const first = await begin(stack, key);
    for (const prefer of ['wait=0', 'respond-async, wait=0', 'Wait="0"; foo'])
      expectProblem(await withdraw(stack.url, { key, headers: { Prefer: prefer } }), inFlight);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
    expect((await first.end()).status).toBe(201);
    // After the first request there is nothing to wait for.
    expect(isReplay(await withdraw(stack.url, { key, headers: { Prefer: 'wait=0' } }))).toBe(true);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('on the same connection, sent before the first request is answered, gets its result', async () => {
    const key = randomUUID();
    const bytes = payoutOf(key, 'X-Sandbox-Fault: delay=100');
    const wire = (await Wire.open(stack.port)).write(Buffer.concat([bytes, bytes]));
    const [first, second] = [await wire.answer(), await wire.answer()];
    expect([first.status, second.status]).toEqual([201, 201]);
    expect([second.body, wire.rest]).toEqual([first.body, '']);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });
});

it('no duplicate waits longer than waitMs, nor above maxWaiters', async () => {
  const match = { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } };
  const stack = await stackForTest({
    upstream,
    operations: [{ name: 'withdraw', match, idempotency: { waitMs: 500 } }],
    idempotency: { maxWaiters: 1 },
  });
  const key = randomUUID();
  const first = await begin(stack, key);
  const startedMs = performance.now();
  const duplicate = withdraw(stack.url, { key, headers: { Prefer: 'wait=20' } });
  await waiting(stack, 1);
  expectProblem(await withdraw(stack.url, { key }), inFlight);
  expectProblem(await duplicate, inFlight);
  expect(performance.now() - startedMs).toBeGreaterThan(480);
  expect((await first.end()).status).toBe(201);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});
