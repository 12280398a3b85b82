import { cpSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Command } from 'ioredis';
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { acceptStore } from '../../src/ledger/accept-store.ts';
import type { Store } from '../../src/ledger/ledger.ts';
import { measured } from '../../src/ledger/measured.ts';
import { StoreWatch } from '../../src/ledger/store-watch.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { Names } from '../../src/store/redis/commands.ts';
import { joinCluster } from '../faults/chaos/topology-cluster.ts';
import { emitTo } from '../support/emit.ts';
import { freePort } from '../support/free-port.ts';
import { LONG, openRedisStore } from '../support/open-store.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest } from '../support/requests.ts';
import { storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

const MASTERS = 3;
const SLOTS_OF_ONE = 16_384 / MASTERS;
const BACK_WITHIN_MS = 20_000;
const prefix = 'test';
const names = new Names(prefix);
const masterOf = (key: string): number => Math.floor(new Command('get', [key]).getSlot() / SLOTS_OF_ONE);
/** The master with the store's identity, and another one. */
const FIRST = masterOf(names.partitions[0] as string);
const NUMBER = (FIRST + 1) % MASTERS;

function newOn(master: number) {
  for (;;) {
    const request = newRequest();
    if (masterOf(names.recordOf(request.recordId)) === master) return request;
  }
}

let servers: RedisServer[];
beforeAll(async () => {
  const start = async () => {
    const busPort = String(await freePort());
    return await startRedis({ args: ['--cluster-enabled', 'yes', '--cluster-port', busPort] });
  };
  servers = await Promise.all(Array.from({ length: MASTERS }, start));
  await joinCluster(servers);
});

async function openedStore(timeoutMs = 2000) {
  const redis = await openRedisStore({
    ...{
      gatewayId: 'gateway-1',
      location: { cluster: servers.map(({ url }) => url) },
      prefix,
      lockNodes: [],
    },
    ...{ clock: systemClock, timeoutMs, connectTimeoutMs: 10_000, lifetimes: LONG },
  });
  onTestFinished(() => redis.close());
  return redis;
}

/** The store and the watch of a gateway on the cluster. The watch has not begun. */
async function connected(timeoutMs?: number) {
  const redis = await openedStore(timeoutMs);
  const store: Store = measured(redis, systemClock, emitTo({}), (recordId) => watch.refusalOf(recordId));
  const file = join(storeFolder(), 'identity.json');
  const watch = await StoreWatch.open({
    ...{ file, store, mode: 'protect', refuses: true },
    ...{ warnForMs: 60_000, clock: systemClock, emit: emitTo({}) },
  });
  onTestFinished(() => watch.close());
  return { store, watch, file };
}

async function opened() {
  const gateway = await connected();
  gateway.watch.begin();
  await gateway.watch.visit();
  return gateway;
}

const startsAgain = (store: Store) =>
  until(
    async () => (await store.start(newOn(NUMBER)).catch(() => undefined))?.kind === 'started',
    BACK_WITHIN_MS,
  );

describe('a gateway on a cluster, one of whose masters was restarted', () => {
  it('with its records, starts keys there again', async () => {
    const { store, watch } = await opened();
    const started = newOn(NUMBER);
    expect(await store.start(started)).toEqual({ kind: 'started' });
    await servers[NUMBER]?.restart();
    await startsAgain(store);
    expect(await store.start(duplicateOf(started))).toEqual({ kind: 'in_flight' });
    expect(watch.warnings).toEqual([]);
  });

  it('says while it is away that it cannot tell which records there are, and not that there is none', async () => {
    const { store } = await opened();
    const { recordId } = await bring(store, 'completed', newOn(NUMBER));
    expect(await store.idsOf(recordId.slice(0, 12))).toEqual([recordId]);
    const unwatched = await openedStore();
    await servers[NUMBER]?.kill();
    const answers = new Set<string>();
    for (let rounds = 0; rounds < 10; rounds++)
      for (const one of [store, unwatched]) {
        await sleep(10);
        const found = await one.idsOf(recordId.slice(0, 12)).then(String, String);
        const listed = await one.list({ inDoubt: false, limit: 1000 }).then(() => 'a page', String);
        for (const each of [found, listed]) answers.add(each);
      }
    await servers[NUMBER]?.restart();
    expect([...answers].filter((answer) => !answer.startsWith('StoreUnavailable'))).toEqual([]);
    await startsAgain(store);
    expect(await unwatched.idsOf(recordId.slice(0, 12))).toEqual([recordId]);
  });

  it('is asked again for its records at once when its connection has ended', async () => {
    const store = await openedStore();
    const { recordId } = await bring(store, 'completed', newOn(NUMBER));
    const before = store.connectionOf(recordId);
    await servers[NUMBER]?.admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await until(() => store.connectionOf(recordId) !== before);
    expect(await store.idsOf(recordId.slice(0, 12))).toEqual([recordId]);
  });

  it('without its records, starts no key there, although the cluster was down when it was connected again', async () => {
    const gateways = [await opened(), await opened()] as const;
    const [{ store, watch }, other] = gateways;
    const started = newOn(NUMBER);
    expect(await store.start(started)).toEqual({ kind: 'started' });
    const server = servers[NUMBER] as RedisServer;
    await server.kill();
    rmSync(join(server.dir, 'appendonlydir'), { recursive: true });
    await server.restart();
    const answers = new Set<string>();
    const isNoticed = async () => {
      // The identity that it writes must not hide the loss.
      await other.watch.visit();
      answers.add(await store.start(duplicateOf(started)).then(({ kind }) => kind, String));
      await sleep(10);
      return watch.isForgotten && other.watch.isForgotten;
    };
    await until(isNoticed, BACK_WITHIN_MS);
    expect([...answers].filter((answer) => !answer.startsWith('StoreUnavailable'))).toEqual([]);
  });

  it('with the records that it had before an operator accepted it without them, starts no key there', async () => {
    const { store, watch, file } = await opened();
    const server = servers[NUMBER] as RedisServer;
    const [records, before] = [join(server.dir, 'appendonlydir'), join(storeFolder(), 'records')];
    await server.kill();
    cpSync(records, before, { recursive: true });
    rmSync(records, { recursive: true });
    await server.restart();
    await until(() => watch.isForgotten, BACK_WITHIN_MS);
    const note = { by: 'an operator', reason: 'its disk is lost' };
    await acceptStore({ file, store, mode: 'protect', refuses: true, clock: systemClock }, note);
    await startsAgain(store);
    const since = newOn(NUMBER);
    expect(await store.start(since)).toEqual({ kind: 'started' });

    await server.kill();
    rmSync(records, { recursive: true });
    cpSync(before, records, { recursive: true });
    await server.restart();
    await until(() => watch.isForgotten, BACK_WITHIN_MS);
    await expect(store.start(duplicateOf(since))).rejects.toMatchObject({ maybeWritten: false });
  });

  it('without its records, starts no key there, although a visit of the store began before', async () => {
    const { store, watch } = await connected(BACK_WITHIN_MS);
    await watch.visit();
    const started = newOn(NUMBER);
    expect(await store.start(started)).toEqual({ kind: 'started' });
    const [main, server] = [FIRST, NUMBER].map((number) => servers[number]) as [RedisServer, RedisServer];
    // The visit has compared all masters, and its first write waits.
    await main.admin.call('CLIENT', 'PAUSE', '60000', 'WRITE');
    const visit = watch.visit();
    await until(async () => String(await main.admin.call('CLIENT', 'LIST')).includes(' flags=b '));
    await server.kill();
    rmSync(join(server.dir, 'appendonlydir'), { recursive: true });
    await server.restart();
    // Retries of merchants connect the gateway to the master while the cluster is still down.
    const isUp = async () => {
      store.peek(started).catch(() => {});
      return String(await server.admin.cluster('INFO')).includes('cluster_state:ok');
    };
    await until(isUp, BACK_WITHIN_MS);
    await main.admin.call('CLIENT', 'UNPAUSE');
    await visit;
    watch.begin();
    const answers = new Set<string>();
    const isOver = async () => {
      answers.add(await store.start(duplicateOf(started)).then(({ kind }) => kind, String));
      return watch.isForgotten || answers.has('started');
    };
    await until(isOver, BACK_WITHIN_MS);
    expect([...answers].filter((answer) => !answer.startsWith('StoreUnavailable'))).toEqual([]);
  });
});
