import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Store } from '../../../src/idempotency/store.ts';
import type { Clock } from '../../../src/kernel/clock.ts';
import { openStore } from '../../support/open-store.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { newRequest, paid } from '../../support/requests.ts';
import type { Freedoms } from './reference.ts';

/** Retention is far longer than a lease, as it is in use; real time within a run is nothing beside either. */
export const TIMES = { leaseMs: 50_000, retentionMs: 1_010_000, timeoutMs: 10_000 };
const NODES = 3;

/** A real store with several nodes on it, whose time passes when it is told to. */
export interface World {
  readonly nodes: readonly Store[];
  readonly freedoms: Freedoms;
  pass(ms: number): Promise<void>;
  /** Resolves when what a node sends behind its answers, as giving a lease back, has been done too. */
  quiet(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface Universe {
  readonly name: string;
  /** Empty, for one run. */
  open(): Promise<World>;
}

/** LMDB takes its time from the injected clock, and from nothing else. */
export const lmdb: Universe = {
  name: 'lmdb',
  async open() {
    const path = mkdtempSync(join(tmpdir(), 'model-'));
    let passedMs = 1_000_000;
    const clock: Clock = { monotonicMs: () => passedMs, wallMs: () => 1_700_000_000_000 + passedMs };
    const open = () => openStore({ kind: 'lmdb', path }, TIMES, clock);
    const nodes = await Promise.all(Array.from({ length: NODES }, open));
    return {
      nodes,
      freedoms: { knowsOwnClaim: false },
      pass: async (ms) => {
        passedMs += ms;
      },
      quiet: async () => {},
      [Symbol.asyncDispose]: async () => {
        await Promise.all(nodes.map((node) => node.close()));
        rmSync(path, { recursive: true, force: true });
      },
    };
  },
};

/**
 * Redis ages by what is left of each key's time to live. All that its commands and our scripts can see of time is PTTL and
 * whether a key is still there; so taking `ms` off every time to live in one atomic step, and removing what has none left,
 * is to them exactly that `ms` have passed. (redlock's own idea of when a lock ends never makes it hold one longer.)
 */
const PASS = `for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key) - tonumber(ARGV[1])
  if left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
end`;

export async function redis(): Promise<Universe> {
  // Nothing here survives a restart, so nothing need be on the disk.
  const server = await startRedis({ appendonly: false });
  const place = { kind: 'redis', url: server.url, prefix: 'model' } as const;
  const nodes = await Promise.all(Array.from({ length: NODES }, () => openStore(place, TIMES)));
  await Promise.all(nodes.map(teachScripts));
  return { name: 'redis', open: async () => await emptied(server, nodes) };
}

async function emptied({ admin }: RedisServer, nodes: readonly Store[]): Promise<World> {
  await admin.flushall();
  return {
    nodes,
    freedoms: { knowsOwnClaim: true },
    pass: async (ms) => void (await admin.eval(PASS, 0, ms)),
    quiet: async () => {
      // By the next turn it is on the wire; a connection's commands are executed in their order.
      await nextTurn();
      await Promise.all(nodes.map((node) => node.get(newRequest().scope)));
    },
    [Symbol.asyncDispose]: async () => {},
  };
}

/** A script that the server does not know yet is sent twice, out of its order. */
async function teachScripts(node: Store): Promise<void> {
  const owner = newRequest();
  await node.claim(owner);
  await node.begin(owner);
  await node.renew(owner);
  await node.settle(owner, paid());
}
