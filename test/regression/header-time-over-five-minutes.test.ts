import { expect, onTestFinished, test } from 'vitest';
import { withdraw } from '../support/client.ts';
import { openStack } from '../support/stack.ts';

// Node refuses a header time above its own limit for whole requests, 300 s: the gateway did not start.
test('the longest times for head and body are taken', async () => {
  const stack = await openStack({ limits: { headerTimeoutMs: 600_000, bodyTimeoutMs: 600_000 } });
  onTestFinished(() => stack.close());
  expect(stack.gateway.server.requestTimeout).toBe(1_200_000);
  expect((await withdraw(stack.url, { key: 'long-times' })).status).toBe(201);
});
