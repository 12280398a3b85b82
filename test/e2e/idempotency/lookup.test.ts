import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { isReplay, withdraw } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import type { MoreConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { gatewayForTest, stackForTest, type TestGateway } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { LOOKUP_TOKEN, lookingUp } from './policies.ts';

const open = (more: MoreConfig) => stackForTest(more, { lookupToken: LOOKUP_TOKEN });

const resolutions = (gateway: TestGateway, as: string) =>
  metric(gateway.adminUrl, 'oncegate_resolutions_total', { as, by: 'lookup' });

it('a gateway looks up what a killed gateway had sent, by the pass after its start', async () => {
  // Its own time limit must not end the request before it is killed.
  const slow = lookingUp({ releaseAfterMs: 20_000 });
  const { config, sandbox, shutdown } = await open({ ...slow, upstream: { responseTimeoutMs: 20_000 } });
  await shutdown();
  const key = randomUUID();
  const doomed = await spawnGateway(config, FAST_START, newFolder());
  const cut = expect(withdraw(doomed.url, { key, fault: 'delay=60000' })).rejects.toThrow(/hang up|reset/i);
  await until(() => sandbox.requests.ofKey(key) === 1);
  await doomed.end('SIGKILL');
  await cut;
  sandbox.endDelays(key);
  await until(() => sandbox.ledger.payouts({ key }) === 1);

  const heir = await gatewayForTest(config);
  await until(async () => (await resolutions(heir, 'completed')) === 1);
  const retry = await withdraw(heir.url, { key });
  expect([retry.status, isReplay(retry)]).toEqual([201, true]);
  const [transaction] = sandbox.ledger.transactions({ key });
  expect(retry.json()).toMatchObject({ data: { transaction_id: transaction?.id } });
  expect([sandbox.ledger.payouts({ key }), sandbox.requests.ofKey(key)]).toEqual([1, 1]);
});
