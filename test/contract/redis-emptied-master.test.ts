import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Command } from 'ioredis';
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest';
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

const MASTERS = 3;
const SLOTS_OF_ONE = 16_384 / MASTERS;
const BACK_WITHIN_MS = 20_000;
const prefix = 'test';
const names = new Names(prefix);
const masterOf = (key: string): number => Math.floor(new Command('get', [key]).getSlot() / SLOTS_OF_ONE);
/** Another master than the one with the store's identity. */
const NUMBER = (masterOf(names.partitions[0] as string) + 1) % MASTERS;

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

/** The store and the watch of a gateway on the cluster. */
async function opened() {
  const redis = await openRedisStore({
    ...{
      gatewayId: 'gateway-1',
      location: { cluster: servers.map(({ url }) => url) },
      prefix,
      lockNodes: [],
    },
    ...{ clock: systemClock, timeoutMs: 2000, connectTimeoutMs: 10_000, lifetimes: LONG },
  });
  onTestFinished(() => redis.close());
  const store: Store = measured(redis, systemClock, emitTo({}), (recordId) => watch.refusalOf(recordId));
  const watch = await StoreWatch.open({
    ...{ file: join(storeFolder(), 'identity.json'), store, mode: 'protect', refuses: true },
    ...{ warnForMs: 60_000, clock: systemClock, emit: emitTo({}) },
  });
  watch.begin();
  onTestFinished(() => watch.close());
  await watch.visit();
  return { store, watch };
}

describe('a gateway on a cluster, one of whose masters was restarted', () => {
  it('with its records, starts keys there again', async () => {
    const { store, watch } = await opened();
    const started = newOn(NUMBER);
    expect(await store.start(started)).toEqual({ kind: 'started' });
    await servers[NUMBER]?.restart();
    await until(
      async () => (await store.start(newOn(NUMBER)).catch(() => undefined))?.kind === 'started',
      BACK_WITHIN_MS,
    );
    expect(await store.start(duplicateOf(started))).toEqual({ kind: 'in_flight' });
    expect(watch.warnings).toEqual([]);
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
});
