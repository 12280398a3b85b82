import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { startRedis } from '../../support/redis-server.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { configFor, isReplay, openSandbox, startGateway } from './gateways.ts';
import { keys, newKey, PEPPER } from './key-commands.ts';

const WITHIN_MS = 1000;

const statusOf = async ({ url }: SpawnedGateway, secret: string) =>
  (await send(url, { path: '/v2/get_balance', headers: { Authorization: `Bearer ${secret}` } })).status;

/** How long it takes until all gateways answer this secret key with the status. */
async function msUntil(gateways: SpawnedGateway[], secret: string, status: number): Promise<number> {
  const startedMs = performance.now();
  await Promise.all(
    gateways.map((gateway) =>
      until(async () => ((await statusOf(gateway, secret)) === status ? true : undefined)),
    ),
  );
  return performance.now() - startedMs;
}

it('issue, rotate and revoke are in force on two gateways within a second, and a retry finds its payout', async () => {
  const path = join(newFolder(), 'keys.yaml');
  const file = ['--file', path];
  const first = await newKey(['issue', ...file, '--merchant', 'M-ALPHA']);
  const sandbox = await openSandbox();
  const redis = await startRedis();
  const pepper = '$' + '{ONCEGATE_PEPPER}';
  // The sandbox does not know the new keys.
  const auth = { forward: 'replace', replaceWith: 'Bearer sk_sandbox_alpha' } as const;
  const config = () =>
    configFor(sandbox, { ...onRedis(redis), auth: { ...auth, pepper, keys: { source: 'file', path } } });
  const gateways = await Promise.all(
    [config(), config()].map((one) => startGateway(one, { ONCEGATE_PEPPER: PEPPER })),
  );
  const [one, other] = gateways as [SpawnedGateway, SpawnedGateway];
  const key = randomUUID();
  const paid = await withdraw(one.url, { secret: first, key });
  expect(paid.status).toBe(201);

  const second = await newKey(['rotate', ...file, '--merchant', 'M-ALPHA', '--overlap', '1h']);
  expect(await msUntil(gateways, second, 200)).toBeLessThan(WITHIN_MS);
  expect(await statusOf(one, first)).toBe(200);
  const retried = await withdraw(other.url, { secret: second, key });
  expect([retried.status, isReplay(retried), retried.body]).toEqual([201, true, paid.body]);

  const [, oldId = ''] = /- \{ id: (\S+),/.exec(readFileSync(path, 'utf8')) ?? [];
  expect(await keys(['revoke', ...file, '--merchant', 'M-ALPHA', '--id', oldId])).toMatchObject({
    code: 0,
  });
  expect(await msUntil(gateways, first, 401)).toBeLessThan(WITHIN_MS);
  expect(await statusOf(one, second)).toBe(200);
  expect(await statusOf(one, `${second.slice(0, -1)}-`)).toBe(401);

  const listed = await keys(['list', ...file]);
  expect(listed.stdout).toMatch(/M-ALPHA +\S+ +revoked.*\nM-ALPHA +\S+ +in force/);
  expect(listed.stdout + gateways.flatMap(({ lines }) => lines).join('\n')).not.toMatch(
    /og_live_|hmac-sha256/,
  );
});
