import { setTimeout as sleep } from 'node:timers/promises';
import { launchRedis, type RedisServer } from '../../support/redis-process.ts';
import { until } from '../../support/until.ts';
import type { StoreFault, Topology } from './topology.ts';
import {
  FAST_REPLICATION,
  faultOf,
  lateRequests,
  startWired,
  stopWired,
  type WiredRedis,
} from './topology-redis.ts';

const NAME = 'payments';
/** Long enough for payouts, short enough that the sentinels do not consider the replica lost. */
const APART_MS = 700;
/** By then the sentinels have agreed whether a master is down. */
const FAILOVER_DECIDED_AFTER_MS = 3000;
/** On a loaded machine the sentinels may need more than one vote. */
const FAILOVER_WITHIN_MS = 60_000;

/**
 * A master and a replica, watched by three sentinels. All connections, also those of the replica and of the sentinels, go
 * through the proxies of the servers.
 *
 * @param replicas how many replicas writes wait for
 */
export async function startSentinels(replicas: number): Promise<Topology> {
  const announced = (port: number) => [
    ...['--replica-announce-ip', '127.0.0.1', '--replica-announce-port', String(port)],
    ...FAST_REPLICATION,
  ];
  const first = await startWired(announced);
  const second = await startWired((port) => [...announced(port), ...following(first)]);
  // The sentinels ask for replicas when they start, and then only every ten seconds.
  await until(async () => (await first.server.admin.info('replication')).includes('state=online'));
  const sentinels = await Promise.all([1, 2, 3].map(() => startSentinel(first.wire.port)));
  const watched = watch([first, second], sentinels);
  await watched.ready();
  return {
    config: {
      store: {
        kind: 'redis',
        sentinels: { name: NAME, nodes: sentinels.map(({ url }) => url) },
        durability: { replicas, mayLoseOnFailover: replicas === 0 },
      },
    },
    faults: faultsIn(watched),
    stop: async () => {
      await Promise.all(sentinels.map((sentinel) => sentinel.stop()));
      await stopWired([first, second]);
    },
  };
}

const following = ({ wire }: WiredRedis) => ['--replicaof', '127.0.0.1', String(wire.port)];

async function startSentinel(masterPort: number): Promise<RedisServer> {
  return await launchRedis({
    sentinel: [
      `sentinel monitor ${NAME} 127.0.0.1 ${masterPort} 2`,
      `sentinel down-after-milliseconds ${NAME} 800`,
      `sentinel failover-timeout ${NAME} 1500`,
    ],
  });
}

/** What the sentinels say about these servers. */
function watch(data: readonly WiredRedis[], sentinels: readonly RedisServer[]) {
  const masterPorts = async () => {
    const ask = async ({ admin }: RedisServer) =>
      ((await admin.call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', NAME)) as [string, string])[1];
    return (await Promise.all(sentinels.map(ask))).map(Number);
  };
  const master = async () => {
    const [port] = await masterPorts();
    return data.find(({ wire }) => wire.port === port) as WiredRedis;
  };
  const replica = async () => {
    const known = await master();
    return data.find((node) => node !== known) as WiredRedis;
  };
  const hasLeft = async (old: WiredRedis) => {
    const known = await master();
    // A frozen one would not answer.
    if (known === old) return false;
    const [role] = (await known.server.admin.call('ROLE')) as [string];
    return role === 'master';
  };
  const isReady = async () => {
    const says = await Promise.all(
      sentinels.map(async ({ admin }) => String(await admin.call('SENTINEL', 'MASTER', NAME))),
    );
    const replication = await (await master()).server.admin.info('replication');
    return (
      new Set(await masterPorts()).size === 1 &&
      says.every((text) => text.includes('num-slaves,1,num-other-sentinels,2')) &&
      replication.includes('state=online')
    );
  };
  return {
    master,
    replica,
    /** Resolves when another server is the master. */
    failedOverFrom: (old: WiredRedis) => until(() => hasLeft(old).catch(() => false), FAILOVER_WITHIN_MS),
    /** Resolves when all sentinels agree, and the replica follows. */
    ready: () => until(() => isReady().catch(() => false), FAILOVER_WITHIN_MS),
  };
}

function faultsIn({ master, replica, failedOverFrom, ready }: ReturnType<typeof watch>): StoreFault[] {
  /** Starts the old master as a replica of the new one, as operators would. */
  const rejoin = async ({ server }: WiredRedis) => {
    await server.restart(following(await master()));
    await ready();
  };
  const kill = async (node: WiredRedis) => {
    await node.server.kill();
    await failedOverFrom(node);
  };
  return [
    faultOf('master killed, failover', master, { inject: kill, heal: rejoin }),
    faultOf('failover with writes that no replica has', master, {
      inject: async (node) => {
        node.wire.swallowReplication(true);
        await sleep(APART_MS);
        await kill(node);
      },
      heal: async (node) => {
        node.wire.swallowReplication(false);
        await rejoin(node);
      },
    }),
    faultOf('master frozen, failover', master, {
      inject: async (node) => {
        node.server.freeze();
        await failedOverFrom(node);
      },
      // It continues as a master with connected clients, until the sentinels make it a replica.
      heal: async (node) => {
        node.server.thaw();
        await ready();
      },
    }),
    faultOf('replica killed', replica, {
      inject: ({ server }) => server.kill(),
      heal: rejoin,
    }),
    faultOf('replies of master lost', master, {
      inject: ({ wire }) => wire.swallowReplies(true),
      // The sentinels may have considered it down and be about to promote the other server. Wait until that is over.
      heal: async ({ wire }) => {
        wire.swallowReplies(false);
        await sleep(FAILOVER_DECIDED_AFTER_MS);
        await ready();
      },
    }),
    lateRequests(async () => (await master()).wire, 'master'),
  ];
}
