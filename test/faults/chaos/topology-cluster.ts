import { freePort } from '../../support/free-port.ts';
import type { RedisServer } from '../../support/redis-process.ts';
import { until } from '../../support/until.ts';
import type { Topology } from './topology.ts';
import { faultsOf, lateRequests, startWired, stopWired, type WiredRedis } from './topology-redis.ts';

const SLOTS = 16_384;
const SERVING_WITHIN_MS = 20_000;

/** Three masters, each behind its own proxy: a node announces the address of its proxy to clients. */
export async function startCluster(): Promise<Topology> {
  const nodes = await Promise.all(Array.from({ length: 3 }, startMaster));
  try {
    await joinCluster(nodes.map(({ server }) => server));
  } catch (error) {
    await stopWired(nodes);
    throw error;
  }
  return {
    config: { store: { kind: 'redis', cluster: nodes.map(({ wire }) => wire.url) } },
    faults: nodes
      .flatMap((node, i) => [
        ...faultsOf(node, `master ${i + 1}`),
        ...(i === 0 ? [lateRequests(async () => node.wire, 'master 1')] : []),
      ])
      .map((fault) => ({
        ...fault,
        // A server that was down for longer than cluster-node-timeout runs again long before its cluster accepts it.
        heal: async () => {
          await fault.heal();
          await serving(nodes.map(({ server }) => server));
        },
      })),
    stop: () => stopWired(nodes),
  };
}

async function startMaster(): Promise<WiredRedis> {
  const busPort = String(await freePort());
  return await startWired({}, (wirePort) => [
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
