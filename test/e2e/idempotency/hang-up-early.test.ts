import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { payoutBytes, rawConnection } from '../../support/raw.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

let stack: Stack;
let received: number;
beforeAll(async () => {
  stack = await openStackOn('sqlite');
});
afterAll(() => stack?.close());
beforeEach(() => {
  received = stack.sandbox.requests.total();
});

const lineOf = (key: string) => `x-service-idempotency: ${key}`;

/** Sends the first bytes, and closes the connection. Resolves when the gateway has closed it too. */
async function sendAndLeave(bytes: Buffer, how: 'end' | 'reset'): Promise<void> {
  const socket = await rawConnection(stack.port);
  socket.resume();
  const closed = new Promise((resolve) => socket.once('close', resolve));
  await new Promise((resolve) => socket.write(bytes, resolve));
  if (how === 'end') socket.end();
  else socket.resetAndDestroy();
  await closed;
  await until(async () => (await metric(stack.adminUrl, 'oncegate_in_flight')) === 0);
}

/** Nothing was sent, and the key is unused: the complete request is executed. */
async function expectNothingDone(key: string): Promise<void> {
  expect(stack.sandbox.requests.total()).toBe(received);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(0);
  const whole = await withdraw(stack.url, { key });
  expect([whole.status, whole.headers['idempotent-replayed']]).toEqual([201, undefined]);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
}

const BYTES = payoutBytes({ lines: [lineOf(randomUUID())] });
const HEAD = BYTES.indexOf('\r\n\r\n') + 4;
const offsets: [string, number][] = [
  ['1 byte of the head', 1],
  ['the request line', BYTES.indexOf('\r\n') + 2],
  ['half of the head', Math.floor(HEAD / 2)],
  ['all of the head but a byte', HEAD - 1],
  ['the head', HEAD],
  ['1 byte of the body', HEAD + 1],
  ['half of the body', HEAD + Math.floor((BYTES.length - HEAD) / 2)],
  ['all but the last byte', BYTES.length - 1],
];

describe.each(['end', 'reset'] as const)('a merchant who leaves (%s) behind', (how) => {
  it.each(offsets)('%s has nothing executed', async (_, offset) => {
    const key = randomUUID();
    await sendAndLeave(payoutBytes({ lines: [lineOf(key)] }).subarray(0, offset), how);
    await expectNothingDone(key);
  });

  it('a chunked body without its last chunk is not executed', async () => {
    const key = randomUUID();
    const whole = payoutBytes({ lines: [lineOf(key), 'Transfer-Encoding: chunked'] }).toString();
    const [head = '', body = ''] = whole.replace(/Content-Length: \d+\r\n/, '').split('\r\n\r\n');
    // The whole JSON text has arrived, but not the last chunk.
    const chunk = `${body.length.toString(16)}\r\n${body}\r\n`;
    await sendAndLeave(Buffer.from(`${head}\r\n\r\n${chunk}`), how);
    await expectNothingDone(key);
  });
});

it('a truncated body is logged as a merchant who disconnected', async () => {
  const requestId = randomUUID();
  const whole = payoutBytes({ lines: [lineOf(randomUUID()), `X-Request-Id: ${requestId}`] });
  await sendAndLeave(whole.subarray(0, whole.indexOf('\r\n\r\n') + 5), 'end');
  const line = await until(() => stack.log.find((one) => one.requestId === requestId));
  expect(line).toMatchObject({ outcome: 'merchant_gone', merchant: 'M-ALPHA', merchantGone: true });
  expect(stack.sandbox.requests.total()).toBe(received);
});

it('a merchant who sends FIN after the last byte gets the result', async () => {
  const key = randomUUID();
  await sendAndLeave(payoutBytes({ lines: [lineOf(key), 'X-Sandbox-Fault: delay=100'] }), 'end');
  const retry = await withdraw(stack.url, { key });
  expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});
