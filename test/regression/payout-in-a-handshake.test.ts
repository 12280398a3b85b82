import { afterAll, beforeAll, expect, it } from 'vitest';
import { rawExchange } from '../support/raw.ts';
import { openStack, type Stack } from '../support/stack.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const PAYOUT = JSON.stringify({
  action: 'withdraw',
  amount: 5,
  bank_code: '058',
  account_number: '0123456789',
});
const FRAMINGS = {
  'a length': [`Content-Length: ${PAYOUT.length}`, PAYOUT],
  chunks: ['Transfer-Encoding: chunked', `${PAYOUT.length.toString(16)}\r\n${PAYOUT}\r\n0\r\n\r\n`],
} as const;

/** A WebSocket handshake with a body: what the backend makes of it must not be a payout outside of the engine. */
const handshake = (method: string, target: string, [framing, body]: readonly [string, string]) =>
  [
    `${method} ${target} HTTP/1.1`,
    'Host: gateway.test',
    'Authorization: Bearer sk_sandbox_alpha',
    'Content-Type: application/json',
    'x-service-idempotency: in-a-handshake',
    'Connection: Upgrade',
    'Upgrade: websocket',
    'Sec-WebSocket-Version: 13',
    'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
    framing,
    '',
    body,
  ].join('\r\n');

it.each(Object.keys(FRAMINGS) as (keyof typeof FRAMINGS)[])(
  'a payout in the body of a handshake, framed by %s, is refused and not sent',
  async (framing) => {
    const before = stack.sandbox.requests.total();
    const [answer] = await rawExchange(stack.port, handshake('GET', '/v1/index.php', FRAMINGS[framing]));
    expect(answer?.status).toBe(400);
    expect(String(answer?.body)).toContain('"invalid_target"');
    expect(stack.sandbox.requests.total()).toBe(before);
    expect(stack.sandbox.ledger.payouts()).toBe(0);
  },
);

it('a handshake by POST is a payout like any other: one execution for its key', async () => {
  for (const _ of [1, 2]) {
    const bytes = handshake('POST', '/v1/index.php', FRAMINGS['a length']).replace(
      'Connection: Upgrade',
      'Connection: Upgrade, close',
    );
    const [answer] = await rawExchange(stack.port, bytes);
    expect(answer?.status).toBe(201);
  }
  expect(stack.sandbox.ledger.payouts()).toBe(1);
});
