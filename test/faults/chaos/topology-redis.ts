import { setTimeout as sleep } from 'node:timers/promises';
import { TcpProxy } from '../../support/breakable-wire.ts';
import { launchRedis, type RedisServer } from '../../support/redis-process.ts';
import type { StoreFault, Topology } from './topology.ts';

/** A redis-server behind a proxy that can break connections. */
export interface WiredRedis {
  server: RedisServer;
  wire: TcpProxy;
}

/** A replica begins to follow at once. */
export const FAST_REPLICATION = ['--repl-diskless-sync-delay', '0', '--repl-ping-replica-period', '1'];

/** @param argsFor more arguments, which may need the proxy's port */
export async function startWired(
  argsFor: (wirePort: number) => string[] = () => [],
  appendonly = true,
): Promise<WiredRedis> {
  const wire = new TcpProxy(0);
  await wire.listen();
  const server = await launchRedis({ appendonly, args: argsFor(wire.port) });
  wire.aimAt(server.port);
  return { server, wire };
}

export async function stopWired(nodes: readonly WiredRedis[]): Promise<void> {
  await Promise.all(nodes.map(({ wire }) => wire.close()));
  await Promise.all(nodes.map(({ server }) => server.stop()));
}

/** A fault of what is in a place when the fault is injected. */
export function faultOf<T>(
  name: string,
  find: () => T | Promise<T>,
  { inject, heal, ...more }: { inject(found: T): unknown; heal(found: T): unknown; holdMs?: number },
): StoreFault {
  let struck: { found: T } | undefined;
  return {
    ...{ name, ...more },
    inject: async () => {
      struck = undefined;
      struck = { found: await find() };
      await inject(struck.found);
    },
    heal: () => struck && heal(struck.found),
  };
}

/** Shorter than a gateway's store timeout, so that its commands in flight fail because of the reset. */
const GATHERED_MS = 200;

/**
 * Holds commands in flight back while their clients' connections are reset, and delivers them a second and a half later, so
 * that starts arrive after their own releases.
 */
export function lateRequests(wireOf: () => TcpProxy | Promise<TcpProxy>, of = 'redis'): StoreFault {
  return faultOf(`requests to ${of} delayed past a reset`, wireOf, {
    inject: async (wire) => {
      wire.holdRequests();
      await sleep(GATHERED_MS);
      wire.strandHeld();
    },
    heal: (wire) => wire.deliverHeld(),
    holdMs: 1500,
  });
}

/** Faults of one server; a cluster has them for each of its nodes. */
export function faultsOf({ server, wire }: WiredRedis, of = 'redis'): StoreFault[] {
  return [
    { name: `${of} killed`, inject: () => server.kill(), heal: () => server.restart() },
    { name: `${of} frozen`, inject: () => server.freeze(), heal: () => server.thaw() },
    {
      name: `${of} cut off`,
      inject: () => {
        wire.refuse(true);
        wire.cut();
      },
      heal: () => wire.refuse(false),
    },
    {
      name: `replies of ${of} delayed`,
      inject: () => wire.delayReplies(150),
      heal: () => wire.delayReplies(0),
      completesOn: true,
    },
    {
      name: `replies of ${of} lost`,
      inject: () => wire.swallowReplies(true),
      heal: () => wire.swallowReplies(false),
    },
  ];
}

/** One server. `durable`: it writes each change to the disk before it answers. */
export async function startSingle(durable: boolean): Promise<Topology> {
  const node = await startWired(undefined, durable);
  return {
    config: {
      store: { kind: 'redis', url: node.wire.url, durability: { mayLoseOnFailover: !durable } },
    },
    faults: [...faultsOf(node), lateRequests(() => node.wire)],
    stop: () => stopWired([node]),
  };
}

/** One server for the records, three independent ones for the leases. */
export async function startQuorum(): Promise<Topology> {
  const store = await startWired();
  const locks = await Promise.all([1, 2, 3].map(() => startWired(undefined, false)));
  const [first, second] = locks as [WiredRedis, WiredRedis];
  const ofLocks: StoreFault[] = [
    ...faultsOf(first, 'lock node'),
    {
      name: 'two lock nodes killed',
      inject: () => Promise.all([first.server.kill(), second.server.kill()]),
      heal: () => Promise.all([first.server.restart(), second.server.restart()]),
    },
  ];
  return {
    config: {
      store: { kind: 'redis', url: store.wire.url },
      lock: { nodes: locks.map(({ wire }) => wire.url) },
    },
    faults: [
      ...faultsOf(store),
      lateRequests(() => store.wire),
      ...ofLocks.map((fault) => ({ ...fault, completesOn: true as const })),
    ],
    stop: () => stopWired([store, ...locks]),
  };
}
