import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it, onTestFinished } from 'vitest';
import { openStore } from '../support/open-store.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { duplicateOf } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const LEASE_MS = 1000;

async function withLockNodes() {
  const main = await startRedis();
  const locks = await Promise.all([startRedis(), startRedis(), startRedis()]);
  const place = {
    kind: 'redis',
    url: main.url,
    prefix: 'test',
    lockNodes: locks.map(({ url }) => url),
  } as const;
  const open = async () => {
    const store = await openStore(place, { leaseMs: LEASE_MS, timeoutMs: 400 });
    onTestFinished(() => store.close());
    return store;
  };
  const [store, other] = [await open(), await open()];
  return { main, locks, store, other };
}

const leasesOn = async (servers: RedisServer[]) =>
  await Promise.all(servers.map(async ({ admin }) => (await admin.keys('*:lease')).length));

it('leases live on the lock nodes, one of which may die', async () => {
  const { main, locks, store, other } = await withLockNodes();
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

it('a frozen lock node keeps nobody waiting', async () => {
  const { locks, store, other } = await withLockNodes();
  locks[1]?.freeze();
  const owner = await bring(store, 'executing');
  const startedMs = performance.now();
  expect(await store.renew(owner)).toBe('ok');
  expect(performance.now() - startedMs).toBeLessThan(300);
  expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
});

it('nobody is declared gone while most lock nodes are dead', async () => {
  const { locks, store, other } = await withLockNodes();
  const owner = await bring(store, 'executing');
  await locks[0]?.kill();
  await locks[1]?.kill();
  await sleep(1.5 * LEASE_MS);
  expect(await other.claim(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
  await locks[0]?.restart();
  await until(async () => (await other.claim(duplicateOf(owner))).kind === 'in_doubt');
});
