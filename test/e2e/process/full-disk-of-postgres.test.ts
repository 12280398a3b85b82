import { expect, it } from 'vitest';
import { isReplay, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { startPostgres } from '../../support/postgres-server.ts';
import { expectProblem } from '../../support/problem.ts';
import { payAndLeave, stackForTest } from '../../support/stack.ts';
import { onPostgres } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

it('while the disk of PostgreSQL is full, payouts get 503; what was sent is completed with space, and nothing is paid twice', async () => {
  const postgres = await startPostgres();
  const stack = await stackForTest(onPostgres(postgres));
  const { url, adminUrl, sandbox } = stack;
  await payAndLeave(stack, 'sent');
  // The server ends when it cannot write its log.
  postgres.limitFiles(1);
  const refused = await withdraw(url, { key: 'refused' });
  expectProblem(refused, { status: 503, code: 'store_unavailable', retryAfter: 1 });
  sandbox.endDelays('sent');
  await until(() => sandbox.ledger.payouts({ key: 'sent' }) === 1);

  await postgres.restart();
  await until(async () => (await metric(adminUrl, 'oncegate_pending_writes')) === 0);
  const paid = await until(async () => {
    const retry = await withdraw(url, { key: 'sent' });
    return retry.status === 201 ? retry : undefined;
  });
  expect(isReplay(paid)).toBe(true);
  await until(async () => (await withdraw(url, { key: 'refused' })).status === 201);
  expect(sandbox.requests.ofKey('sent')).toBe(1);
  expect(sandbox.requests.ofKey('refused')).toBe(1);
  expect(sandbox.ledger.duplicateKeys()).toEqual([]);
});
