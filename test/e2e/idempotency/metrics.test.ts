import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { type Labels, metric } from '../../support/metrics.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const CONFLICTS = 'oncegate_idempotency_conflicts_total';
const operation = 'withdraw';

/** All counters that a request with a key can change: name and labels. */
const counts: [string, Labels][] = [
  ['oncegate_unprotected_total', { operation }],
  ['oncegate_idempotency_hits_total', { operation }],
  [CONFLICTS, { operation, kind: 'in_flight' }],
  [CONFLICTS, { operation, kind: 'mismatch' }],
  [CONFLICTS, { operation, kind: 'in_doubt' }],
  [CONFLICTS, { operation, kind: 'not_stored' }],
  ['oncegate_in_doubt_total', { operation, cause: 'timeout' }],
  ['oncegate_in_doubt_total', { operation, cause: 'connection' }],
];

const nameOf = (name: string, { kind, cause }: Labels) => [name, kind ?? cause].filter(Boolean).join(' ');

let stack: Stack;
let before: Map<string, number>;
beforeAll(async () => {
  stack = await openStackOn('sqlite', {
    upstream: { responseTimeoutMs: 3000 },
    idempotency: { maxStoredBytes: 65_536 },
  });
});
afterAll(() => stack?.close());
beforeEach(async () => {
  before = await read();
});

async function read(): Promise<Map<string, number>> {
  const values = counts.map(async ([name, labels]) => {
    return [nameOf(name, labels), await metric(stack.adminUrl, name, labels)] as const;
  });
  return new Map(await Promise.all(values));
}

/** Expects that exactly these counters have grown by these amounts. */
async function expectGrowth(growth: Record<string, number>): Promise<void> {
  const after = await read();
  const grown = [...after].map(([name, value]) => [name, value - (before.get(name) ?? 0)] as const);
  expect(Object.fromEntries(grown.filter(([, by]) => by !== 0))).toEqual(growth);
}

const pay = (key: string, more: Parameters<typeof withdraw>[1] = {}) => withdraw(stack.url, { key, ...more });

it('a payout without a key counts as unprotected', async () => {
  const payouts = stack.sandbox.ledger.payouts();
  await withdraw(stack.url);
  await withdraw(stack.url);
  await expectGrowth({ oncegate_unprotected_total: 2 });
  expect(stack.sandbox.ledger.payouts()).toBe(payouts + 2);
});

it('a first execution changes none of the counters, and each replay counts as a hit', async () => {
  const key = randomUUID();
  await pay(key);
  await expectGrowth({});
  await pay(key);
  await pay(key);
  await expectGrowth({ oncegate_idempotency_hits_total: 2 });
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});

it('another request under a key counts as a mismatch', async () => {
  const key = randomUUID();
  await pay(key);
  await pay(key, { amount: 11 });
  await expectGrowth({ [`${CONFLICTS} mismatch`]: 1 });
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});

it('a refused duplicate counts as in flight, a waiting one as a hit', async () => {
  const key = randomUUID();
  const first = pay(key, { fault: 'delay=60000' });
  await until(() => stack.sandbox.requests.ofKey(key) === 1);
  expect(await metric(stack.adminUrl, 'oncegate_executing')).toBe(1);
  await pay(key, { headers: { Prefer: 'wait=0' } });
  const waiting = pay(key);
  await until(async () => (await metric(stack.adminUrl, 'oncegate_waiting')) === 1);
  stack.sandbox.endDelays(key);
  await Promise.all([first, waiting]);
  await expectGrowth({ [`${CONFLICTS} in_flight`]: 1, oncegate_idempotency_hits_total: 1 });
  expect(await metric(stack.adminUrl, 'oncegate_executing')).toBe(0);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});

it.each([
  { fault: 'execute-then-reset', cause: 'connection' },
  { fault: 'execute-then-hang', cause: 'timeout' },
])('an outcome that is lost counts by its cause ($cause), and each retry as a conflict', async (lost) => {
  const key = randomUUID();
  await pay(key, { fault: lost.fault });
  await expectGrowth({ [`oncegate_in_doubt_total ${lost.cause}`]: 1 });
  await pay(key);
  await expectGrowth({ [`oncegate_in_doubt_total ${lost.cause}`]: 1, [`${CONFLICTS} in_doubt`]: 1 });
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});

it('a retry of a response that was too large counts as not stored', async () => {
  const key = randomUUID();
  await pay(key, { fault: 'huge=100000' });
  await expectGrowth({});
  await pay(key);
  await expectGrowth({ [`${CONFLICTS} not_stored`]: 1 });
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});

it('a released or refused request changes none of the counters', async () => {
  const key = randomUUID();
  await pay(key, { fault: 'status=429' });
  await pay(key, { fault: 'status=401' });
  await pay('x'.repeat(256));
  await expectGrowth({});
  expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
});

it('every request counts once, by its outcome', async () => {
  const ended = (outcome: string) =>
    metric(stack.adminUrl, 'oncegate_requests_total', { operation, outcome });
  const outcomes = [
    'executed',
    'replayed',
    'released',
    'forwarded',
    'outcome_unknown',
    'idempotency_key_reused',
  ];
  const all = async () => new Map(await Promise.all(outcomes.map(async (o) => [o, await ended(o)] as const)));
  const start = await all();
  const [key, doubt] = [randomUUID(), randomUUID()];
  await pay(key, { fault: 'status=429' });
  await pay(key);
  await pay(key);
  await pay(key, { amount: 11 });
  await pay(doubt, { fault: 'execute-then-reset' });
  await pay(doubt);
  await withdraw(stack.url);
  const expected = { executed: 1, replayed: 1, released: 1, forwarded: 1, outcome_unknown: 2 };
  await until(async () => (await ended('forwarded')) === (start.get('forwarded') ?? 0) + 1);
  const end = await all();
  const grown = outcomes.map((outcome) => [outcome, (end.get(outcome) ?? 0) - (start.get(outcome) ?? 0)]);
  expect(Object.fromEntries(grown)).toEqual({ ...expected, idempotency_key_reused: 1 });
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});
