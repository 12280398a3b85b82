/** Merchants who leave before they have their answer. */
import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { metric } from '../../support/metrics.ts';
import { closed, payoutBytes, rawConnection } from '../../support/raw.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const stack = await openStack();
afterAll(() => stack.close());

const lineOf = (key: string) => `x-service-idempotency: ${key}`;

describe('a merchant who leaves within the request', () => {
  /** Sends the first bytes, and closes the connection. Resolves when the gateway has closed it too. */
  async function sendAndLeave(bytes: Buffer, how: 'end' | 'reset'): Promise<void> {
    const socket = await rawConnection(stack.port);
    const left = closed(socket.resume());
    await new Promise((resolve) => socket.write(bytes, resolve));
    if (how === 'end') socket.end();
    else socket.resetAndDestroy();
    await left;
    await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 0);
  }

  const whole = (key: string) => payoutBytes(lineOf(key));
  const head = (bytes: Buffer) => bytes.indexOf('\r\n\r\n') + 4;
  const parts: [string, (key: string) => Buffer][] = [
    ['1 byte of the head', (key) => whole(key).subarray(0, 1)],
    ['half of the head', (key) => whole(key).subarray(0, head(whole(key)) / 2)],
    ['all of the head but a byte', (key) => whole(key).subarray(0, head(whole(key)) - 1)],
    ['the head', (key) => whole(key).subarray(0, head(whole(key)))],
    ['1 byte of the body', (key) => whole(key).subarray(0, head(whole(key)) + 1)],
    ['all but the last byte', (key) => whole(key).subarray(0, -1)],
    [
      'the whole JSON text in a chunk, but not the last chunk',
      (key) => {
        const bytes = payoutBytes(lineOf(key), 'Transfer-Encoding: chunked').toString();
        const [first = '', body = ''] = bytes.replace(/Content-Length: \d+\r\n/, '').split('\r\n\r\n');
        return Buffer.from(`${first}\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n`);
      },
    ],
  ];

  it.each(['end', 'reset'] as const)('(%s) has nothing executed, and the key is unused', async (how) => {
    await eachRowInTurn(parts, async ([, partOf]) => {
      const key = randomUUID();
      const before = stack.sandbox.requests.total();
      await sendAndLeave(partOf(key), how);
      expect(stack.sandbox.requests.total()).toBe(before);
      const complete = await withdraw(stack.url, { key });
      expect([complete.status, complete.headers['idempotent-replayed']]).toEqual([201, undefined]);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    });
  });
});

/** Sends a whole payout. Resolves when the kernel has the last byte. */
async function send({ port }: Stack, key: string, fault: string): Promise<Socket> {
  const socket = await rawConnection(port);
  socket.resume();
  const bytes = payoutBytes(lineOf(key), `X-Sandbox-Fault: ${fault}`);
  await new Promise((resolve) => socket.write(bytes, resolve));
  return socket;
}

async function findsThePayout(key: string): Promise<void> {
  const { ledger, requests } = stack.sandbox;
  const retry = await withdraw(stack.url, { key });
  expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
  const [transaction] = ledger.transactions({ key });
  expect(retry.json<{ data: { transaction_id: string } }>().data.transaction_id).toBe(transaction?.id);
  expect([ledger.payouts({ key }), requests.ofKey(key)]).toEqual([1, 1]);
}

describe('a merchant who leaves after the last byte', () => {
  const BACKEND_MS = 150;
  /** From the last byte of the request until after the backend's answer. */
  const MOMENTS_MS = [0, 1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 140, 148, 150, 152, 155, 160, 180];

  it('at any moment finds one payout with a retry', async () => {
    const attempts = MOMENTS_MS.map(async (momentMs) => {
      const key = randomUUID();
      const socket = await send(stack, key, `delay=${BACKEND_MS}`);
      await sleep(momentMs);
      socket.destroy();
      // The payout is executed even without a retry.
      await until(() => stack.sandbox.ledger.payouts({ key }) === 1);
      await findsThePayout(key);
    });
    await Promise.all(attempts);
  });

  it('with a reset leaves none or one payout, and a retry ends with one', async () => {
    const attempts = Array.from({ length: 20 }, async () => {
      const key = randomUUID();
      (await send(stack, key, 'delay=40')).resetAndDestroy();
      expect((await withdraw(stack.url, { key })).status).toBe(201);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    });
    await Promise.all(attempts);
  });

  it('by a half-closed connection has paid once, and a retry gets the replay', async () => {
    const key = randomUUID();
    const socket = await rawConnection(stack.port);
    const left = closed(socket.resume());
    socket.end(payoutBytes(lineOf(key), 'X-Sandbox-Fault: delay=60000'));
    await left;
    stack.sandbox.endDelays(key);
    await findsThePayout(key);
  });
});
