import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { openStackOn } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { beginToRead } from './reading.ts';

const QUEUE_TIMEOUT_MS = 2500;

it('a request that gives up waiting in the queue is not sent, and a duplicate takes its place', async () => {
  const stack = await openStackOn('sqlite', {
    upstream: { maxConnections: 1, queueTimeoutMs: QUEUE_TIMEOUT_MS },
    idempotency: { maxStoredBytes: 65_536 },
  });
  try {
    const { url, adminUrl, sandbox } = stack;
    // A merchant who does not read the answer occupies the only connection.
    const stalled = await beginToRead(url, { fault: 'huge=40000000' });
    const key = randomUUID();
    const first = withdraw(url, { key });
    await until(async () => (await metric(adminUrl, 'oncegate_upstream_slots_queued')) === 1);
    const waiting = Array.from({ length: 3 }, () => withdraw(url, { key }));
    await until(async () => (await metric(adminUrl, 'oncegate_waiting')) === 3);

    expectProblem(await first, { status: 503, code: 'overloaded', retryAfter: 1 });
    expect(sandbox.requests.ofKey(key)).toBe(0);
    // A duplicate has taken the place of the first request: it gets the connection, and the others get its result.
    stalled.destroy();
    const answers = await Promise.all(waiting);
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201]);
    expect(new Set(answers.map(({ body }) => body.toString())).size).toBe(1);

    // All requests that were queued before this one were handled.
    await send(url, { path: '/v2/get_balance', headers: { Authorization: 'Bearer sk_sandbox_alpha' } });
    expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  } finally {
    await stack.close();
  }
});
