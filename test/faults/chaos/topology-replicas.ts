import { setTimeout as sleep } from 'node:timers/promises';
import { TcpProxy } from '../../support/breakable-wire.ts';
import { launchRedis, type RedisServer } from '../../support/redis-process.ts';
import { until } from '../../support/until.ts';
import { GATEWAYS } from './gateway-config.ts';
import type { StoreFault, Topology } from './topology.ts';

/** Long enough for payouts. */
const APART_MS = 700;
const READY_WITHIN_MS = 30_000;

/** A server, and the proxy through which it reaches the server that it follows. */
interface Member {
  server: RedisServer;
  wire: TcpProxy;
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
  const [master, ...others] = await Promise.all(Array.from({ length: 4 }, startMember));
  const wires = await Promise.all(Array.from({ length: GATEWAYS }, startWire));
  if (!master) throw new Error('servers are missing');
  const group = new Group(master, others, wires);
  group.lead();
  await group.mend(others);
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
      await Promise.all([...wires, ...group.members.map(({ wire }) => wire)].map((wire) => wire.close()));
      await Promise.all(group.members.map(({ server }) => server.stop()));
    },
  };
}

async function startWire(): Promise<TcpProxy> {
  const wire = new TcpProxy(0);
  await wire.listen();
  return wire;
}

async function startMember(): Promise<Member> {
  const args = ['--repl-diskless-sync-delay', '0', '--repl-ping-replica-period', '1'];
  return { wire: await startWire(), server: await launchRedis({ args }) };
}

/** Who follows whom. */
class Group {
  readonly members: readonly Member[];
  readonly wires: readonly TcpProxy[];
  master: Member;

  constructor(master: Member, others: readonly Member[], wires: readonly TcpProxy[]) {
    this.members = [master, ...others];
    this.wires = wires;
    this.master = master;
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
    await until(() => this.#isWhole().catch(() => false), READY_WITHIN_MS);
  }

  async #isWhole(): Promise<boolean> {
    const infos = await Promise.all(
      this.members.map(async (member) => [member, await member.server.admin.info('replication')] as const),
    );
    return infos.every(([member, info]) =>
      member === this.master
        ? info.match(/state=online/g)?.length === 2
        : info.includes('master_link_status:up'),
    );
  }
}

/** The master is killed, and the replicas are promoted in turn. */
function failovers(group: Group): StoreFault[] {
  let killed = group.master;
  let turn = 0;
  const fault = (name: string, before: (promoted: Member) => Promise<void>): StoreFault => ({
    name,
    inject: async () => {
      killed = group.master;
      const promoted = group.replicas[turn++ % 2] as Member;
      await before(promoted);
      await killed.server.kill();
      const other = group.followersOf(killed).find((member) => member !== promoted);
      await group.promote(promoted);
      if (other) await group.follow(other, promoted);
      group.lead();
    },
    heal: async () => {
      await killed.server.restart();
      await group.mend([killed]);
    },
  });
  return [
    fault('master killed, failover', async () => {}),
    fault('failover with writes that only the other replica has', async ({ wire }) => {
      wire.swallowReplication(true);
      await sleep(APART_MS);
    }),
  ];
}

function frozenReplica(group: Group): StoreFault {
  let frozen: Member | undefined;
  let turn = 0;
  return {
    name: 'replica frozen',
    inject: async () => {
      frozen = group.replicas[turn++ % 2];
      frozen?.server.freeze();
    },
    heal: async () => {
      frozen?.server.thaw();
      await group.mend();
    },
  };
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
