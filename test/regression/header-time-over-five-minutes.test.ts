import { expect, test } from 'vitest';
import { withdraw } from '../support/client.ts';
import { stackForTest } from '../support/stack.ts';

// Node refuses a headersTimeout above its requestTimeout, 300 s by default, so the gateway did not start.
test('the longest timeouts for head and body are accepted', async () => {
  const stack = await stackForTest({ limits: { headerTimeoutMs: 600_000, bodyTimeoutMs: 600_000 } });
  expect(stack.gateway.server.requestTimeout).toBe(1_200_000);
  expect((await withdraw(stack.url, { key: 'long-times' })).status).toBe(201);
});
