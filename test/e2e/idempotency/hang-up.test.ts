/** Merchants who leave before they have their answer. */
import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { isReplay, withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { payoutBody } from '../../support/payout.ts';
import { nothingOpen, stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, chunk, head, payoutOf, Wire } from '../../support/wire.ts';

const stack = await stackForFile();

const LINE = 'POST /v1/index.php';
const CHUNKED = 'Transfer-Encoding: chunked';
const PAYOUT = JSON.stringify(payoutBody());

describe('a merchant who leaves within the request', () => {
  const headBytes = payoutOf(randomUUID()).indexOf('\r\n\r\n') + 4;
  const parts: [string, (key: string) => string | Buffer][] = [
    ['1 byte of the head', (key) => payoutOf(key).subarray(0, 1)],
    ['half of the head', (key) => payoutOf(key).subarray(0, headBytes / 2)],
    ['all of the head but a byte', (key) => payoutOf(key).subarray(0, headBytes - 1)],
    ['the head', (key) => payoutOf(key).subarray(0, headBytes)],
    ['1 byte of the body', (key) => payoutOf(key).subarray(0, headBytes + 1)],
    ['all but the last byte', (key) => payoutOf(key).subarray(0, -1)],
    [
      'the whole JSON text in a chunk, but not the last chunk',
      (key) => head(LINE, ALPHA, `x-service-idempotency: ${key}`, CHUNKED) + chunk(PAYOUT),
    ],
  ];

  it.each(['end', 'resetAndDestroy'] as const)(
    '(%s) has nothing executed, and the key is unused',
    async (leave) => {
      await eachRowInTurn(parts, async ([, partOf]) => {
        const key = randomUUID();
        const before = stack.sandbox.requests.total();
        const { socket, ended } = (await Wire.open(stack.port)).write(partOf(key));
        // Otherwise a reset would throw away what was not yet sent.
        await until(() => socket.writableLength === 0);
        socket[leave]();
        await ended;
        await nothingOpen(stack);
        expect(stack.sandbox.requests.total()).toBe(before);
        const complete = await withdraw(stack.url, { key });
        expect([complete.status, isReplay(complete)]).toEqual([201, false]);
        expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
      });
    },
  );
});

describe('a merchant who leaves after the last byte', () => {
  it('with a reset leaves none or one payout, and a retry ends with one', async () => {
    const attempts = Array.from({ length: 20 }, async () => {
      const key = randomUUID();
      const { socket } = (await Wire.open(stack.port)).write(payoutOf(key, 'X-Sandbox-Fault: delay=40'));
      await until(() => socket.writableLength === 0);
      socket.resetAndDestroy();
      expect((await withdraw(stack.url, { key })).status).toBe(201);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    });
    await Promise.all(attempts);
  });

  it('by a half-closed connection has paid once, and a retry gets the replay', async () => {
    const key = randomUUID();
    const wire = await Wire.open(stack.port);
    wire.socket.end(payoutOf(key, 'X-Sandbox-Fault: delay=60000'));
    await wire.ended;
    stack.sandbox.endDelays(key);
    const retry = await withdraw(stack.url, { key });
    expect([retry.status, isReplay(retry)]).toEqual([201, true]);
    const [transaction] = stack.sandbox.ledger.transactions({ key });
    expect(retry.json()).toMatchObject({ data: { transaction_id: transaction?.id } });
    expect([stack.sandbox.ledger.payouts({ key }), stack.sandbox.requests.ofKey(key)]).toEqual([1, 1]);
  });
});
