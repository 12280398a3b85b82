import { expect } from 'vitest';
import { send } from './client.ts';
import type { Stack } from './stack.ts';

type Watched = Pick<Stack, 'url' | 'sandbox'>;

/**
 * Does `work`, and proves that no byte of it reached the backend: of all that was sent, one request behind it did, and
 * the ledger stands as it stood.
 */
export async function reachingNobody<T>({ url, sandbox }: Watched, work: () => Promise<T>): Promise<T> {
  const before = { requests: sandbox.requests.total(), booked: sandbox.ledger.transactions().length };
  const done = await work();
  const behind = await send(url, {
    path: '/v2/get_balance',
    headers: { Authorization: 'Bearer sk_sandbox_charlie' },
  });
  expect(behind.status).toBe(200);
  const after = { requests: sandbox.requests.total() - 1, booked: sandbox.ledger.transactions().length };
  expect(after).toEqual(before);
  return done;
}
