import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterAll } from 'vitest';
import type { Store } from '../../../src/idempotency/store.ts';
import type { Clock } from '../../../src/kernel/clock.ts';
import { databaseOf, openStore, type SqlitePlace } from '../../support/open-store.ts';
import { startRedis } from '../../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../../support/requests.ts';

/**
 * Time passes in multiples of this. Every limit, an hour for void tokens included, is more than 7 s away from every
 * multiple, so that the real time of a run decides nothing.
 */
export const STEP_MS = 22_000;
/** As in use, a retention is far longer than a lease, and what was in doubt is kept far longer than that. */
export const TIMES = {
  leaseMs: 2.5 * STEP_MS,
  retentionMs: 50.5 * STEP_MS,
  inDoubtRetentionMs: 227.5 * STEP_MS,
  timeoutMs: 10_000,
};
const NODES = 3;

/** A real store with several nodes on it, whose time passes only when `pass` is called. */
export interface World {
  readonly nodes: readonly Store[];
  pass(ms: number): Promise<void>;
  /** Resolves when what a node sends after its answers, such as giving a lease back, has been done too. */
  quiet(): Promise<void>;
}

export interface Universe {
  readonly name: string;
  /** Empty, for one run. */
  open(): Promise<World>;
}

/** SQLite takes its time from the injected clock only. */
export async function sqlite(): Promise<Universe> {
  const place: SqlitePlace = { kind: 'sqlite', path: mkdtempSync(join(tmpdir(), 'model-')) };
  let passedMs = 1_000_000;
  const clock: Clock = { monotonicMs: () => passedMs, wallMs: () => 1_700_000_000_000 + passedMs };
  const nodes: Store[] = [];
  for (let node = 0; node < NODES; node++) nodes.push(await openStore(place, TIMES, clock));
  afterAll(async () => {
    await Promise.all(nodes.map((node) => node.close()));
    rmSync(place.path, { recursive: true, force: true });
  });
  const world: World = {
    nodes,
    pass: async (ms) => {
      passedMs += ms;
    },
    quiet: async () => {},
  };
  const open = async () => {
    using database = new DatabaseSync(databaseOf(place), { timeout: TIMES.timeoutMs });
    database.exec('DELETE FROM records; DELETE FROM voided_tokens; DELETE FROM audit');
    return world;
  };
  return { name: 'sqlite', open };
}

/**
 * Redis ages by what is left of each key's time to live. Its commands and our scripts see nothing else of time; so taking
 * `ms` off every time to live in one atomic step, and removing keys that have none left, is to them exactly that `ms` have
 * passed. (redlock's own idea of when a lock ends never makes it hold one longer.)
 */
const PASS = `for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key) - tonumber(ARGV[1])
  if left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
end`;

export async function redis(): Promise<Universe> {
  // Nothing here has to survive a restart, so nothing is written to the disk.
  const server = await startRedis({ appendonly: false });
  const place = { kind: 'redis', url: server.url, prefix: 'model' } as const;
  const nodes = await Promise.all(Array.from({ length: NODES }, () => openStore(place, TIMES)));
  await Promise.all(nodes.map(teachScripts));
  const world: World = {
    nodes,
    pass: async (ms) => void (await server.admin.eval(PASS, 0, ms)),
    quiet: async () => {
      // By the next turn it is on the wire; a connection's commands are executed in their order.
      await nextTurn();
      await Promise.all(nodes.map((node) => node.get(newRequest().scope)));
    },
  };
  const open = async () => {
    await server.admin.flushall();
    return world;
  };
  return { name: 'redis', open };
}

/** A script that the server does not know yet is sent twice, out of its order. */
async function teachScripts(node: Store): Promise<void> {
  const owner = newRequest();
  const heir = duplicateOf(owner);
  await node.start(owner);
  await node.peek(owner);
  await node.renew(owner);
  await node.markInDoubt(owner);
  await node.restart(heir);
  await node.complete(heir, paid());
  const resolved = newRequest();
  await node.start(resolved);
  await node.markInDoubt(resolved);
  await node.resolve(resolved.scope, resolved.token, { as: 'released' }, { by: 'ada', reason: 'a' });
  await node.release(resolved);
}
