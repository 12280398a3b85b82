import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { onRedis } from '../../support/stores.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
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

/** The sandbox does not know the new keys. */
const AUTH = {
  forward: 'replace',
  replaceWith: 'Bearer sk_sandbox_alpha',
  pepper: '$' + '{ONCEGATE_PEPPER}',
} as const;
const ENV = { ONCEGATE_PEPPER: PEPPER };

const sources = {
  file: () => ({ source: 'file', path: join(newFolder(), 'keys.yaml') }) as const,
  redis: ({ url }: RedisServer) => ({ source: 'redis', url }) as const,
};

describe.each(['file', 'redis'] as const)('with the source %s', (kind) => {
  it('issue, rotate and revoke are in force on two gateways within a second, and a retry finds its payout', async () => {
    const sandbox = await openSandbox();
    const redis = await startRedis();
    const auth = { ...AUTH, keys: sources[kind](redis) };
    const config = () => configFor(sandbox, { ...onRedis(redis), auth });
    const file = join(newFolder(), 'gateway.yaml');
    writeFileSync(file, stringify(config()));
    const at = ['--config', file];
    const first = await newKey(['issue', ...at, '--merchant', 'M-ALPHA']);
    const gateways = await Promise.all([config(), config()].map((one) => startGateway(one, ENV)));
    const [one, other] = gateways as [SpawnedGateway, SpawnedGateway];
    const key = randomUUID();
    const paid = await withdraw(one.url, { secret: first, key });
    expect(paid.status).toBe(201);

    const second = await newKey(['rotate', ...at, '--merchant', 'M-ALPHA', '--overlap', '1h']);
    expect(await msUntil(gateways, second, 200)).toBeLessThan(WITHIN_MS);
    expect(await statusOf(one, first)).toBe(200);
    const retried = await withdraw(other.url, { secret: second, key });
    expect([retried.status, isReplay(retried), retried.body]).toEqual([201, true, paid.body]);
    expect(sandbox.ledger.payouts({ key })).toBe(1);

    const [{ id: oldId }] = JSON.parse((await keys(['list', ...at, '--json'])).stdout);
    expect(await keys(['revoke', ...at, '--merchant', 'M-ALPHA', '--id', oldId])).toMatchObject({ code: 0 });
    expect(await msUntil(gateways, first, 401)).toBeLessThan(WITHIN_MS);
    expect(await statusOf(one, second)).toBe(200);
    expect(await statusOf(one, `${second.slice(0, -1)}-`)).toBe(401);

    const listed = await keys(['list', ...at]);
    expect(listed.stdout).toMatch(/M-ALPHA +\S+ +revoked.*\nM-ALPHA +\S+ +in force/);
    expect(listed.stdout + gateways.flatMap(({ lines }) => lines).join('\n')).not.toMatch(
      /og_live_|hmac-sha256/,
    );
  });
});

it('keys in Redis stay in force while it is away, and a revocation is in force within a second of its return', async () => {
  const sandbox = await openSandbox();
  const redis = await startRedis();
  const proxy = await startProxy(redis.port);
  const direct = { ...AUTH, keys: { source: 'redis', url: redis.url } as const };
  const file = join(newFolder(), 'gateway.yaml');
  writeFileSync(file, stringify(configFor(sandbox, { auth: direct })));
  const at = ['--config', file, '--merchant', 'M-ALPHA'];
  const secret = await newKey(['issue', ...at, '--id', 'a']);
  const auth = { ...AUTH, keys: { source: 'redis', url: proxy.url } as const };
  const gateway = await startGateway(configFor(sandbox, { auth }), ENV);
  proxy.refuse(true);
  proxy.cut();
  const isLogged = (text: string) => () => gateway.lines.some((line) => line.includes(text));
  await until(isLogged('the secret keys cannot be reloaded; the old ones stay in force'));
  expect((await withdraw(gateway.url, { secret, key: randomUUID() })).status).toBe(201);
  const ready = await send(gateway.adminUrl, { path: '/readyz' });
  expect([ready.status, ready.body.toString()]).toEqual([
    200,
    expect.stringMatching(/may be out of date: redis cannot be reached: /),
  ]);
  expect(await keys(['revoke', ...at, '--id', 'a'])).toMatchObject({ code: 0 });
  expect(await statusOf(gateway, secret)).toBe(200);
  proxy.refuse(false);
  expect(await msUntil([gateway], secret, 401)).toBeLessThan(WITHIN_MS);
  await until(isLogged('the secret keys were reloaded'));
  expect(await gateway.end()).toBe(0);
});
