import { describe, expect, it } from 'vitest';
import { Observation } from '../../../src/idempotency/observation.ts';
import { systemClock } from '../../../src/lib/clock.ts';
import { BEARER, send, type TestAnswer, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import type { MoreConfig } from '../../support/config.ts';
import { emitTo } from '../../support/emit.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRedis } from '../../support/redis-server.ts';
import { newRequest, paid } from '../../support/requests.ts';
import { gatewayForTest, payAndLeave, type Stack, stackForTest } from '../../support/stack.ts';
import { onRedis, storeForTest } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const OBSERVE = { mode: 'observe' } as const;

const count = ({ adminUrl }: Pick<Stack, 'adminUrl'>, would: string, operation = 'withdraw') =>
  metric(adminUrl, 'oncegate_observed_total', { operation, would });

const observing = (more: MoreConfig = {}) =>
  stackForTest({ ...more, idempotency: { ...OBSERVE, ...more.idempotency } });

/** The state of a key's record, or undefined. */
async function stateOf({ gateway }: Stack, key: string): Promise<string | undefined> {
  const answer = await gateway.desk.list({ inDoubt: false, limit: 100 });
  if (answer.kind !== 'found') throw new Error('the store does not answer');
  return answer.value.records.find((record) => record.key === key)?.state;
}

/** The store has what became of the first request. Until then, a duplicate of it counts as `waited`. */
const recorded = (stack: Stack, state: string | undefined, key: string) =>
  until(async () => (await stateOf(stack, key)) === state);

/** The backend itself has answered: no gateway has replayed or refused anything. */
const expectPaid = ({ status, headers }: TestAnswer) => {
  expect(status).toBe(201);
  expect(headers).not.toHaveProperty('idempotent-replayed');
};

describe('a gateway that observes', () => {
  it('sends each duplicate to the backend, and counts what it would have stopped', async () => {
    const stack = await observing();
    const { url, sandbox } = stack;
    const first = await withdraw(url, { key: 'again' });
    await recorded(stack, 'completed', 'again');
    const second = await withdraw(url, { key: 'again' });
    for (const answer of [first, second]) expectPaid(answer);
    expect(second.body).not.toEqual(first.body);
    expect(sandbox.ledger.payouts({ key: 'again' })).toBe(2);
    await until(async () => (await count(stack, 'replayed')) === 1);

    expectPaid(await withdraw(url, { key: 'again', amount: 11 }));
    await until(async () => (await count(stack, 'mismatch')) === 1);

    const slow = withdraw(url, { key: 'slow', fault: 'delay=60000' });
    await until(() => sandbox.requests.ofKey('slow') > 0);
    await recorded(stack, 'executing', 'slow');
    const waited = withdraw(url, { key: 'slow', fault: 'delay=60000' });
    await until(async () => (await count(stack, 'waited')) === 1);
    sandbox.endDelays('slow');
    for (const answer of await Promise.all([slow, waited])) expectPaid(answer);
    expect(sandbox.ledger.payouts({ key: 'slow' })).toBe(2);

    expect((await withdraw(url, { key: 'lost', fault: 'execute-then-reset' })).status).toBe(502);
    await recorded(stack, 'in_doubt', 'lost');
    expectPaid(await withdraw(url, { key: 'lost' }));
    await until(async () => (await count(stack, 'in_doubt')) === 1);
    expect(sandbox.ledger.payouts({ key: 'lost' })).toBe(2);

    // What the backend refused is not a duplicate the next time.
    expect((await withdraw(url, { key: 'busy', fault: 'status=429' })).status).toBe(429);
    await until(async () => (await count(stack, 'executed')) === 4);
    await recorded(stack, undefined, 'busy');
    expectPaid(await withdraw(url, { key: 'busy' }));
    await until(async () => (await count(stack, 'executed')) === 5);
    expect(await count(stack, 'replayed')).toBe(1);
    expect(await metric(stack.adminUrl, 'oncegate_unobserved_total')).toBe(0);
    expect(await metric(stack.adminUrl, 'oncegate_idempotency_hits_total')).toBe(0);

    // The line of a request has it if the store has answered by then.
    await until(async () => {
      expectPaid(await withdraw(url, { key: 'busy' }));
      return stack.log.some(({ would }) => would === 'replayed');
    });
    const line = stack.log.find(({ would }) => would === 'replayed');
    expect(line).toMatchObject({ msg: 'request', outcome: 'forwarded', status: 201, operation: 'withdraw' });
    expect(line?.recordId).toMatch(/^[0-9a-f]{16}$/);
  });

  it('leaves keys that no later gateway executes or replays', async () => {
    const stack = await observing();
    const paid = await withdraw(stack.url, { key: 'once' });
    expectPaid(paid);
    await withdraw(stack.url, { key: 'lost', fault: 'execute-then-reset' });
    await recorded(stack, 'completed', 'once');
    await recorded(stack, 'in_doubt', 'lost');
    const protecting = await gatewayForTest({ ...stack.config, idempotency: { mode: 'protect' } });

    const retry = await withdraw(protecting.url, { key: 'once' });
    expectProblem(retry, { status: 409, code: 'response_not_stored' });
    expect(retry.headers['idempotent-original-request-id']).toBe(paid.headers['x-request-id']);
    const lost = await withdraw(protecting.url, { key: 'lost' });
    expectProblem(lost, { status: 409, code: 'outcome_unknown' });
    expect(stack.sandbox.ledger.payouts({ key: 'once' })).toBe(1);
    expect(stack.sandbox.ledger.payouts({ key: 'lost' })).toBe(1);

    // The other way round: what was protected is not protected by a gateway that observes.
    expectPaid(await withdraw(protecting.url, { key: 'protected' }));
    expectPaid(await withdraw(stack.url, { key: 'protected' }));
    expect(stack.sandbox.ledger.payouts({ key: 'protected' })).toBe(2);
    await until(async () => (await count(stack, 'replayed')) === 1);
    // The record still has the protected response.
    expect((await withdraw(protecting.url, { key: 'protected' })).headers['idempotent-replayed']).toBe(
      'true',
    );
  });

  it('forwards what it would have refused because of the key', async () => {
    const operations: MoreConfig['operations'] = [
      { name: 'pay', match: { method: 'POST', path: '/v3/echo' }, idempotency: { key: 'required' } },
    ];
    const stack = await observing({ operations, limits: { bodyBytes: 1024 } });
    const post = (headers: Record<string, string | string[]>, body = '{}') =>
      send(stack.url, { method: 'POST', path: '/v3/echo', headers: { ...BEARER, ...headers }, body });
    const large = 'x'.repeat(2000);
    for (const answer of [
      await post({}),
      await post({ 'x-service-idempotency': '' }),
      await post({ 'x-service-idempotency': ['one', 'two'] }),
      await post({ 'x-service-idempotency': 'large' }, large),
    ])
      expect(answer.status).toBe(200);
    expect(await count(stack, 'key_required', 'pay')).toBe(1);
    expect(await count(stack, 'invalid_key', 'pay')).toBe(2);
    expect(await count(stack, 'body_too_large', 'pay')).toBe(1);
    // What does not depend on keys is refused as ever.
    expect((await withdraw(stack.url, { secret: 'sk_unknown', key: 'a' })).status).toBe(401);
    expect((await withdraw(stack.url, { secret: 'sk_test_balance_only', key: 'a' })).status).toBe(403);
    expect((await send(stack.url, { path: '/v1//index.php', headers: BEARER })).status).toBe(400);
  });

  it('says so at the start, on /readyz and in its metrics', async () => {
    const stack = await observing();
    const warning = expect.stringMatching(/^idempotency\.mode is observe: nothing is protected/);
    expect(await stack.gateway.readiness.warnings()).toContainEqual(
      expect.stringMatching(/^operations: idempotency\.mode is observe: nothing is protected/),
    );
    const ready = await send(stack.adminUrl, { path: '/readyz' });
    expect(ready.status).toBe(200);
    expect(ready.json()).toMatchObject({
      checks: expect.arrayContaining([
        { name: 'operations', ok: true, detail: 'declared', warnings: [warning] },
      ]),
    });
    expect(await metric(stack.adminUrl, 'oncegate_observing')).toBe(1);
    const protecting = await stackForTest();
    expect(await metric(protecting.adminUrl, 'oncegate_observing')).toBe(0);
  });

  it('serves as usual while Redis stands still, and when it is gone', async () => {
    const redis = await startRedis();
    const timeoutMs = 1500;
    const stack = await stackForTest({ ...onRedis(redis, timeoutMs), idempotency: OBSERVE });
    expectPaid(await withdraw(stack.url, { key: 'before' }));
    await until(async () => (await count(stack, 'executed')) === 1);
    redis.freeze();
    const startedMs = performance.now();
    for (let i = 0; i < 5; i++) expectPaid(await withdraw(stack.url, { key: `frozen-${i}` }));
    // Had one of them waited for the store, it would have taken longer.
    expect(performance.now() - startedMs).toBeLessThan(timeoutMs);
    const unobserved = () =>
      metric(stack.adminUrl, 'oncegate_unobserved_total', { operation: 'withdraw', reason: 'store' });
    await until(async () => (await unobserved()) === 5);
    await redis.kill();
    for (let i = 0; i < 5; i++) expectPaid(await withdraw(stack.url, { key: `gone-${i}` }));
    await until(async () => (await unobserved()) === 10);
    const ready = await send(stack.adminUrl, { path: '/readyz' });
    expect(ready.status).toBe(200);
    expect(ready.body.toString()).toContain('the store does not work: nothing is observed meanwhile');
    await redis.restart();
    await until(async () => {
      expectPaid(await withdraw(stack.url, { key: 'after' }));
      return (await count(stack, 'executed')) === 2;
    });
  });

  it('observes a response that is too large to be stored, and a request whose merchant has left', async () => {
    const stack = await observing({ idempotency: { maxStoredBytes: 1024 } });
    const { url, sandbox } = stack;
    for (let times = 0; times < 2; times++) {
      const huge = await withdraw(url, { key: 'huge', fault: 'huge=100000' });
      expect([huge.status, huge.body.length >= 100_000]).toEqual([201, true]);
      await recorded(stack, 'completed', 'huge');
    }
    await until(async () => (await count(stack, 'replayed')) === 1);

    await payAndLeave(stack, 'left');
    sandbox.endDelays('left');
    await recorded(stack, 'completed', 'left');
    expectPaid(await withdraw(url, { key: 'left' }));
    expect(sandbox.ledger.payouts({ key: 'left' })).toBe(2);
    await until(async () => (await count(stack, 'replayed')) === 2);
  });

  it('keeps the lease of a request that takes longer than it', async () => {
    const stack = await observing({ lock: { leaseMs: 1000 } });
    const slow = withdraw(stack.url, { key: 'long', fault: 'delay=60000' });
    // Each renewal is due a third of the lease after the one before, so four of them take longer than the lease.
    await until(async () => (await renewals(stack)) >= 4);
    expectPaid(await withdraw(stack.url, { key: 'long' }));
    await until(async () => (await count(stack, 'waited')) === 1);
    stack.sandbox.endDelays('long');
    expectPaid(await slow);
    await recorded(stack, 'completed', 'long');
  });
});

const renewals = ({ adminUrl }: Stack) =>
  metric(adminUrl, 'oncegate_store_duration_seconds_count', { command: 'renew', result: 'ok' });

it('observes no more requests at once than it may, and observes again when one has ended', async () => {
  const store = await storeForTest({ kind: 'sqlite', path: newFolder() });
  const seen: string[] = [];
  const emit = emitTo({
    observed: ({ would }) => seen.push(would),
    unobserved: ({ reason }) => seen.push(reason),
    stale: () => seen.push('stale'),
    lease_lost: () => seen.push('lease lost'),
  });
  const observation = new Observation(store, { leaseMs: 10_000, mostOpen: 1 }, emit, systemClock);
  const policy = { statuses: { release: [429], unknown: [502] }, inDoubt: 'hold' as const };
  const begin = () => observation.begin({ ...newRequest(), ...policy }, () => {});
  const { response } = paid();
  const end = begin();
  begin()({ kind: 'complete', response });
  expect(seen).toEqual(['too_many']);
  end({ kind: 'complete', response });
  // Waits until the record of the first one is completed.
  await observation.close(10_000);
  begin()({ kind: 'complete', response });
  await observation.close(10_000);
  expect(seen).toEqual(['too_many', 'executed', 'executed']);
});
