import { freePort } from '../../support/free-port.ts';
import type { RedisServer } from '../../support/redis-process.ts';
import { until } from '../../support/until.ts';
import type { StoreFault, Topology } from './topology.ts';
import { faultsOf, lateRequests, startWired, stopWired, type WiredRedis } from './topology-redis.ts';

const SLOTS = 16_384;
const SERVING_WITHIN_MS = 20_000;
/** How many keys of a slot move at a time. */
const STEP_KEYS = 5;
const MIGRATE_WITHIN_MS = 5000;

/** Three masters, each behind its own proxy: a node announces the address of its proxy to clients. */
export async function startCluster(): Promise<Topology> {
  const nodes = await Promise.all([1, 2, 3].map(startMaster));
  const servers = nodes.map(({ server }) => server);
  try {
    await joinCluster(servers);
  } catch (error) {
    await stopWired(nodes);
    throw error;
  }
  const faults = [
    ...nodes.flatMap((node, i) => faultsOf(node, `master ${i + 1}`)),
    lateRequests(() => (nodes[0] as WiredRedis).wire, 'master 1'),
    movingSlots(servers),
  ];
  return {
    config: { store: { kind: 'redis', cluster: nodes.map(({ wire }) => wire.url) } },
    faults: faults.map((fault) => ({
      ...fault,
      // A server that was down for longer than cluster-node-timeout runs again long before its cluster accepts it.
      heal: async () => {
        await fault.heal();
        await serving(servers);
      },
    })),
    stop: () => stopWired(nodes),
  };
}

async function startMaster(): Promise<WiredRedis> {
  const busPort = String(await freePort());
  return await startWired((wirePort) => [
    ...['--cluster-enabled', 'yes', '--cluster-port', busPort],
    ...['--cluster-announce-ip', '127.0.0.1', '--cluster-announce-port', String(wirePort)],
    ...['--cluster-announce-bus-port', busPort, '--cluster-node-timeout', '2000'],
  ]);
}

/** Makes masters with equal shares of the slots of servers that were started with `cluster-enabled`. Resolves when all serve. */
export async function joinCluster(servers: readonly RedisServer[]): Promise<void> {
  const [first] = servers;
  if (!first) throw new Error('a cluster needs nodes');
  const busPort = async ({ admin }: RedisServer) =>
    ((await admin.config('GET', 'cluster-port')) as string[])[1] ?? '';
  for (const [i, { admin }] of servers.entries()) {
    const [from, to] = [i, i + 1].map((edge) => Math.floor((SLOTS * edge) / servers.length)) as [
      number,
      number,
    ];
    await admin.call('CLUSTER', 'SET-CONFIG-EPOCH', i + 1);
    await admin.call('CLUSTER', 'ADDSLOTSRANGE', from, to - 1);
    if (i > 0) await admin.call('CLUSTER', 'MEET', '127.0.0.1', first.port, await busPort(first));
  }
  await serving(servers);
}

/** Resolves when every node, asked without its proxy, serves and knows all others, and none suspects another. */
async function serving(servers: readonly RedisServer[]): Promise<void> {
  const serves = async ({ admin }: RedisServer) => {
    const [state, view] = await Promise.all([admin.cluster('INFO'), admin.cluster('NODES')]);
    const signs = ['cluster_state:ok', `cluster_known_nodes:${servers.length}`];
    return signs.every((sign) => String(state).includes(sign)) && !/\bfail\b/.test(String(view));
  };
  const all = async () => (await Promise.all(servers.map(serves))).every(Boolean);
  await until(() => all().catch(() => false), SERVING_WITHIN_MS);
}

/** A slot on its way. Each step can be repeated after it has failed. */
interface Move {
  slot: number;
  from: RedisServer;
  to: RedisServer;
}

/**
 * A third of the slots in use moves from one master to the next one, and the next time from that one. Until the fault is healed,
 * keys of these slots are on both: in every other slot some have moved.
 */
function movingSlots(servers: readonly RedisServer[]): StoreFault {
  let turn = 0;
  let moves: Move[] = [];
  return {
    name: 'slots moved to another master',
    inject: async () => {
      const [from, to] = [turn, turn + 1].map((at) => servers[at % servers.length]) as [
        RedisServer,
        RedisServer,
      ];
      const slots = (await slotsInUse(from)).filter((_, at) => (at + turn) % 3 === 0);
      turn++;
      if (slots.length === 0) throw new Error('no slot has keys');
      moves = slots.map((slot) => ({ slot, from, to }));
      for (const [at, move] of moves.entries()) {
        await begin(move);
        if (at % 2 === 0) await moveKeys(move);
      }
    },
    heal: async () => {
      for (const move of moves) {
        const isDone = () =>
          finish(move, servers).then(
            () => true,
            () => false,
          );
        await until(isDone, SERVING_WITHIN_MS);
      }
      moves = [];
    },
  };
}

async function slotsInUse({ admin }: RedisServer): Promise<number[]> {
  const asked = admin.pipeline();
  for (let slot = 0; slot < SLOTS; slot++) asked.cluster('COUNTKEYSINSLOT', slot);
  const counts = (await asked.exec()) ?? [];
  return counts.flatMap(([, count], slot) => (Number(count) > 0 ? [slot] : []));
}

async function begin({ slot, from, to }: Move): Promise<void> {
  await setSlot(slot, to, 'IMPORTING', from);
  await setSlot(slot, from, 'MIGRATING', to);
}

/** Moves some keys. False: no key is left. */
async function moveKeys({ slot, from, to }: Move): Promise<boolean> {
  // As bytes, because a token in a name is binary.
  const asked = await from.admin.callBuffer('CLUSTER', 'GETKEYSINSLOT', slot, STEP_KEYS);
  const keys = asked as Buffer[];
  // A move that broke off may have left a copy, which is older.
  const how = ['', 0, MIGRATE_WITHIN_MS, 'REPLACE', 'KEYS'];
  if (keys.length > 0) await from.admin.call('MIGRATE', '127.0.0.1', to.port, ...how, ...keys);
  return keys.length > 0;
}

async function finish(move: Move, servers: readonly RedisServer[]): Promise<void> {
  await begin(move);
  while (await moveKeys(move));
  // The new owner first: the others believe it.
  for (const server of new Set([move.to, move.from, ...servers]))
    await setSlot(move.slot, server, 'NODE', move.to);
}

async function setSlot(
  slot: number,
  { admin }: RedisServer,
  state: 'IMPORTING' | 'MIGRATING' | 'NODE',
  other: RedisServer,
): Promise<void> {
  const id = String(await other.admin.cluster('MYID'));
  await admin.call('CLUSTER', 'SETSLOT', slot, state, id).catch((error: Error) => {
    // It has changed hands already.
    if (!/owner of hash slot/.test(error.message)) throw error;
  });
}
