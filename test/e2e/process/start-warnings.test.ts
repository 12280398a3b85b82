import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import { openBlackhole } from '../../support/blackhole.ts';
import { send } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import type { MoreConfig } from '../../support/config.ts';
import { startRedis } from '../../support/redis-server.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway } from './gateways.ts';

const warningsIn = ({ lines }: SpawnedGateway): string[] =>
  lines
    .map((line) => JSON.parse(line))
    .filter(({ level }) => level === 'warn')
    .map(({ warning }) => warning);

it.each([1, 2])('each warning is logged once at the start, with %i workers', async (workers) => {
  const [sandbox, redis] = [await openSandbox(), await startRedis({ appendonly: false })];
  const path = join(newFolder(), 'keys.yaml');
  const keys = [
    { id: 'good', dangerouslyPlainSecret: 'sk_good' },
    { id: 'old', dangerouslyPlainSecret: 'sk_old', expiresAt: '2020-01-01T00:00:00Z' },
    { id: 'typo', dangerouslyPlainSecret: 'sk_typo', scopes: ['withdrw'] },
  ];
  writeFileSync(path, stringify({ merchants: [{ code: 'M-1', keys }] }));
  const match = { method: 'POST', path: '/v1/pay' };
  const more: MoreConfig = {
    workers,
    ...onRedis(redis),
    auth: { keys: { source: 'file', path } },
    operations: [{ name: 'pay', match, idempotency: { key: 'optional', inDoubt: 'retry' } }],
  };
  const gateway = await startGateway(configFor(sandbox, more));
  // Workers write their own lines. Their first request line shows that their lines are not delayed.
  await send(gateway.url);
  await until(() => gateway.lines.some((line) => line.includes('"msg":"request"')));
  expect(warningsIn(gateway)).toEqual([
    expect.stringMatching(/^store: redis runs without appendonly/),
    expect.stringMatching(/^operations: pay has inDoubt: retry: .*pays twice/),
    'keys: expired: M-1/old',
    'keys: no operation has the scope "withdrw": M-1/typo',
  ]);
  const { status, body } = await send(gateway.adminUrl, { path: '/readyz' });
  expect(status).toBe(200);
  expect(body.toString()).toContain('redis runs without appendonly');
  // /readyz needs no token, so it must not name merchants.
  expect(body.toString()).not.toContain('M-1');
  expect(await gateway.end()).toBe(0);
  expect(warningsIn(gateway)).toHaveLength(4);
});

it.each([1, 2])(
  'a backend that accepts no connection does not delay warnings, with %i workers',
  async (workers) => {
    const sandbox = await openSandbox();
    const redis = await startRedis({ appendonly: false });
    await using hole = await openBlackhole();
    const upstream = { url: `http://127.0.0.1:${hole.port}`, connectTimeoutMs: 5000 };
    const gateway = await startGateway(configFor(sandbox, { workers, upstream, ...onRedis(redis) }));
    expect(warningsIn(gateway)).toContainEqual(
      expect.stringMatching(/^store: redis runs without appendonly/),
    );
    expect(await gateway.end()).toBe(0);
  },
);
