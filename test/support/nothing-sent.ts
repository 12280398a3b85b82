import { expect } from 'vitest';
import { send } from './client.ts';
import type { Stack } from './stack.ts';

/** `ca`: the authority of the gateway's certificate, if it speaks TLS. */
type Watched = Pick<Stack, 'url' | 'sandbox'> & { ca?: Buffer };

/**
 * Does `work`, and proves that none of its requests reached the backend: a request sent afterwards is the only one that the
 * sandbox received, and its ledger is unchanged.
 */
export async function expectNothingSent<T>(
  { url, sandbox, ca }: Watched,
  work: () => Promise<T>,
): Promise<T> {
  const before = { requests: sandbox.requests.total(), booked: sandbox.ledger.transactions().length };
  const done = await work();
  const later = await send(url, {
    path: '/v2/get_balance',
    headers: { Authorization: 'Bearer sk_sandbox_charlie' },
    ...(ca && { ca }),
  });
  expect(later.status).toBe(200);
  const after = { requests: sandbox.requests.total() - 1, booked: sandbox.ledger.transactions().length };
  expect(after).toEqual(before);
  return done;
}
