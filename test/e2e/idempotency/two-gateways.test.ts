import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ProblemCode } from '../../../src/kernel/problem.ts';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { FAST_START } from '../../support/command.ts';
import { expectProblem } from '../../support/problem.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { openGateway, type Stack, type TestGateway } from '../../support/stack.ts';
import { openStackOn } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

/** Short enough to lapse within a test, long enough for a loaded machine to renew it in time. */
const LEASE_MS = 4000;

interface Pair {
  stack: Stack;
  /** The second gateway's address. */
  other: string;
  close(): Promise<unknown>;
}

async function onOneRedis(): Promise<Pair> {
  const stack = await openStackOn('redis', {
    lock: { leaseMs: LEASE_MS },
    upstream: { responseTimeoutMs: 20_000 },
  });
  let second: TestGateway | undefined;
  const close = async () => {
    await second?.shutdown();
    await stack.close();
  };
  try {
    second = await openGateway(stack.config);
    return { stack, other: second.url, close };
  } catch (error) {
    await close();
    throw error;
  }
}

async function onOneFolder(): Promise<Pair> {
  const stack = await openStackOn('sqlite', {
    lock: { leaseMs: LEASE_MS },
    upstream: { responseTimeoutMs: 20_000 },
  });
  let second: SpawnedGateway | undefined;
  const close = async () => {
    await second?.end();
    await stack.close();
  };
  try {
    second = await spawnGateway(stack.config, FAST_START);
    return { stack, other: second.url, close };
  } catch (error) {
    await close();
    throw error;
  }
}

const replayed = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';

describe.concurrent.each([
  ['one Redis', onOneRedis],
  ['one SQLite file, in two processes', onOneFolder],
])('two gateways on %s', (_, open) => {
  let pair: Pair;
  beforeAll(async () => {
    pair = await open();
  });
  afterAll(() => pair?.close());

  it('execute 40 duplicates that reach both at once only once', async () => {
    const key = randomUUID();
    const { stack, other } = pair;
    const burst = Array.from({ length: 40 }, (_, at) =>
      withdraw(at % 2 === 0 ? stack.url : other, { key, fault: 'delay=100' }),
    );
    const answers = await Promise.all(burst);
    expect(answers.map(({ status }) => status)).toEqual(Array(40).fill(201));
    expect(new Set(answers.map(({ body }) => body.toString())).size).toBe(1);
    expect(answers.filter(replayed)).toHaveLength(39);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it.each(['first', 'second'])('share the result of an execution by the %s one', async (which) => {
    const key = randomUUID();
    const { stack, other } = pair;
    const [here, there] = which === 'first' ? [stack.url, other] : [other, stack.url];
    const first = withdraw(here, { key, fault: 'delay=60000' });
    await until(() => stack.sandbox.requests.ofKey(key) === 1);

    expectProblem(await withdraw(there, { key, headers: { Prefer: 'wait=0' } }), {
      status: 409,
      code: 'request_in_flight',
      retryAfter: 1,
    });
    expectProblem(await withdraw(there, { key, amount: 11 }), {
      status: 422,
      code: 'idempotency_key_reused',
    });
    expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
    const waiting = withdraw(there, { key });
    stack.sandbox.endDelays(key);
    const waited = await waiting;
    expect(replayed(waited)).toBe(true);
    expect(waited.body).toEqual((await first).body);
    expect((await withdraw(there, { key })).body).toEqual(waited.body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });

  it('wait for an execution that takes longer than its lease', async () => {
    const key = randomUUID();
    const { stack, other } = pair;
    const first = withdraw(other, { key, fault: `delay=${LEASE_MS * 1.5}` });
    await until(() => stack.sandbox.requests.ofKey(key) === 1);
    const waited = await withdraw(stack.url, { key });
    expect([waited.status, replayed(waited)]).toEqual([201, true]);
    expect(waited.body).toEqual((await first).body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });

  it('have stored every result when they answer: the other one never has to wait for it', async () => {
    const { stack, other } = pair;
    const outcomes: { fault: string; status: number; next: number; code?: ProblemCode }[] = [
      { fault: 'delay=1', status: 201, next: 201 },
      { fault: 'status=429', status: 429, next: 201 },
      { fault: 'execute-then-reset', status: 502, next: 409, code: 'outcome_unknown' },
      { fault: 'huge=1100000', status: 201, next: 409, code: 'response_not_stored' },
    ];
    for (const { fault, status, next, code } of [...outcomes, ...outcomes, ...outcomes]) {
      const key = randomUUID();
      expect((await withdraw(stack.url, { key, fault })).status).toBe(status);
      const answer = await withdraw(other, { key, headers: { Prefer: 'wait=0' } });
      expect(answer.status).toBe(next);
      if (code) expectProblem(answer, { status: next, code });
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    }
  });
});
