import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { networkInterfaces } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { Command, Redis } from 'ioredis';
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { RateLimiter } from '../../src/gateway/rate-limiter.ts';
import type { Store } from '../../src/ledger/ledger.ts';
import { openRedis } from '../../src/ledger/open-store.ts';
import { Copy } from '../../src/ledger/store-copy.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { createClient, type RedisOptions } from '../../src/store/redis/client.ts';
import { Names } from '../../src/store/redis/commands.ts';
import { RedisCopyRegister } from '../../src/store/redis/copy-register.ts';
import { RedisRegister } from '../../src/store/redis/register.ts';
import type { CopyRegister } from '../../src/store/register.ts';
import { storeOptions } from '../../src/store/store-options.ts';
import {
  type Execution,
  STORE_FORMAT,
  type StartAnswer,
  StoreUnavailable,
  type Written,
} from '../../src/store/types.ts';
import { startTopology } from '../faults/chaos/start-topology.ts';
import type { Topology } from '../faults/chaos/topology.ts';
import { completed as completedFrom, newId, newRecord, replacement } from '../registers/records.ts';
import { emitTo } from '../support/emit.ts';
import { LONG, openCopyRegister, openRedisStore } from '../support/open-store.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';
import { everyPage } from './store-contract.ts';

/** Starting servers takes most of the time, so the tests of one topology share it. Each has another prefix, and heals its faults. */
const started = new Map<string, Promise<Topology>>();
afterAll(async () => {
  for (const topology of started.values()) await (await topology).stop();
});

function topologyOf(name: 'sentinel' | 'cluster'): Promise<Topology> {
  const topology = started.get(name) ?? startTopology(name, '');
  started.set(name, topology);
  return topology;
}

let tests = 0;
let prefix = '';
/** On a cluster, a store's identity is on the last master. */
beforeEach(() => {
  do prefix = `test-${++tests}`;
  while (slotOfKey(new Names(prefix).partitions[0] as string) <= 2 * SLOTS_OF_FIRST);
});

function optionsOf({ config: { store } }: Topology, timeoutMs = 2000, replicas?: number): RedisOptions {
  if (store?.kind !== 'redis') throw new TypeError('this topology has no redis');
  const { sentinels, cluster } = store;
  const location = { sentinels, cluster };
  return {
    ...{ gatewayId: 'gateway-1', location, prefix, lockNodes: [], clock: systemClock },
    ...{ replicas: replicas ?? store.durability?.replicas ?? 0, timeoutMs, connectTimeoutMs: 10_000 },
  };
}

/** The store that a gateway would open with this topology's configuration. */
async function opened(topology: Topology, timeoutMs?: number, replicas?: number): Promise<Store> {
  const redis = await openRedisStore({ ...optionsOf(topology, timeoutMs, replicas), lifetimes: LONG });
  onTestFinished(() => redis.close());
  return redis;
}

/** A third of the cluster's 16,384. */
const SLOTS_OF_FIRST = 5461;
/** Slots of the first master that a test has given to the second. */
const movedSlots = new Set<number>();

const recordOf = ({ recordId }: { recordId: RecordId }): string => new Names(prefix).recordOf(recordId);
const slotOfKey = (key: string): number => new Command('get', [key]).getSlot();
const slotOf = (request: { recordId: RecordId }): number => slotOfKey(recordOf(request));
const isOnFirst = (request: Execution): boolean =>
  slotOf(request) < SLOTS_OF_FIRST && !movedSlots.has(slotOf(request));

function newOn(isThere: (request: Execution) => boolean): Execution {
  for (;;) {
    const request = newRequest();
    if (isThere(request)) return request;
  }
}

/** Lets a slot of the first master move to the second. Until `end`, its keys may be on both. */
async function movingSlot(topology: Topology, slot: number) {
  movedSlots.add(slot);
  const [from, to] = clusterNodes(topology) as [Redis, Redis];
  const [fromId, toId] = [String(await from.cluster('MYID')), String(await to.cluster('MYID'))];
  await to.cluster('SETSLOT', slot, 'IMPORTING', fromId);
  await from.cluster('SETSLOT', slot, 'MIGRATING', toId);
  const { host, port } = to.options;
  const move = (keys: string[]) => from.migrate(host ?? '', port ?? 0, '', 0, 5000, 'KEYS', ...keys);
  const moveAll = async () => move((await from.cluster('GETKEYSINSLOT', slot, 1000)) as string[]);
  const end = async () => {
    for (const node of [to, from]) await node.cluster('SETSLOT', slot, 'NODE', toId);
  };
  return { nodes: [from, to], move, moveAll, end };
}

/** Repeats a write until it succeeds. */
const untilOk = (write: () => Promise<Written>) =>
  until(async () => (await write().catch(() => 'away')) === 'ok', 20_000);

const faultOf = ({ faults }: Topology, wanted: string) => {
  const fault = faults.find(({ name }) => name === wanted);
  if (!fault) throw new Error(`there is no fault ${wanted}`);
  return fault;
};

/** One client for each master. */
function clusterNodes({ config: { store } }: Topology): Redis[] {
  const urls = store?.kind === 'redis' ? (store.cluster ?? []) : [];
  return urls.map((url) => {
    const node = new Redis(url, { retryStrategy: () => 25 }).on('error', () => {});
    onTestFinished(() => node.disconnect());
    return node;
  });
}

/** The source or the destination of a copy. */
async function openedCopy(topology: Topology, as = prefix): Promise<RedisCopyRegister> {
  const side = await RedisCopyRegister.open({ ...optionsOf(topology, 10_000), prefix: as });
  onTestFinished(() => side.close());
  return side;
}

async function sqlite() {
  const side = await openCopyRegister({ kind: 'sqlite', path: storeFolder() });
  onTestFinished(() => side.close());
  return side;
}

async function filled(side: CopyRegister, count = 3000): Promise<RecordId[]> {
  const ids = Array.from({ length: count }, newId);
  await side.register.visit('protect');
  for (let at = 0; at < count; at += 100)
    await Promise.all(
      ids
        .slice(at, at + 100)
        .map((id) => side.register.replace(id, replacement(undefined, completedFrom(newRecord())))),
    );
  return ids;
}

/** The same side, with something that happens behind the first page of a scan, once. */
function interrupted(side: CopyRegister, happen: () => Promise<unknown>): CopyRegister {
  let isFirst = true;
  async function* scan() {
    for await (const page of side.scan()) {
      yield page;
      if (isFirst) await happen();
      isFirst = false;
    }
  }
  return new Proxy(side, {
    get(target, name) {
      const member = Reflect.get(target, name, target);
      return name === 'scan' ? scan : typeof member === 'function' ? member.bind(target) : member;
    },
  });
}

/** Copies as an operator does, who repeats the command if a store does not answer. Returns its lines. */
async function copied(from: CopyRegister, to: CopyRegister): Promise<string[]> {
  const lines: string[] = [];
  await until(async () => {
    const run = new Copy({ from, to, onProgress: (line) => void lines.push(line) }).run();
    return await run.catch((error: unknown) => {
      expect(error).toBeInstanceOf(StoreUnavailable);
      lines.push(String(error));
      return undefined;
    });
  }, 60_000);
  return lines;
}

async function expectAll(side: CopyRegister, ids: readonly RecordId[]): Promise<void> {
  const found = await Promise.all(ids.map((id) => side.register.read(id)));
  expect(found.filter((seen) => seen?.record.state === 'completed')).toHaveLength(ids.length);
}

const BEGAN_AGAIN = /copying everything again|StoreUnavailable/;

describe('a store on sentinels or a cluster', { timeout: 120_000 }, () => {
  it('keeps its records when the sentinels fail over and the old master comes back', async () => {
    const topology = await topologyOf('sentinel');
    const store = await opened(topology);
    expect(await store.health()).toMatchObject({ ok: true, warnings: [] });
    const [completed, executing] = [await bring(store, 'completed'), await bring(store, 'executing')];
    const failover = faultOf(topology, 'master killed, failover');
    await failover.inject();
    await expect
      .poll(() => store.get(completed.recordId).catch(String), { timeout: 60_000 })
      .toMatchObject({ state: 'completed' });
    // Without a replica nothing starts, and nothing is replayed, because the next failover could lose it.
    await expect(store.start(newRequest())).rejects.toThrow('did not reach its replicas');
    await expect(store.start(duplicateOf(completed))).rejects.toThrow('did not reach its replicas');
    await failover.heal();
    const replay = await until(() => store.start(duplicateOf(completed)).catch(() => undefined), 20_000);
    expect(replay).toEqual(replayOf(paid(), completed));
    await untilOk(() => store.complete(executing, paid('late')));
    expect(await store.start(duplicateOf(executing))).toEqual(replayOf(paid('late'), executing));
  });

  it('a Redis that fails over while it is scanned is copied whole', async () => {
    const topology = await topologyOf('sentinel');
    const [from, to] = [await openedCopy(topology), await sqlite()];
    const ids = await filled(from);
    const servers = await from.servers();
    const failover = faultOf(topology, 'master killed, failover');
    const lines = await copied(
      interrupted(from, async () => {
        await failover.inject();
        await failover.heal();
      }),
      to,
    );
    expect(lines.filter((line) => BEGAN_AGAIN.test(line)).length).toBeGreaterThan(0);
    expect(await from.servers()).not.toBe(servers);
    await expectAll(to, ids);
  });

  it('counts a replica that is away, until the sentinels are told that it is gone', async () => {
    const topology = await topologyOf('sentinel');
    await faultOf(topology, 'replica killed').inject();
    const { sentinels } = topology.config.store as { sentinels: { nodes: string[] } };
    const clients = sentinels.nodes.map((url) => new Redis(url));
    onTestFinished(() => {
      for (const client of clients) client.disconnect();
    });
    const alone = await opened(topology, 2000, 0);
    const detail = expect.stringMatching(
      /^redis has 1 replica and durability\.replicas is 0: .* Set durability\.replicas to 1, or .*SENTINEL RESET payments on each sentinel/,
    );
    expect(await alone.health()).toMatchObject({ ok: false, detail });
    await expect(alone.start(newRequest())).rejects.toMatchObject({ message: detail, maybeWritten: false });
    // Also while no sentinel answers.
    const nodes = sentinels.nodes.splice(0);
    expect(await alone.health()).toMatchObject({ ok: false, detail });
    sentinels.nodes.push(...nodes);
    for (const client of clients) await client.call('SENTINEL', 'RESET', 'payments');
    await until(async () => (await alone.health()).ok, 20_000);
    expect(await alone.start(newRequest())).toEqual({ kind: 'started' });
  });

  it('asks the next sentinel if the first one accepts connections and answers nothing', async () => {
    const silent = createServer(() => {});
    silent.listen(0, '127.0.0.1');
    await once(silent, 'listening');
    onTestFinished(() => void silent.close());
    const { port } = silent.address() as AddressInfo;
    const options = optionsOf(await topologyOf('sentinel'), 1000, 0);
    const { name, nodes } = options.location.sentinels as { name: string; nodes: string[] };
    const location = { sentinels: { name, nodes: [`redis://127.0.0.1:${port}`, ...nodes] } };
    const register = await RedisRegister.open({ ...options, location, mayLoseOnFailover: true });
    onTestFinished(() => register.close());
    expect(await register.health()).toMatchObject({ ok: true });
  });

  const hasIpv6 = Object.values(networkInterfaces()).some((some) =>
    some?.some(({ address }) => address === '::1'),
  );
  it.skipIf(!hasIpv6)('finds sentinels and a cluster by IPv6 addresses', async () => {
    const onIpv6 = async (url = '') => {
      const { hostname, port } = new URL(url);
      const wire = createServer((near) => {
        const far = connect(Number(port), hostname);
        for (const socket of [near, far]) socket.on('error', () => {});
        near.pipe(far).pipe(near);
      });
      await once(wire.listen(0, '::1'), 'listening');
      onTestFinished(() => void wire.close());
      return `redis://[::1]:${(wire.address() as AddressInfo).port}`;
    };
    const behind = optionsOf(await topologyOf('sentinel'), 1000, 0);
    const { name, nodes } = behind.location.sentinels as { name: string; nodes: string[] };
    const inCluster = optionsOf(await topologyOf('cluster'));
    for (const options of [
      { ...behind, location: { sentinels: { name, nodes: [await onIpv6(nodes[0])] } } },
      { ...inCluster, location: { cluster: [await onIpv6(inCluster.location.cluster?.[0])] } },
    ]) {
      const register = await RedisRegister.open({
        ...options,
        connectTimeoutMs: 3000,
        mayLoseOnFailover: true,
      });
      onTestFinished(() => register.close());
      expect(await register.health()).toMatchObject({ ok: true });
    }
  });

  it('waits longer for a sentinel than for a command', async () => {
    const { location } = optionsOf(await topologyOf('sentinel'));
    const { name, nodes } = location.sentinels as { name: string; nodes: string[] };
    const { hostname, port } = new URL(nodes[0] as string);
    const far = createServer((near) => {
      const sentinel = connect(Number(port), hostname);
      near.on('data', (bytes) => void setTimeout(() => sentinel.write(bytes), 100));
      for (const socket of [near, sentinel]) socket.on('error', () => {});
      sentinel.pipe(near).on('close', () => sentinel.destroy());
    });
    far.listen(0, '127.0.0.1');
    await once(far, 'listening');
    onTestFinished(() => void far.close());
    const { port: farPort } = far.address() as AddressInfo;
    const sentinels = { name, nodes: [`redis://127.0.0.1:${farPort}`] };
    const client = createClient({ ...location, sentinels }, 50) as Redis;
    onTestFinished(() => client.disconnect());
    await client.connect();
    expect(client.status).toBe('ready');
  });

  it('spreads records over all masters, lists them, and is well if all masters are', async () => {
    const topology = await topologyOf('cluster');
    const store = await opened(topology);
    const doubtful = await Promise.all(Array.from({ length: 30 }, () => bring(store, 'in_doubt')));
    const listed = await everyPage(store, 10, true);
    expect(listed.map(({ recordId }) => recordId).toSorted()).toEqual(
      doubtful.map(({ recordId }) => recordId).toSorted(),
    );
    for (const { recordId } of [...doubtful.slice(0, 3), await bring(store, 'completed')])
      expect(await store.idsOf(recordId.slice(0, 16))).toEqual([recordId]);
    expect(await store.health()).toMatchObject({ ok: true });
    const masters = clusterNodes(topology);
    for (const master of masters)
      expect(await master.keys(`{${prefix}:${STORE_FORMAT}:*}:probe:*`)).not.toEqual([]);
    await masters[1]?.config('SET', 'maxmemory', '1');
    expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining('OOM') });
    await masters[1]?.config('SET', 'maxmemory', '0');
  });

  it('has another connection before a start can reach an emptied master that had the store’s identity, even by a redirection', async () => {
    const topology = await topologyOf('cluster');
    const store = await opened(topology);
    const last = clusterNodes(topology).at(-1);
    const newHere = () => newOn((request) => slotOf(request) > 2 * SLOTS_OF_FIRST);
    expect(await store.start(newHere())).toEqual({ kind: 'started' });
    const connection = store.connectionOf();
    await last?.multi().flushall().call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes').exec();
    // As gateways do, whose watch of the store compares each new connection first.
    const starts: Promise<string>[] = [];
    while (store.connectionOf() === connection) {
      starts.push(store.start(newHere()).then(({ kind }) => kind, String));
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(await Promise.all(starts)).not.toContain('started');
    await until(async () => (await store.start(newHere()).catch(() => undefined))?.kind === 'started');
  });

  it('counts the keys in doubt of a cluster on all masters, and those that no index has after a repair', async () => {
    const topology = await topologyOf('cluster');
    const store = await opened(topology);
    const masters = clusterNodes(topology);
    for (let left = 20; left > 0; left--) await bring(store, left % 2 ? 'in_doubt' : 'executing');
    const [resolved, completed] = [await bring(store, 'in_doubt'), await bring(store, 'in_doubt')];
    const asReleased = { by: 'ada', reason: 'in the books', source: 'command_line' } as const;
    expect(await store.resolve(resolved.recordId, resolved.token, { as: 'released' }, asReleased)).toBe('ok');
    await store.complete(completed, paid());
    const inDoubt = async () => (await store.countDoubts()).operations.get('withdraw')?.inDoubt;
    expect(await inDoubt()).toBe(10);
    for (const master of masters)
      for (const key of await master.keys(`{${prefix}:${STORE_FORMAT}:*}:open`)) await master.del(key);
    expect(await inDoubt()).toBeUndefined();
    const register = await RedisRegister.open(optionsOf(topology));
    onTestFinished(() => register.close());
    await register.repairIndex(() => {});
    expect(await inDoubt()).toBe(10);
    const { resolutions } = await store.countDoubts();
    expect(resolutions).toEqual([{ as: 'released', by: 'command_line', number: 1 }]);
  });

  it('notices that a master has lost its identity, whichever it is', async () => {
    const topology = await topologyOf('cluster');
    const store = await opened(topology);
    const { id } = await store.visit('protect');
    for (const [n, master] of clusterNodes(topology).entries()) {
      expect(await store.readIdentity('protect')).toMatchObject({ id, count: n + 1 });
      const copies = await master.keys(`{${prefix}:${STORE_FORMAT}:*}:mark`);
      for (const key of copies.filter((one) => !one.startsWith(`{${prefix}:${STORE_FORMAT}:0}`)))
        await master.del(key);
      expect(await store.readIdentity('protect')).toBeUndefined();
      expect(await store.visit('protect')).toMatchObject({ id });
    }
  });

  it('keeps counting a key in doubt when its slot moves to another master, the index first', async () => {
    const topology = await topologyOf('cluster');
    const store = await opened(topology);
    const request = newOn(isOnFirst);
    await bring(store, 'in_doubt', request);
    const inDoubt = async () => (await store.countDoubts()).operations.get('withdraw')?.inDoubt;
    const { move, moveAll, end } = await movingSlot(topology, slotOf(request));
    await move([`${new Names(prefix).startOf(request.recordId)}open`]);
    // It cannot know whether there is a record, and leaves the entry.
    expect(await inDoubt()).toBe(1);
    await moveAll();
    await end();
    expect(await until(() => inDoubt().catch(() => undefined), 20_000)).toBe(1);
  });

  it('executes a key once, and replays results, while their slot moves to another master', async () => {
    const topology = await topologyOf('cluster');
    const store = await opened(topology);
    const request = newOn(isOnFirst);
    // The first bits of an id are its partition.
    const neighbour = () => ({
      ...newRequest(),
      recordId: `${request.recordId.slice(0, 3)}${newRequest().recordId.slice(3)}` as RecordId,
    });
    const completed = await bring(store, 'completed', neighbour());
    expect(await store.start(request)).toEqual({ kind: 'started' });
    const { nodes, moveAll, end } = await movingSlot(topology, slotOf(request));
    const duplicates = () =>
      Promise.allSettled(Array.from({ length: 20 }, () => store.start(duplicateOf(request))));
    const kinds = (answers: PromiseSettledResult<StartAnswer>[]) =>
      answers.flatMap((answer) => (answer.status === 'fulfilled' ? [answer.value.kind] : []));
    const gets: string[] = [];
    for (const node of nodes) {
      const monitor = await monitorRedis(node.options.port ?? 0, ({ name, args: [key = ''] }) => {
        if (name === 'get') gets.push(key);
      });
      onTestFinished(() => void monitor.destroy());
    }
    const replays = async () => {
      gets.length = 0;
      expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
      await until(() => gets.includes(recordOf(completed)));
      expect(await store.peek(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
      const another = store.start(neighbour());
      await expect(another).rejects.toMatchObject({ name: 'StoreUnavailable', maybeWritten: false });
    };
    const meanwhile = await duplicates();
    await replays();
    await moveAll();
    const moved = await duplicates();
    await replays();
    // The client asks the frozen master, and ends no process when that does not answer.
    const frozen = faultOf(topology, 'master 2 frozen');
    await frozen.inject();
    await expect(store.get(completed.recordId)).rejects.toMatchObject({ name: 'StoreUnavailable' });
    await frozen.heal();
    await end();
    await untilOk(() => store.complete(request, paid('moved')));
    expect(kinds([...meanwhile, ...moved])).not.toContain('started');
    expect((await store.countDoubts()).operations.size).toBe(0);
    expect(await store.start(duplicateOf(request))).toEqual(replayOf(paid('moved'), request));
  });

  it('a cluster whose slot moves while it is scanned is copied whole, and so is the copy back', async () => {
    const topology = await topologyOf('cluster');
    const [from, to] = [await openedCopy(topology), await sqlite()];
    const ids = await filled(from);
    const [first] = clusterNodes(topology) as [Redis];
    let slot = 0;
    while ((await first.cluster('COUNTKEYSINSLOT', slot)) === 0) slot++;
    const lines = await copied(
      interrupted(from, async () => {
        const servers = await from.servers();
        const { moveAll, end } = await movingSlot(topology, slot);
        const moving = await from.servers();
        expect(moving).not.toBe(servers);
        expect(await from.servers()).not.toBe(moving);
        await moveAll();
        await end();
      }),
      to,
    );
    expect(lines.filter((line) => BEGAN_AGAIN.test(line)).length).toBeGreaterThan(0);
    await expectAll(to, ids);
    expect(await from.readCopyProgress()).toMatchObject({ state: 'moved', isWhole: true });

    const back = await openedCopy(topology, `${prefix}-new`);
    const report = await new Copy({ from: to, to: back }).run();
    expect(report).toMatchObject({ completed: ids.length });
    await expectAll(back, ids);
  });

  it('two gateways on a cluster share the limits of merchants, whichever master counts', async () => {
    const topology = await topologyOf('cluster');
    const store = storeOptions.parse(topology.config.store);
    const fallbacks: string[] = [];
    const limiters: RateLimiter[] = [];
    for (let i = 0; i < 2; i++) {
      const limiter = new RateLimiter({
        ...{ clock: systemClock, redis: await openRedis(store, 5000), prefix },
        emit: emitTo({ limits_unshared: ({ reason }) => fallbacks.push(reason) }),
      });
      onTestFinished(() => limiter.close());
      limiters.push(limiter);
    }
    const rate = { requests: 3, windowMs: 3_600_000, burst: undefined };
    expect(store).toMatchObject({ cluster: expect.anything() });
    for (const merchant of ['M-1', 'M-2', 'M-3', 'M-4', 'M-5']) {
      const waits = await Promise.all(
        [...limiters, ...limiters, ...limiters].map((limiter) => limiter.take(merchant, rate)),
      );
      expect(fallbacks, JSON.stringify(waits)).toEqual([]);
      expect(
        waits.filter((waitMs) => waitMs === undefined),
        merchant,
      ).toHaveLength(3);
    }
    expect(fallbacks).toEqual([]);
  });

  it('serves the records of the other masters while one is down, if the cluster does not require full coverage, and all when it is back', async () => {
    const topology = await topologyOf('cluster');
    const store = await opened(topology);
    const others = clusterNodes(topology).slice(1);
    const completed = await Promise.all(Array.from({ length: 30 }, () => bring(store, 'completed')));
    const held = completed.filter((owner) => !isOnFirst(owner)).length;
    const replays = async () => {
      const starts = completed.map((owner) => store.start(duplicateOf(owner)).catch(() => undefined));
      return (await Promise.all(starts)).filter((start) => start?.kind === 'completed').length;
    };
    const say = async (sign: string) => {
      const states = await Promise.all(others.map((node) => node.cluster('INFO')));
      return states.every((state) => state.includes(sign));
    };
    const killed = faultOf(topology, 'master 1 killed');
    await killed.inject();
    await until(() => say('cluster_state:fail'));
    expect(await replays()).toBe(0);
    for (const node of others) await node.config('SET', 'cluster-require-full-coverage', 'no');
    await until(() => say('cluster_state:ok'));
    await until(async () => (await replays()) === held);
    expect(held).toBeGreaterThan(0);
    expect(held).toBeLessThan(completed.length);
    // Each start on the dead master makes ioredis connect to it. The others have the connection that was compared with the identity.
    const connection = store.connectionOf();
    for (let round = 0; round < 10; round++) {
      const asked = Array.from({ length: 10 }, () => newRequest());
      const kinds = await Promise.all(asked.map((one) => store.start(one).then(({ kind }) => kind, String)));
      const away = kinds.filter((_, at) => isOnFirst(asked[at] as Execution));
      expect(away).not.toContain('started');
      expect(kinds.filter((kind) => kind === 'started')).toHaveLength(kinds.length - away.length);
      expect(store.connectionOf()).toBe(connection);
    }
    await killed.heal();
    await until(async () => (await replays()) === completed.length);
    for (const node of others) await node.config('SET', 'cluster-require-full-coverage', 'yes');
  });

  it('can be opened while a master of the cluster is frozen for a moment', async () => {
    const topology = await topologyOf('cluster');
    const frozen = faultOf(topology, 'master 2 frozen');
    await frozen.inject();
    const opening = opened(topology, 200);
    // Longer than a command's time limit, so the first check of that master fails, unless the cluster has already left it out.
    await Promise.race([opening, sleep(800)]);
    await frozen.heal();
    const store = await opening;
    // The client connects to that master again.
    await until(async () => (await store.health()).ok);
  });
});
