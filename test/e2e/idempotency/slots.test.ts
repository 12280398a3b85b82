import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { BEARER, isReplay, send, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { type Stack, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { LOOKUP_TOKEN, lookingUp } from './policies.ts';

const overloaded = { status: 503, code: 'overloaded', retryAfter: 1 } as const;

const queued = ({ adminUrl }: Stack) => metric(adminUrl, 'oncegate_upstream_slots_queued');
const inUse = ({ adminUrl }: Stack) => metric(adminUrl, 'oncegate_upstream_slots_in_use');
const balance = (url: string) => send(url, { path: '/v2/get_balance', headers: BEARER });
const newKeys = (count: number) => Array.from({ length: count }, () => randomUUID() as string);

/** Those of the keys for which the store has a record. */
async function stored({ gateway }: Stack, keys: readonly string[]): Promise<string[]> {
  const shown = await Promise.all(
    keys.map((key) => gateway.desk.answer({ kind: 'show', scope: recordIdOf('gateway', 'M-ALPHA', key) })),
  );
  return keys.filter((_, at) => shown[at]?.kind === 'found');
}

it('while all slots are taken, what the store or a lookup can answer is answered, and streams pass through', async () => {
  const policy = lookingUp({ firstAfterMs: 60_000, maxPauseMs: 60_000, releaseAfterMs: 20_000 }, 5000);
  const upstream = { maxConnections: 1, maxQueued: 0, responseTimeoutMs: 20_000 };
  const stack = await stackForTest(
    { ...policy, upstream, idempotency: { maxStoredBytes: 2048 } },
    { lookupToken: LOOKUP_TOKEN },
  );
  const { url, sandbox } = stack;
  const [completed = '', tombstone = '', doubtful = '', held = ''] = newKeys(4);
  const paid = await withdraw(url, { key: completed });
  expect((await withdraw(url, { key: tombstone, fault: 'huge=100000' })).status).toBe(201);
  expect((await withdraw(url, { key: doubtful, fault: 'execute-then-reset' })).status).toBe(502);
  await until(async () => (await inUse(stack)) === 0);
  const first = withdraw(url, { key: held, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(held) === 1);
  const duplicates = [1, 2, 3].map(() => withdraw(url, { key: held }));

  const replay = await withdraw(url, { key: completed });
  expect([replay.status, isReplay(replay), replay.body]).toEqual([201, true, paid.body]);
  const conflict = { status: 422, code: 'idempotency_key_reused' } as const;
  for (const key of [completed, held]) expectProblem(await withdraw(url, { key, amount: 11 }), conflict);
  expectProblem(await withdraw(url, { key: tombstone }), { status: 409, code: 'response_not_stored' });
  expectProblem(await withdraw(url, { key: held, headers: { Prefer: 'wait=0' } }), {
    ...{ status: 409, code: 'request_in_flight', retryAfter: 1 },
  });
  // The backend is asked what became of it.
  expect(isReplay(await withdraw(url, { key: doubtful }))).toBe(true);
  expect((await send(url, { path: '/v3/echo', headers: BEARER })).status).toBe(200);
  // A new request needs a slot.
  expectProblem(await withdraw(url, { key: randomUUID() }), overloaded);
  expect(sandbox.ledger.payouts({ key: held })).toBe(0);

  sandbox.endDelays(held);
  for (const answer of await Promise.all([first, ...duplicates]))
    expect([answer.status, answer.body]).toEqual([201, (await first).body]);
  expect(sandbox.requests.ofKey(held)).toBe(1);
});

it('if the queue is full or takes too long, requests get 503 overloaded, and nothing is stored or sent', async () => {
  const upstream = { maxConnections: 1, maxQueued: 3, queueTimeoutMs: 1500 };
  const stack = await stackForTest({ upstream: { ...upstream, responseTimeoutMs: 20_000 } });
  const { sandbox } = stack;
  const [held = '', late = '', ...refused] = newKeys(5);
  const first = withdraw(stack.url, { key: held, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(held) === 1);
  const waiting = [withdraw(stack.url, { key: late }), withdraw(stack.url), balance(stack.url)];
  await until(async () => (await queued(stack)) === 3);

  for (const key of refused) expectProblem(await withdraw(stack.url, { key }), overloaded);
  expectProblem(await withdraw(stack.url), overloaded);
  expectProblem(await balance(stack.url), overloaded);
  for (const answer of await Promise.all(waiting)) expectProblem(answer, overloaded);
  expect(await stored(stack, [late, ...refused])).toEqual([]);
  expect([await inUse(stack), await queued(stack)]).toEqual([1, 0]);

  sandbox.endDelays(held);
  expect((await first).status).toBe(201);
  for (const key of [late, ...refused]) expect((await withdraw(stack.url, { key })).status).toBe(201);
  expect([sandbox.requests.total(), sandbox.ledger.payouts()]).toEqual([5, 5]);
});
