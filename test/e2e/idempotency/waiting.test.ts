import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis, openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const inFlight = { status: 409, code: 'request_in_flight', retryAfter: 1 } as const;
const PATIENT = { responseTimeoutMs: 20_000 };
const match = { method: 'POST', path: '/v1/index.php', body: { action: 'withdraw' } };

/** A payout that the backend has received, and does not execute before `end` is called. */
async function begin({ url, sandbox }: Stack, key: string) {
  const answer = withdraw(url, { key, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(key) === 1);
  const end = async () => {
    sandbox.endDelays(key);
    return await answer;
  };
  return { answer, end };
}

describe.concurrent.each(storeKinds)('on %s, a duplicate', (kind) => {
  let patient: Stack;
  let hasty: Stack;
  beforeAll(async () => {
    patient = await openStackOn(kind, { upstream: PATIENT });
    const idempotency = { key: 'optional', waitMs: 400 } as const;
    hasty = await openStackOn(kind, {
      upstream: PATIENT,
      operations: [{ name: 'withdraw', match, idempotency }],
    });
  });
  afterAll(async () => {
    await patient?.close();
    await hasty?.close();
  });

  it('waits for the result of the first request', async () => {
    const key = randomUUID();
    const first = await begin(patient, key);
    const duplicate = withdraw(patient.url, { key });
    await until(async () => (await metric(patient.adminUrl, 'oncegate_waiting')) > 0);
    expect(patient.sandbox.ledger.payouts({ key })).toBe(0);
    const [executed, again] = await Promise.all([first.end(), duplicate]);
    expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(again.body).toEqual(executed.body);
    expect(patient.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('with Prefer: wait=0 is answered at once', async () => {
    const key = randomUUID();
    const first = await begin(patient, key);
    for (const prefer of ['wait=0', 'respond-async, wait=0', 'Wait="0"; foo']) {
      expectProblem(await withdraw(patient.url, { key, headers: { Prefer: prefer } }), inFlight);
    }
    expect(patient.sandbox.ledger.payouts({ key })).toBe(0);
    expect((await first.end()).status).toBe(201);
    // After the first request there is nothing to wait for.
    const replay = await withdraw(patient.url, { key, headers: { Prefer: 'wait=0' } });
    expect([replay.status, replay.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(patient.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('with Prefer: wait=1 is answered after a second', async () => {
    const key = randomUUID();
    const first = await begin(patient, key);
    const startedMs = performance.now();
    expectProblem(await withdraw(patient.url, { key, headers: { Prefer: 'wait=1' } }), inFlight);
    expect(performance.now() - startedMs).toBeGreaterThan(950);
    expect(patient.sandbox.ledger.payouts({ key })).toBe(0);
    expect((await first.end()).status).toBe(201);
    expect(patient.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('gets the result within its shortened wait', async () => {
    const key = randomUUID();
    const first = await begin(patient, key);
    const duplicate = withdraw(patient.url, { key, headers: { Prefer: 'wait=9' } });
    await until(async () => (await metric(patient.adminUrl, 'oncegate_waiting')) > 0);
    await first.end();
    const again = await duplicate;
    expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(again.body).toEqual((await first.answer).body);
    expect(patient.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('waits no longer than waitMs, whatever its Prefer header says', async () => {
    const key = randomUUID();
    const first = await begin(hasty, key);
    const prefers = [{}, { Prefer: 'wait=20' }, { Prefer: 'wait=nonsense' }];
    const startedMs = performance.now();
    for (const answer of await Promise.all(prefers.map((headers) => withdraw(hasty.url, { key, headers })))) {
      expectProblem(answer, inFlight);
    }
    expect(performance.now() - startedMs).toBeGreaterThan(380);
    expect(hasty.sandbox.ledger.payouts({ key })).toBe(0);
    expect((await first.end()).status).toBe(201);
    expect(hasty.sandbox.ledger.payouts({ key })).toBe(1);
  });
});

describe.concurrent('a duplicate', () => {
  it('above idempotency.maxWaiters is answered at once', async () => {
    const stack = await openStackOn('sqlite', { upstream: PATIENT, idempotency: { maxWaiters: 2 } });
    try {
      const key = randomUUID();
      const first = await begin(stack, key);
      const waiting = [withdraw(stack.url, { key }), withdraw(stack.url, { key })];
      await until(async () => (await metric(stack.adminUrl, 'oncegate_waiting')) === 2);
      expectProblem(await withdraw(stack.url, { key }), inFlight);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
      for (const answer of await Promise.all([first.end(), ...waiting])) expect(answer.status).toBe(201);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    } finally {
      await stack.close();
    }
  });

  it('stops waiting when its merchant disconnects, and the first request is not affected', async () => {
    const stack = await openStackOn('sqlite', { upstream: PATIENT });
    try {
      const key = randomUUID();
      const first = await begin(stack, key);
      const leaving = new AbortController();
      const left = withdraw(stack.url, { key, signal: leaving.signal }).catch((error: Error) => error.name);
      await until(async () => (await metric(stack.adminUrl, 'oncegate_waiting')) === 1);
      leaving.abort();
      expect(await left).toBe('AbortError');
      await until(async () => (await metric(stack.adminUrl, 'oncegate_waiting')) === 0);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
      expect((await first.end()).status).toBe(201);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    } finally {
      await stack.close();
    }
  });

  it('does not begin to wait if its merchant has already disconnected', async () => {
    const redis = await startRedis();
    const stack = await openStack({ ...onRedis(redis), upstream: PATIENT });
    try {
      const key = randomUUID();
      const first = await begin(stack, key);
      redis.freeze();
      const leaving = new AbortController();
      const left = withdraw(stack.url, { key, signal: leaving.signal }).catch((error: Error) => error.name);
      await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 2);
      leaving.abort();
      expect(await left).toBe('AbortError');
      const connections = () =>
        new Promise<number>((resolve) => stack.gateway.server.getConnections((_, count) => resolve(count)));
      await until(async () => (await connections()) === 1);
      redis.thaw();
      await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 1);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
      expect((await first.end()).status).toBe(201);
    } finally {
      await stack.close();
      await redis.stop();
    }
  });
});
