import { setTimeout as sleep } from 'node:timers/promises';
import { TcpProxy } from '../../support/breakable-wire.ts';
import { until } from '../../support/until.ts';
import { GATEWAYS } from './gateway-config.ts';
import type { StoreFault, Topology } from './topology.ts';
import { FAST_REPLICATION, faultOf, startWired, stopWired, type WiredRedis } from './topology-redis.ts';

/** Long enough for payouts. */
const APART_MS = 700;
const READY_WITHIN_MS = 30_000;

/** A server, and the proxy through which it reaches the server that it follows. */
interface Member extends WiredRedis {
  /** Undefined: it is the master. */
  follows?: Member | undefined;
}

/**
 * A master with two replicas, and a spare that follows one of them. The suite promotes replicas itself, in place of sentinels, so
 * that it can choose which one, and when. Each gateway has its own proxy to the master, which a promotion aims at another server.
 *
 * @param replicas how many replicas writes wait for
 */
export async function startReplicas(replicas: number): Promise<Topology> {
  const members = await Promise.all([1, 2, 3, 4].map(() => startWired(() => FAST_REPLICATION)));
  const wires = Array.from({ length: GATEWAYS }, () => new TcpProxy(0));
  for (const wire of wires) await wire.listen();
  const group = new Group(members, wires);
  group.lead();
  await group.mend(members);
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
      await stopWired(members);
    },
  };
}

/** Who follows whom. */
class Group {
  readonly members: readonly Member[];
  readonly wires: readonly TcpProxy[];
  master: Member;

  constructor(members: readonly Member[], wires: readonly TcpProxy[]) {
    this.members = members;
    this.wires = wires;
    this.master = members[0] as Member;
  }

  followersOf(member: Member): Member[] {
    return this.members.filter(({ follows }) => follows === member);
  }

  /** The two replicas, first the one that the spare follows. */
  get replicas(): [followed: Member, other: Member] {
    const [first, second] = this.followersOf(this.master);
    if (!first || !second) throw new Error('the master has too few replicas');
    return this.followersOf(first).length > 0 ? [first, second] : [second, first];
  }

  async follow(member: Member, followed: Member): Promise<void> {
    member.follows = followed;
    member.wire.aimAt(followed.server.port);
    member.wire.cut();
    await member.server.admin.call('REPLICAOF', '127.0.0.1', member.wire.port);
  }

  /** Its former master is no longer part of the group, until {@link mend}. */
  async promote(member: Member): Promise<void> {
    await member.server.admin.call('REPLICAOF', 'NO', 'ONE');
    this.master.follows = undefined;
    member.follows = undefined;
    this.master = member;
  }

  /** These gateways find the master. */
  lead(wires = this.wires): void {
    for (const wire of wires) {
      wire.aimAt(this.master.server.port);
      wire.refuse(false);
      wire.cut();
    }
  }

  /**
   * Connects everything again. These servers join in this order: gateways refuse to start keys when a master has more replicas
   * than they wait for, so a third one becomes the spare. Resolves when each has what the master has.
   */
  async mend(joining: readonly Member[] = []): Promise<void> {
    for (const { wire } of this.members) {
      wire.refuse(false);
      wire.swallowReplication(false);
    }
    for (const member of joining.filter((one) => one !== this.master)) {
      const [first, second] = this.followersOf(this.master);
      await this.follow(member, first && second ? first : this.master);
    }
    const isReady = async (member: Member) => {
      const info = await member.server.admin.info('replication');
      if (member !== this.master) return info.includes('master_link_status:up');
      return info.match(/state=online/g)?.length === 2;
    };
    const isWhole = async () => (await Promise.all(this.members.map(isReady))).every(Boolean);
    await until(() => isWhole().catch(() => false), READY_WITHIN_MS);
  }
}

/** The master is killed, and the replicas are promoted in turn. */
function failovers(group: Group): StoreFault[] {
  let turn = 0;
  const fault = (name: string, before: (promoted: Member) => unknown): StoreFault =>
    faultOf(name, () => group.master, {
      inject: async (killed) => {
        const promoted = group.replicas[turn++ % 2] as Member;
        await before(promoted);
        await killed.server.kill();
        const other = group.followersOf(killed).find((member) => member !== promoted);
        await group.promote(promoted);
        if (other) await group.follow(other, promoted);
        group.lead();
      },
      heal: async (killed) => {
        await killed.server.restart();
        await group.mend([killed]);
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
  return faultOf('replica frozen', () => group.replicas[turn++ % 2] as Member, {
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
  let joining: Member[] = [];
  let left = 0;
  return {
    name: 'network parted, failover on one side',
    inject: async () => {
      joining = [];
      const { master, wires } = group;
      const [promoted, other] = group.replicas;
      left = (left + 1) % wires.length;
      const gateways = wires.filter((_, gateway) => gateway !== left);
      for (const wire of [promoted.wire, ...gateways]) {
        wire.refuse(true);
        wire.cut();
      }
      await sleep(APART_MS);
      await group.promote(promoted);
      joining = [other, master];
      group.lead(gateways);
    },
    heal: async () => {
      group.lead(group.wires.slice(left, left + 1));
      await group.mend(joining);
    },
  };
}
