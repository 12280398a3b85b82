import { setTimeout as sleep } from 'node:timers/promises';
import { TcpProxy } from '../../support/breakable-wire.ts';
import { until } from '../../support/until.ts';
import { GATEWAYS } from './gateway-config.ts';
import type { StoreFault, Topology } from './topology.ts';
import { FAST_REPLICATION, faultOf, startWired, stopWired, type WiredRedis } from './topology-redis.ts';

/** Long enough for payouts. */
const APART_MS = 700;
const READY_WITHIN_MS = 30_000;

/** Gateways refuse to start keys when a master has more replicas than they wait for, so the spare follows the first replica. */
type Roles = [master: WiredRedis, first: WiredRedis, second: WiredRedis, spare: WiredRedis];

/**
 * A master with two replicas, and a spare that follows one of them. The suite promotes replicas itself, in place of sentinels, so
 * that it can choose which one, and when. Each gateway has its own proxy to the master, which a promotion aims at another server.
 *
 * @param replicas how many replicas writes wait for
 */
export async function startReplicas(replicas: number): Promise<Topology> {
  const servers = (await Promise.all([1, 2, 3, 4].map(() => startWired(() => FAST_REPLICATION)))) as Roles;
  const wires = Array.from({ length: GATEWAYS }, () => new TcpProxy(0));
  for (const wire of wires) await wire.listen();
  const group = new Group(servers, wires);
  group.lead();
  await group.mend();
  const configFor = (gateway: number): Topology['config'] => ({
    store: {
      kind: 'redis',
      url: wires[gateway]?.url,
      durability: { replicas, mayLoseOnFailover: replicas < 2 },
    },
  });
  return {
    config: configFor(0),
    configFor,
    faults: [...failovers(group), frozenReplica(group), parting(group)],
    stop: async () => {
      for (const wire of wires) await wire.close();
      await stopWired(servers);
    },
  };
}

/** Who follows whom. A server reaches the one that it follows through its own proxy. */
class Group {
  readonly wires: readonly TcpProxy[];
  roles: Roles;

  constructor(roles: Roles, wires: readonly TcpProxy[]) {
    this.roles = roles;
    this.wires = wires;
  }

  async follow({ wire, server }: WiredRedis, followed: WiredRedis): Promise<void> {
    wire.aimAt(followed.server.port);
    wire.refuse(false);
    wire.swallowReplication(false);
    wire.cut();
    // It refuses while it loads what it got before.
    const follows = () => server.admin.call('REPLICAOF', '127.0.0.1', wire.port).catch(() => false);
    await until(follows, READY_WITHIN_MS);
  }

  /** Makes the first one the master. The others have their new roles from {@link mend} on. */
  async promote(...roles: Roles): Promise<void> {
    await roles[0].server.admin.call('REPLICAOF', 'NO', 'ONE');
    this.roles = roles;
  }

  /** Leads these gateways to the current master. */
  lead(wires = this.wires): void {
    for (const wire of wires) {
      wire.aimAt(this.roles[0].server.port);
      wire.refuse(false);
      wire.cut();
    }
  }

  /** Connects everything again. Resolves when each server has what the master has. */
  async mend(): Promise<void> {
    const [master, first, second, spare] = this.roles;
    await this.follow(first, master);
    await this.follow(second, master);
    await this.follow(spare, first);
    const isReady = async (node: WiredRedis) => {
      const info = await node.server.admin.info('replication');
      if (node !== master) return info.includes('master_link_status:up');
      return info.match(/state=online/g)?.length === 2;
    };
    const isWhole = async () => (await Promise.all(this.roles.map(isReady))).every(Boolean);
    await until(() => isWhole().catch(() => false), READY_WITHIN_MS);
  }
}

/** The master is killed, and the replicas are promoted in turn. */
function failovers(group: Group): StoreFault[] {
  let turn = 0;
  const fault = (name: string, before: (promoted: WiredRedis) => unknown): StoreFault =>
    faultOf(name, () => group.roles, {
      inject: async ([master, first, second, spare]) => {
        const [promoted, other] = turn++ % 2 === 0 ? [first, second] : [second, first];
        await before(promoted);
        await master.server.kill();
        await group.promote(promoted, other, spare, master);
        await group.follow(other, promoted);
        group.lead();
      },
      heal: async ([killed]) => {
        await killed.server.restart();
        await group.mend();
      },
    });
  return [
    fault('master killed, failover', () => {}),
    fault('failover with writes that only the other replica has', async ({ wire }) => {
      wire.swallowReplication(true);
      await sleep(APART_MS);
    }),
  ];
}

function frozenReplica(group: Group): StoreFault {
  let turn = 0;
  return faultOf('replica frozen', () => group.roles[turn++ % 2 === 0 ? 1 : 2], {
    inject: ({ server }) => server.freeze(),
    heal: async ({ server }) => {
      server.thaw();
      await group.mend();
    },
  });
}

/**
 * The master, a replica and a gateway are on one side. On the other side are the other replica, the spare and the other gateways,
 * and the replica is promoted there. So there are two masters until the fault is healed.
 */
function parting(group: Group): StoreFault {
  let left = 0;
  return faultOf('network parted, failover on one side', () => group.roles, {
    inject: async ([master, promoted, other, spare]) => {
      left = (left + 1) % GATEWAYS;
      const gateways = group.wires.filter((_, gateway) => gateway !== left);
      for (const wire of [promoted.wire, ...gateways]) {
        wire.refuse(true);
        wire.cut();
      }
      await sleep(APART_MS);
      await group.promote(promoted, spare, other, master);
      group.lead(gateways);
    },
    heal: async () => {
      group.lead();
      await group.mend();
    },
  });
}
