import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { openStore } from '../support/open-store.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { duplicateOf } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const LEASE_MS = 1000;

/** Two nodes on one redis, with their leases on three others. */
async function withLockNodes() {
  const [main, ...locks] = await Promise.all([startRedis(), startRedis(), startRedis(), startRedis()]);
  const lockNodes = locks.map(({ url }) => url);
  const place = { kind: 'redis', url: main.url, prefix: 'test', lockNodes } as const;
  const times = { leaseMs: LEASE_MS, timeoutMs: 400 };
  const [store, other] = await Promise.all([openStore(place, times), openStore(place, times)]);
  const dispose = async () => {
    await Promise.all([store.close(), other.close()]);
    await Promise.all([main, ...locks].map((server) => server.stop()));
  };
  return { main, locks, store, other, [Symbol.asyncDispose]: dispose };
}

const leasesOn = async (servers: RedisServer[]) =>
  await Promise.all(servers.map(async ({ admin }) => (await admin.keys('*:lease')).length));

it.concurrent('leases live on the lock nodes, one of which may die', async () => {
  await using nodes = await withLockNodes();
  const { main, locks, store, other } = nodes;
  const owner = await bring(store, 'executing');
  await until(async () => (await leasesOn(locks)).join() === '1,1,1');
  expect(await leasesOn([main])).toEqual([0]);

  await locks[0]?.kill();
  const silent = await bring(store, 'executing');
  await until(async () => {
    expect(await store.renew(owner)).toBe('ok');
    expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    await sleep(LEASE_MS / 20);
    return (await other.claim(duplicateOf(silent))).kind === 'in_doubt';
  });
});

it.concurrent('a frozen lock node keeps nobody waiting', async () => {
  await using nodes = await withLockNodes();
  const { locks, store, other } = nodes;
  locks[1]?.freeze();
  const owner = await bring(store, 'executing');
  const startedMs = performance.now();
  expect(await store.renew(owner)).toBe('ok');
  expect(performance.now() - startedMs).toBeLessThan(300);
  expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
});

it.concurrent('nobody is declared gone while most lock nodes are dead', async () => {
  await using nodes = await withLockNodes();
  const { locks, store, other } = nodes;
  const owner = await bring(store, 'executing');
  await locks[0]?.kill();
  await locks[1]?.kill();
  await sleep(1.5 * LEASE_MS);
  expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
  await locks[0]?.restart();
  await until(async () => (await other.claim(duplicateOf(owner))).kind === 'in_doubt');
});
