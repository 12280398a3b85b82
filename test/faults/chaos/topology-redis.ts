import { setTimeout as sleep } from 'node:timers/promises';
import { TcpProxy } from '../../support/breakable-wire.ts';
import { launchRedis, type RedisServer, type RedisServerOptions } from '../../support/redis-process.ts';
import type { StoreFault, Topology } from './topology.ts';

/** A redis-server behind a proxy that can break connections. */
export interface WiredRedis {
  server: RedisServer;
  wire: TcpProxy;
}

/** @param argsFor more arguments, which may need the proxy's port */
export async function startWired(
  options: RedisServerOptions = {},
  argsFor: (wirePort: number) => string[] = () => [],
): Promise<WiredRedis> {
  const wire = new TcpProxy(0);
  await wire.listen();
  const args = [...argsFor(wire.port), ...(options.args ?? [])];
  const server = await launchRedis({ ...options, args });
  wire.aimAt(server.port);
  return { server, wire };
}

export async function stopWired(nodes: readonly WiredRedis[]): Promise<void> {
  await Promise.all(nodes.map(({ wire }) => wire.close()));
  await Promise.all(nodes.map(({ server }) => server.stop()));
}

/** Shorter than a gateway's store timeout, so that its commands in flight fail because of the reset. */
const GATHERED_MS = 200;

/**
 * Holds commands in flight back while their clients' connections are reset, and delivers them a second and a half later, so
 * that starts arrive after their own releases.
 */
export function lateRequests(wireOf: () => Promise<TcpProxy>, of = 'redis'): StoreFault {
  let wire: TcpProxy | undefined;
  return {
    name: `requests to ${of} delayed past a reset`,
    inject: async () => {
      wire = await wireOf();
      wire.holdRequests();
      await sleep(GATHERED_MS);
      wire.strandHeld();
    },
    heal: async () => void wire?.deliverHeld(),
    holdMs: 1500,
  };
}

/** Faults of one server; a cluster has them for each of its nodes. */
export function faultsOf({ server, wire }: WiredRedis, of = 'redis'): StoreFault[] {
  return [
    { name: `${of} killed`, inject: () => server.kill(), heal: () => server.restart() },
    { name: `${of} frozen`, inject: async () => server.freeze(), heal: async () => server.thaw() },
    ...wireFaultsOf(wire, of),
  ];
}

function wireFaultsOf(wire: TcpProxy, of: string): StoreFault[] {
  return [
    {
      name: `${of} cut off`,
      inject: async () => {
        wire.refuse(true);
        wire.cut();
      },
      heal: async () => wire.refuse(false),
    },
    {
      name: `replies of ${of} delayed`,
      inject: async () => wire.delayReplies(150),
      heal: async () => wire.delayReplies(0),
      completesOn: true,
    },
    {
      name: `replies of ${of} lost`,
      inject: async () => wire.swallowReplies(true),
      heal: async () => wire.swallowReplies(false),
    },
  ];
}

/** One server. `durable`: it writes each change to the disk before it answers. */
export async function startSingle(durable: boolean): Promise<Topology> {
  const node = await startWired({ appendonly: durable });
  return {
    config: {
      store: { kind: 'redis', url: node.wire.url, durability: { mayLoseOnFailover: !durable } },
    },
    faults: [...faultsOf(node), lateRequests(async () => node.wire)],
    stop: () => stopWired([node]),
  };
}

/** One server for the records, three independent ones for the leases. */
export async function startQuorum(): Promise<Topology> {
  const [store, ...locks] = await Promise.all([
    startWired(),
    ...Array.from({ length: 3 }, () => startWired({ appendonly: false })),
  ]);
  const [first, second] = locks;
  if (!store || !first || !second) throw new Error('servers are missing');
  return {
    config: {
      store: { kind: 'redis', url: store.wire.url },
      lock: { nodes: locks.map(({ wire }) => wire.url) },
    },
    faults: [
      ...faultsOf(store),
      lateRequests(async () => store.wire),
      ...faultsOf(first, 'lock node').map((fault) => ({ ...fault, completesOn: true as const })),
      {
        name: 'two lock nodes killed',
        inject: async () => {
          await Promise.all([first.server.kill(), second.server.kill()]);
        },
        heal: async () => {
          await Promise.all([first.server.restart(), second.server.restart()]);
        },
        completesOn: true,
      },
    ],
    stop: () => stopWired([store, ...locks]),
  };
}
