import { expect, it } from 'vitest';
import { legacyBackend, RESET } from '../support/legacy-backend.ts';
import { payoutBody } from '../support/payout.ts';
import { rawExchange } from '../support/raw.ts';
import { inFrontOf } from '../support/stack.ts';

const PAYOUT = JSON.stringify(payoutBody(5));
const FRAMINGS = {
  'a length': [`Content-Length: ${PAYOUT.length}`, PAYOUT],
  chunks: ['Transfer-Encoding: chunked', `${PAYOUT.length.toString(16)}\r\n${PAYOUT}\r\n0\r\n\r\n`],
} as const;

/** A WebSocket handshake with a body. The backend must not execute it as a payout that bypasses the engine. */
const handshake = (method: string, [framing, body]: readonly [string, string], ...fields: string[]) =>
  [
    `${method} /v1/index.php HTTP/1.1`,
    'Host: gateway.test',
    'Authorization: Bearer sk_sandbox_alpha',
    'Content-Type: application/json',
    'x-service-idempotency: in-a-handshake',
    'Connection: Upgrade, close',
    'Upgrade: websocket',
    'Sec-WebSocket-Version: 13',
    'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
    ...fields,
    framing,
    '',
    body,
  ].join('\r\n');

const RESET_LINES = Object.entries(RESET).map(([name, value]) => `${name}: ${value}`);

it.each(
  (Object.keys(FRAMINGS) as (keyof typeof FRAMINGS)[]).flatMap((framing) => [
    ['GET', framing] as const,
    ['POST', framing] as const,
  ]),
)(
  'a payout in the body of a handshake by %s, framed by %s, is executed once for its key',
  async (method, framing) => {
    const { url, executions } = await legacyBackend();
    await inFrontOf(url, async ({ port }) => {
      const lost = handshake(method, FRAMINGS[framing], ...RESET_LINES);
      const statuses: (number | undefined)[] = [];
      for (const bytes of [lost, handshake(method, FRAMINGS[framing])])
        statuses.push((await rawExchange(port, bytes))[0]?.status);
      expect(statuses).toEqual([502, 409]);
      expect(executions).toMatchObject([{ method, bytes: PAYOUT.length, key: 'in-a-handshake' }]);
    });
  },
);
