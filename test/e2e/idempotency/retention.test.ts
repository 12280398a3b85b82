import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { type TestAnswer, withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const RETENTION_MS = 6000;
const unknownOutcome = { status: 409, code: 'outcome_unknown' } as const;
const isReplay = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';

/** A retention that is longer than an execution may take. */
const sections = (inDoubtRetentionMs?: number): MoreConfig => ({
  // A loaded machine may be this slow.
  lock: { leaseMs: 1500 },
  upstream: { queueTimeoutMs: 200, connectTimeoutMs: 1000, responseTimeoutMs: 3000 },
  idempotency: { retentionMs: RETENTION_MS, ...(inDoubtRetentionMs ? { inDoubtRetentionMs } : {}) },
});

/** Resolves after one retention, when a key that is completed now has expired. */
async function untilRetentionHasPassed({ url }: Stack): Promise<void> {
  const key = randomUUID();
  expect(isReplay(await withdraw(url, { key }))).toBe(false);
  await until(async () => !isReplay(await withdraw(url, { key })));
}

describe.concurrent.each(storeKinds)('on %s, once its retention has passed', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind, sections());
  });
  afterAll(() => stack?.close());

  /** A key that the backend has executed, and whose answer was lost. */
  async function executedInDoubt(): Promise<string> {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    expectProblem(first, { status: 502, code: 'outcome_unknown' });
    expectProblem(await withdraw(stack.url, { key }), unknownOutcome);
    return key;
  }

  it('a key is new, however often it was replayed meanwhile', async () => {
    const key = randomUUID();
    const startedMs = performance.now();
    const first = await withdraw(stack.url, { key });
    expect(first.status).toBe(201);
    const second = await until(async () => {
      const answer = await withdraw(stack.url, { key });
      if (!isReplay(answer)) return answer;
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
    expect(isReplay(third)).toBe(true);
    expect(third.body).toEqual(second.body);
  });

  it('a key in doubt is still in doubt, and is not executed again', async () => {
    const key = await executedInDoubt();
    await untilRetentionHasPassed(stack);
    expectProblem(await withdraw(stack.url, { key }), unknownOutcome);
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
    expect(stack.sandbox.ledger.transactions({ key })).toHaveLength(1);
  });

  it('a key in doubt can be resolved, and its result is replayed for longer than a retention', async () => {
    const key = await executedInDoubt();
    await untilRetentionHasPassed(stack);
    const body = Buffer.from('{"success":true,"data":{"from":"the books"}}');
    const resolved = await stack.gateway.desk.answer({
      ...{ kind: 'resolve', scope: scopeOf('M-ALPHA', key), as: 'completed' },
      ...{ by: 'ada', reason: 'in the books', status: 201, body: body.toString('base64') },
    });
    expect(resolved).toMatchObject({ kind: 'found', value: { from: { state: 'in_doubt' } } });
    const replay = async () => {
      const answer = await withdraw(stack.url, { key });
      expect([answer.status, isReplay(answer), answer.body]).toEqual([201, true, body]);
    };
    await replay();
    await untilRetentionHasPassed(stack);
    await replay();
    expect(stack.sandbox.ledger.transactions({ key })).toHaveLength(1);
  });

  it('a key that was in doubt and is released by an operator is executed once more', async () => {
    const key = randomUUID();
    await withdraw(stack.url, { key, fault: 'reset-before-execute' });
    await untilRetentionHasPassed(stack);
    const resolved = await stack.gateway.desk.answer({
      ...{ kind: 'resolve', scope: scopeOf('M-ALPHA', key), as: 'released' },
      ...{ by: 'ada', reason: 'not in the books' },
    });
    expect(resolved.kind).toBe('found');
    expect((await withdraw(stack.url, { key })).status).toBe(201);
    expect(isReplay(await withdraw(stack.url, { key }))).toBe(true);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  });
});

describe.concurrent.each(storeKinds)('on %s, with inDoubtRetentionMs as short as the retention', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind, sections(RETENTION_MS));
  });
  afterAll(() => stack?.close());

  it('a key in doubt is new after it', async () => {
    const key = randomUUID();
    const startedMs = performance.now();
    await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    const answer = await until(async () => {
      const retry = await withdraw(stack.url, { key });
      return retry.status === 409 ? undefined : retry;
    });
    expect(performance.now() - startedMs).toBeGreaterThan(RETENTION_MS - 20);
    expect(answer.status).toBe(201);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(2);
  });
});
