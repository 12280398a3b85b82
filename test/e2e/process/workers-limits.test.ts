import { expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { configFor, openSandbox, startGateway, workersOf } from './gateways.ts';

const WORKERS = 2;
const REQUESTS = 8;

it('without Redis, each of two workers permits its share of a merchant’s requests', async () => {
  const limits = { perMerchant: { requests: REQUESTS, windowMs: 3_600_000 } };
  const gateway = await startGateway(configFor(await openSandbox(), { workers: WORKERS, limits }));
  await workersOf(gateway, WORKERS);
  const authorization = 'Bearer sk_sandbox_alpha';
  const statuses: number[] = [];
  const permitted = () => statuses.filter((status) => status === 200).length;
  // A new connection each: the kernel chooses the worker.
  for (let i = 0; i < 200 && permitted() < REQUESTS; i++)
    statuses.push((await send(gateway.url, { path: '/v2/get_balance', headers: { authorization } })).status);
  for (let i = 0; i < 20; i++)
    statuses.push((await send(gateway.url, { path: '/v2/get_balance', headers: { authorization } })).status);
  expect(permitted()).toBe(REQUESTS);
  expect(new Set(statuses)).toEqual(new Set([200, 429]));
  const refused = statuses.length - REQUESTS;
  expect(await metric(gateway.adminUrl, 'oncegate_rate_limited_total', { reason: 'requests' })).toBe(refused);
  await gateway.end();
});
