import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { BEARER, isReplay, send, withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import { startRedis } from '../../support/redis-server.ts';
import { readiness, stackForTest } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const unavailable = { status: 503, code: 'store_unavailable', retryAfter: 1 } as const;
/** Long enough for a loaded machine, because this limit is for requests that are never answered. */
const TIMEOUT_MS = 1000;

it('while Redis gets every command and no reply arrives, a request with a key is not sent, one without passes, and a retry is executed once', async () => {
  const wire = await startProxy((await startRedis()).port);
  const stack = await stackForTest(onRedis(wire, TIMEOUT_MS));
  const { url, sandbox } = stack;
  const [completed, key] = [randomUUID(), randomUUID()];
  const before = await withdraw(url, { key: completed });
  expect(before.status).toBe(201);

  wire.swallowReplies(true);
  const unready = readiness(stack);
  for (const answer of await Promise.all([withdraw(url, { key }), withdraw(url, { key: completed })]))
    expectProblem(answer, unavailable);
  expect((await unready).status).toBe(503);
  expect(sandbox.requests.ofKey(key)).toBe(0);
  const payouts = sandbox.ledger.payouts();
  expect((await withdraw(url)).status).toBe(201);
  expect(sandbox.ledger.payouts()).toBe(payouts + 1);
  const safe = { ...BEARER, 'x-service-idempotency': key };
  expect((await send(url, { path: '/v2/get_balance', headers: safe })).status).toBe(200);

  wire.swallowReplies(false);
  const executed = await until(async () => {
    const answer = await withdraw(url, { key, headers: { Prefer: 'wait=1' } });
    if (answer.status === 201) return answer;
    expect(['store_unavailable', 'request_in_flight', 'outcome_unknown']).toContain(codeOf(answer));
    return undefined;
  });
  expect(isReplay(executed)).toBe(false);
  expect((await withdraw(url, { key })).body).toEqual(executed.body);
  expect((await withdraw(url, { key: completed })).body).toEqual(before.body);
  for (const one of [key, completed]) expect(sandbox.ledger.payouts({ key: one })).toBe(1);
});
