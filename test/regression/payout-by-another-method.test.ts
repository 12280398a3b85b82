import { afterAll, beforeAll, expect, it } from 'vitest';
import { send } from '../support/client.ts';
import { openStack, type Stack } from '../support/stack.ts';

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

const body = JSON.stringify({
  action: 'withdraw',
  amount: 5,
  bank_code: '058',
  account_number: '0123456789',
});
const headers = {
  Authorization: 'Bearer sk_sandbox_alpha',
  'Content-Type': 'application/json',
  'x-service-idempotency': 'by-another-method',
};
const path = '/v1/index.php';

it.each(['PUT', 'PATCH', 'DELETE', 'GET', 'OPTIONS'])(
  'a payout sent with %s does not pass the engine by',
  async (method) => {
    const before = stack.sandbox.requests.total();
    for (const framing of [
      { 'Content-Length': Buffer.byteLength(body) },
      { 'Transfer-Encoding': 'chunked' },
    ]) {
      const answer = await send(stack.url, { method, path, headers: { ...headers, ...framing }, body });
      expect(answer.status).toBe(400);
      expect(answer.json()).toMatchObject({ error: { code: 'invalid_target' } });
    }
    expect(stack.sandbox.requests.total()).toBe(before);
    expect(stack.sandbox.ledger.payouts()).toBe(0);
  },
);

it('another method without a body is passed on', async () => {
  const before = stack.sandbox.requests.total();
  const answer = await send(stack.url, {
    method: 'GET',
    path,
    headers: { Authorization: headers.Authorization },
  });
  expect(answer.headers['content-type']).not.toContain('problem');
  expect(stack.sandbox.requests.total()).toBe(before + 1);
});
