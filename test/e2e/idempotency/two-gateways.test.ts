/** Two gateways on one Redis. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ProblemCode } from '../../../src/lib/problem.ts';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import { expectProblem } from '../../support/problem.ts';
import { monitorRedis, type SeenCommand } from '../../support/redis-monitor.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { openGateway, openStack, type Stack, type TestGateway } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

/** Short enough to lapse within a test, long enough for a loaded machine to renew it in time. */
const LEASE_MS = 2000;
const replayed = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';

let redis: RedisServer;
let stack: Stack;
let other: TestGateway;
beforeAll(async () => {
  redis = await startRedis();
  stack = await openStack({
    ...onRedis(redis),
    lock: { leaseMs: LEASE_MS },
    upstream: { responseTimeoutMs: 20_000 },
  });
  other = await openGateway(stack.config);
});
afterAll(async () => {
  await other?.shutdown();
  await stack?.close();
});

describe('two gateways', () => {
  it('share the result of an execution that takes longer than its lease', async () => {
    const key = randomUUID();
    const first = withdraw(other.url, { key, fault: `delay=${LEASE_MS * 1.5}` });
    await until(() => stack.sandbox.requests.ofKey(key) === 1);
    expectProblem(await withdraw(stack.url, { key, headers: { Prefer: 'wait=0' } }), {
      ...{ status: 409, code: 'request_in_flight', retryAfter: 1 },
    });
    expectProblem(await withdraw(stack.url, { key, amount: 11 }), {
      ...{ status: 422, code: 'idempotency_key_reused' },
    });
    const waited = await withdraw(stack.url, { key });
    expect([waited.status, replayed(waited), waited.body]).toEqual([201, true, (await first).body]);
    expect([stack.sandbox.ledger.payouts({ key }), stack.sandbox.requests.ofKey(key)]).toEqual([1, 1]);
  });

  it('have stored every result when they answer: the other one never has to wait for it', async () => {
    const outcomes: { fault: string; status: number; next: number; code?: ProblemCode }[] = [
      { fault: 'delay=1', status: 201, next: 201 },
      { fault: 'status=429', status: 429, next: 201 },
      { fault: 'execute-then-reset', status: 502, next: 409, code: 'outcome_unknown' },
      { fault: 'huge=1100000', status: 201, next: 409, code: 'response_not_stored' },
    ];
    for (const { fault, status, next, code } of [...outcomes, ...outcomes, ...outcomes]) {
      const key = randomUUID();
      expect((await withdraw(stack.url, { key, fault })).status).toBe(status);
      const answer = await withdraw(other.url, { key, headers: { Prefer: 'wait=0' } });
      expect(answer.status).toBe(next);
      if (code) expectProblem(answer, { status: next, code });
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    }
  });
});

describe('MONITOR shows', () => {
  /** Commands that clients sent, in order. */
  const seen: SeenCommand[] = [];
  beforeAll(async () => {
    // From now on Redis knows the scripts.
    for (const fault of ['delay=1', 'status=429', 'execute-then-reset'])
      await withdraw(stack.url, { key: randomUUID(), fault });
    await monitorRedis(redis.port, (command) => seen.push(command));
  });

  /** The commands that Redis got from the gateways during `work`. */
  async function commandsOf(work: () => Promise<unknown>): Promise<string[]> {
    const fence = async () => {
      const marker = randomUUID();
      await redis.admin.echo(marker);
      return await until(() => seen.findIndex(({ args }) => args[0] === marker) + 1);
    };
    const from = await fence();
    await work();
    const to = await fence();
    return seen.slice(from, to - 1).map(({ name }) => name);
  }

  it('two commands for a first payout, and one for a replay', async () => {
    const key = randomUUID();
    const pay = (url: string) => async () => expect((await withdraw(url, { key })).status).toBe(201);
    expect(await commandsOf(pay(stack.url))).toEqual(['evalsha', 'evalsha']);
    expect(await commandsOf(pay(stack.url))).toEqual(['evalsha']);
    expect(await commandsOf(pay(other.url))).toEqual(['evalsha']);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('two commands for 50 withdraws with one key at once', async () => {
    const key = randomUUID();
    const commands = await commandsOf(async () => {
      const burst = Array.from({ length: 50 }, () => withdraw(stack.url, { key, fault: 'delay=300' }));
      const answers = await Promise.all(burst);
      expect(new Set(answers.map(({ status, body }) => `${status} ${body}`))).toHaveLength(1);
    });
    // On a loaded machine some of them may arrive after the result, and read the store.
    expect(commands.slice(0, 2)).toEqual(['evalsha', 'evalsha']);
    expect(commands.length).toBeLessThan(10);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('one command for a conflict, two for a release, and two for a key whose outcome becomes unknown', async () => {
    const [known, released, doubtful] = [randomUUID(), randomUUID(), randomUUID()];
    const pay = (options: object) => () => withdraw(stack.url, options);
    await withdraw(stack.url, { key: known });
    expect(await commandsOf(pay({ key: known, amount: 11 }))).toHaveLength(1);
    expect(await commandsOf(pay({ key: released, fault: 'status=429' }))).toHaveLength(2);
    expect(await commandsOf(pay({ key: doubtful, fault: 'execute-then-reset' }))).toHaveLength(2);
    expect(await commandsOf(() => withdraw(other.url, { key: doubtful }))).toHaveLength(1);
  });
});
