import { launchRedis, type RedisServer } from '../../support/redis-process.ts';
import { until } from '../../support/until.ts';
import type { StoreFault, Topology } from './topology.ts';
import { lateRequests, startWired, stopWired, type WiredRedis } from './topology-redis.ts';

const NAME = 'payments';
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
    ...['--repl-diskless-sync-delay', '0', '--repl-ping-replica-period', '1'],
  ];
  const first = await startWired({}, announced);
  const second = await startWired({}, (port) => [
    ...announced(port),
    ...['--replicaof', '127.0.0.1', String(first.wire.port)],
  ]);
  const data = [first, second];
  // The sentinels ask for replicas when they start, and then only every ten seconds.
  await until(async () => (await first.server.admin.info('replication')).includes('state=online'));
  const sentinels = await Promise.all(Array.from({ length: 3 }, () => startSentinel(first.wire.port)));
  const watched = new Watched(data, sentinels);
  await watched.ready();
  return {
    config: {
      store: {
        kind: 'redis',
        sentinels: { name: NAME, nodes: sentinels.map(({ url }) => url) },
        durability: { replicas, mayLoseOnFailover: replicas === 0 },
      },
    },
    faults: faultsOf(watched),
    stop: async () => {
      await Promise.all(sentinels.map((sentinel) => sentinel.stop()));
      await stopWired(data);
    },
  };
}

async function startSentinel(masterPort: number): Promise<RedisServer> {
  return await launchRedis({
    sentinel: [
      `sentinel monitor ${NAME} 127.0.0.1 ${masterPort} 2`,
      `sentinel down-after-milliseconds ${NAME} 800`,
      `sentinel failover-timeout ${NAME} 1500`,
    ],
  });
}

/** The server that is the master according to the sentinels. */
class Watched {
  readonly #data: readonly WiredRedis[];
  readonly #sentinels: readonly RedisServer[];

  constructor(data: readonly WiredRedis[], sentinels: readonly RedisServer[]) {
    this.#data = data;
    this.#sentinels = sentinels;
  }

  async master(): Promise<WiredRedis> {
    return this.#at(await this.#masterPort());
  }

  async replica(): Promise<WiredRedis> {
    const master = await this.master();
    const other = this.#data.find((node) => node !== master);
    if (!other) throw new Error('there is no replica');
    return other;
  }

  /** Resolves when another server is the master. */
  async failedOverFrom(old: WiredRedis): Promise<void> {
    const hasNewMaster = async () =>
      (await this.#masterPort()) !== old.wire.port && (await roleOf(await this.master())) === 'master';
    await until(() => hasNewMaster().catch(() => false), FAILOVER_WITHIN_MS);
  }

  /** Resolves when all sentinels agree, and the replica follows. */
  async ready(): Promise<void> {
    await until(() => this.#isReady().catch(() => false), FAILOVER_WITHIN_MS);
  }

  async #isReady(): Promise<boolean> {
    const ports = await Promise.all(this.#sentinels.map(masterPortOf));
    const known = await Promise.all(
      this.#sentinels.map(async ({ admin }) => String(await admin.call('SENTINEL', 'MASTER', NAME))),
    );
    const master = await this.master();
    const replication = await master.server.admin.info('replication');
    return (
      new Set(ports).size === 1 &&
      known.every((text) => text.includes('num-slaves,1,num-other-sentinels,2')) &&
      replication.includes('state=online')
    );
  }

  async #masterPort(): Promise<number> {
    const [sentinel] = this.#sentinels;
    if (!sentinel) throw new Error('there are no sentinels');
    return await masterPortOf(sentinel);
  }

  #at(port: number): WiredRedis {
    const node = this.#data.find(({ wire }) => wire.port === port);
    if (!node) throw new Error(`no server is at ${port}`);
    return node;
  }
}

async function masterPortOf({ admin }: RedisServer): Promise<number> {
  const [, port] = (await admin.call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', NAME)) as [string, string];
  return Number(port);
}

async function roleOf({ server }: WiredRedis): Promise<string> {
  const [role] = (await server.admin.call('ROLE')) as [string];
  return role;
}

function faultsOf(watched: Watched): StoreFault[] {
  let struck: WiredRedis | undefined;
  const target = () => {
    if (!struck) throw new Error('no server was hit');
    return struck;
  };
  /** Starts the old master as a replica of the new one, as operators would. */
  const rejoin = async () => {
    const master = await watched.master();
    await target().server.restart(['--replicaof', '127.0.0.1', String(master.wire.port)]);
    await watched.ready();
  };
  const kill = async () => {
    await target().server.kill();
    await watched.failedOverFrom(target());
  };
  return [
    {
      name: 'master killed, failover',
      inject: async () => {
        struck = await watched.master();
        await kill();
      },
      heal: rejoin,
    },
    {
      name: 'failover with writes that no replica has',
      inject: async () => {
        struck = await watched.master();
        target().wire.swallowReplication(true);
        // Long enough for payouts, short enough that the sentinels do not consider the replica lost.
        await new Promise((resolve) => setTimeout(resolve, 700));
        await kill();
      },
      heal: async () => {
        target().wire.swallowReplication(false);
        await rejoin();
      },
    },
    {
      name: 'master frozen, failover',
      inject: async () => {
        struck = await watched.master();
        target().server.freeze();
        await watched.failedOverFrom(target());
      },
      // It continues as a master with connected clients, until the sentinels make it a replica.
      heal: async () => {
        target().server.thaw();
        await watched.ready();
      },
    },
    {
      name: 'replica killed',
      inject: async () => {
        struck = await watched.replica();
        await target().server.kill();
      },
      heal: rejoin,
    },
    {
      name: 'replies of master lost',
      inject: async () => {
        struck = await watched.master();
        target().wire.swallowReplies(true);
      },
      // The sentinels may have considered it down and be about to promote the other server. Wait until that is over.
      heal: async () => {
        target().wire.swallowReplies(false);
        await new Promise((resolve) => setTimeout(resolve, FAILOVER_DECIDED_AFTER_MS));
        await watched.ready();
      },
    },
    lateRequests(async () => (await watched.master()).wire, 'master'),
  ];
}
