import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { withdraw } from '../../support/client.ts';
import { payoutBytes, rawConnection } from '../../support/raw.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, storeKinds } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const BACKEND_MS = 150;
/** Delays from the last byte of the request until after the backend's answer. */
const MOMENTS_MS = [0, 1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 140, 148, 150, 152, 155, 160, 180];

/** Sends a whole payout. Resolves when the kernel has the last byte. */
async function send(port: number, key: string, fault: string): Promise<Socket> {
  const socket = await rawConnection(port);
  socket.resume();
  const lines = [`x-service-idempotency: ${key}`, `X-Sandbox-Fault: ${fault}`];
  await new Promise((resolve) => socket.write(payoutBytes({ lines }), resolve));
  return socket;
}

describe.each(storeKinds)('on %s, a merchant who hangs up', (kind) => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStackOn(kind);
  });
  afterAll(() => stack?.close());

  async function findsThePayout(key: string): Promise<void> {
    const { ledger, requests } = stack.sandbox;
    const retry = await withdraw(stack.url, { key });
    expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
    const [transaction] = ledger.transactions({ key });
    expect(retry.json<{ data: { transaction_id: string } }>().data.transaction_id).toBe(transaction?.id);
    expect([ledger.payouts({ key }), requests.ofKey(key)]).toEqual([1, 1]);
  }

  it('at any moment after the last byte finds one payout with a retry', async () => {
    const attempts = MOMENTS_MS.map(async (momentMs) => {
      const key = randomUUID();
      const socket = await send(stack.port, key, `delay=${BACKEND_MS}`);
      await sleep(momentMs);
      socket.destroy();
      // The payout is executed even without a retry.
      await until(() => stack.sandbox.ledger.payouts({ key }) === 1);
      await findsThePayout(key);
    });
    await Promise.all(attempts);
  });

  it('at the moment when the backend executes finds that payout', async () => {
    const keys = Array.from({ length: 20 }, () => randomUUID());
    const attempts = keys.map(async (key) => {
      const socket = await send(stack.port, key, 'drip=2');
      await until(() => stack.sandbox.ledger.payouts({ key }) === 1);
      socket.destroy();
      await findsThePayout(key);
    });
    await Promise.all(attempts);
  });

  it('with a reset leaves none or one payout, and a retry ends with one', async () => {
    const keys = Array.from({ length: 20 }, () => randomUUID());
    const attempts = keys.map(async (key) => {
      const socket = await send(stack.port, key, 'delay=40');
      socket.resetAndDestroy();
      const retry = await withdraw(stack.url, { key });
      expect(retry.status).toBe(201);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    });
    await Promise.all(attempts);
  });

  it('is logged once, with the result of the execution', async () => {
    const key = randomUUID();
    const scope = scopeOf('M-ALPHA', key).slice(0, 16);
    const socket = await send(stack.port, key, 'delay=60000');
    await until(() => stack.sandbox.requests.ofKey(key) === 1);
    const arrivedAtMs = performance.now();
    socket.destroy();
    const connections = () =>
      new Promise<number>((resolve) => stack.gateway.server.getConnections((_, count) => resolve(count)));
    await until(async () => (await connections()) === 0);
    const heldMs = performance.now() - arrivedAtMs;
    stack.sandbox.endDelays(key);
    await until(() => stack.sandbox.ledger.payouts({ key }) === 1);
    await findsThePayout(key);
    const lines = await until(() => {
      const requests = stack.log.filter((line) => line.msg === 'request' && line.scope === scope);
      return requests.length === 2 ? requests : undefined;
    });
    // The log line is written shortly before or after the retry gets its result.
    const [executed, replayed] = lines.toSorted((a, b) => `${a.outcome}`.localeCompare(`${b.outcome}`));
    const known = { merchant: 'M-ALPHA', operation: 'withdraw' };
    expect(executed).toMatchObject({ outcome: 'executed', merchantGone: true, ...known });
    expect(replayed).toMatchObject({ outcome: 'replayed', status: 201, ...known });
    expect(Number(executed?.durationMs)).toBeGreaterThanOrEqual(heldMs);
  });
});

it('shutdown waits for executions whose merchant has disconnected', async () => {
  const stack = await openStackOn('sqlite');
  try {
    const key = randomUUID();
    const socket = await send(stack.port, key, 'delay=60000');
    await until(() => stack.sandbox.requests.ofKey(key) === 1);
    socket.destroy();
    const shutdown = stack.shutdown();
    stack.sandbox.endDelays(key);
    await shutdown;
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    // The lines of one turn of the event loop are written in the next one.
    await until(() => stack.log.some(({ msg }) => msg === 'request'));
    expect(stack.log.filter(({ msg }) => msg === 'request')).toMatchObject([{ outcome: 'executed' }]);
  } finally {
    await stack.close();
  }
});
