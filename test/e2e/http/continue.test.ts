import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { payoutBody } from '../../support/payout.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, chunk, head, LAST_CHUNK, request, Wire } from '../../support/wire.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const payout = JSON.stringify(payoutBody(1));
const EXPECT = 'Expect: 100-continue';

describe('a merchant who waits for 100 Continue', () => {
  test.each([
    ['of known length', 'Content-Length: 5', 'hello'],
    ['in chunks', 'Transfer-Encoding: chunked', chunk('hel') + chunk('lo') + LAST_CHUNK],
  ])('gets it, and a body %s is passed through whole, with our headers', async (_how, framing, body) => {
    const wire = await Wire.open(stack.port);
    const forged = ['X-Merchant-Code: M-BRAVO', 'x_merchant_code: M-BRAVO'];
    wire.write(head('POST /v3/echo', ALPHA, EXPECT, framing, ...forged));
    expect((await wire.answer()).status).toBe(100);
    const answer = await wire.write(body).answer();
    const echo = answer.json<{ bodyBytes: number; rawHeaders: [string, string][] }>();
    expect([answer.status, echo.bodyBytes]).toEqual([200, 5]);
    const got = echo.rawHeaders.map(([name, value]) => `${name.toLowerCase()}: ${value}`);
    expect(got.filter((line) => /merchant.code/.test(line))).toEqual(['x-merchant-code: M-ALPHA']);
    expect(got.filter((line) => line.startsWith('expect'))).toEqual([]);
  });

  test('gets it, and its payout is executed once', async () => {
    const fields = [ALPHA, 'x-service-idempotency: continue-1'];
    const wire = await Wire.open(stack.port);
    wire.write(head('POST /v1/index.php', ...fields, EXPECT, `Content-Length: ${payout.length}`));
    expect((await wire.answer()).status).toBe(100);
    expect((await wire.write(payout).answer()).status).toBe(201);
    const again = await wire.write(request('POST /v1/index.php', fields, payout)).answer();
    expect(again.headers['idempotent-replayed']).toEqual(['true']);
    expect(stack.sandbox.ledger.payouts({ key: 'continue-1' })).toBe(1);
  });

  test('gets it even if no body follows, and keeps the connection', async () => {
    const wire = await Wire.open(stack.port);
    for (let i = 0; i < 2; i++) {
      wire.write(head('GET /v2/get_balance', ALPHA, EXPECT, 'Content-Length: 0'));
      expect((await wire.answer()).status).toBe(100);
      expect((await wire.answer()).status).toBe(200);
    }
  });

  test('gets one answer even if the body arrives at once', async () => {
    const wire = await Wire.open(stack.port);
    const fields = [ALPHA, EXPECT];
    wire.write(request('POST /v3/echo', fields, 'hello')).write(request('POST /v3/echo', fields, 'you'));
    for (const bodyBytes of [5, 3]) {
      expect((await wire.answer()).status).toBe(100);
      expect((await wire.answer()).json()).toMatchObject({ bodyBytes });
    }
  });
});
