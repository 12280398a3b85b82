import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { openStore } from '../support/open-store.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { duplicateOf } from '../support/requests.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const LEASE_MS = 3000;
const TIMEOUT_MS = 2000;

/** Two stores on one redis, with their leases on three lock nodes. */
async function withLockNodes() {
  const [main, ...locks] = await Promise.all([startRedis(), startRedis(), startRedis(), startRedis()]);
  const lockNodes = locks.map(({ url }) => url);
  const place = { kind: 'redis', url: main.url, prefix: 'test', lockNodes } as const;
  const times = { leaseMs: LEASE_MS, timeoutMs: TIMEOUT_MS };
  const [store, other] = await Promise.all([openStore(place, times), openStore(place, times)]);
  for (const each of [store, other]) await connectToAll(each, locks);
  const dispose = async () => {
    await Promise.all([store.close(), other.close()]);
    await Promise.all([main, ...locks].map((server) => server.stop()));
  };
  return { main, locks, store, other, [Symbol.asyncDispose]: dispose };
}

/** A renewal takes the lease on the nodes that the store is connected to, and a store does not wait for its lock nodes. */
async function connectToAll(store: Store, locks: RedisServer[]): Promise<void> {
  const holds = (leases: string, withinMs?: number) =>
    until(async () => (await leasesOn(locks)).join() === leases, withinMs);
  await until(async () => {
    const owner = await bring(store, 'executing');
    await store.renew(owner);
    const isOnAll = await holds('1,1,1', 1000).catch(() => false);
    await store.release(owner);
    await holds('0,0,0');
    return isOnAll;
  });
}

/** Waits until the only record's owner counts as dead. Looks at the list, because a request would mark the record. */
const untilGone = async (store: Store) =>
  await until(async () => (await store.list({ inDoubt: true, limit: 10 })).records.length === 1);

const leasesOn = async (servers: RedisServer[]) =>
  await Promise.all(servers.map(async ({ admin }) => (await admin.keys('*:lease')).length));

it.concurrent('the lock nodes hold the leases, and one of them may die', async () => {
  await using nodes = await withLockNodes();
  const { main, locks, store, other } = nodes;
  const owner = await bring(store, 'executing');
  expect(await leasesOn(locks)).toEqual([0, 0, 0]);
  expect(await store.renew(owner)).toBe('ok');
  await until(async () => (await leasesOn(locks)).join() === '1,1,1');
  expect(await leasesOn([main])).toEqual([0]);

  await locks[0]?.kill();
  const silent = await bring(store, 'executing');
  await until(async () => {
    expect(await store.renew(owner)).toBe('ok');
    expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    await sleep(LEASE_MS / 20);
    return (await other.start(duplicateOf(silent))).kind === 'in_doubt';
  });
  // It started before the silent owner, so it is older than its lease.
  expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
});

it.concurrent('a start waits for no lock node, and a renewal not for a frozen one', async () => {
  await using nodes = await withLockNodes();
  const { locks, store, other } = nodes;
  locks[1]?.freeze();
  const owner = await bring(store, 'executing');
  const startedMs = performance.now();
  expect(await store.renew(owner)).toBe('ok');
  expect(performance.now() - startedMs).toBeLessThan(TIMEOUT_MS / 4);
  expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
});

it.concurrent('no owner counts as dead while most lock nodes are down', async () => {
  await using nodes = await withLockNodes();
  const { locks, store, other } = nodes;
  const owner = await bring(store, 'executing');
  await locks[0]?.kill();
  await locks[1]?.kill();
  await sleep(1.5 * LEASE_MS);
  expect(await other.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
  expect(await other.peek(owner)).toEqual({ kind: 'in_flight' });
  const note = { by: 'ada', reason: 'in the books' };
  expect(await other.resolve(owner.recordId, owner.token, { as: 'released' }, note)).toBe('alive');
  await locks[0]?.restart();
  await until(async () => (await other.peek(owner)).kind === 'in_doubt');
  await until(async () => (await other.start(duplicateOf(owner))).kind === 'in_doubt');
});

it.concurrent('a start that asks the lock nodes does not go on when its redis was replaced by an empty one meanwhile', async () => {
  await using nodes = await withLockNodes();
  const { main, locks, store } = nodes;
  const [first, ...others] = locks as [RedisServer, ...RedisServer[]];
  const wire = await startProxy(first.port);
  const lockNodes = [wire.url, ...others.map(({ url }) => url)];
  const slow = await openStore(
    { kind: 'redis', url: main.url, prefix: 'test', lockNodes },
    { timeoutMs: 5000 },
  );
  try {
    const owner = await bring(store, 'executing');
    await untilGone(store);
    const asked = await first.commandCount('exists');
    wire.delayReplies(1500);
    const late = slow.start(duplicateOf(owner)).then(({ kind }) => kind, String);
    await until(async () => (await first.commandCount('exists')) > asked);
    await main.admin.multi().flushall().call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes').exec();
    await until(() => slow.refusing === undefined);
    expect(await late).toMatch('connected again');
    expect(await main.admin.keys('{test:*')).toEqual([]);
  } finally {
    await slow.close();
    await wire.close();
  }
});
