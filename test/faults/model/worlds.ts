import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterAll } from 'vitest';
import type { Clock } from '../../../src/lib/clock.ts';
import type { Store } from '../../../src/store/contract.ts';
import { databaseOf, openStore, type SqlitePlace } from '../../support/open-store.ts';
import { startRedis } from '../../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../../support/requests.ts';

/**
 * Time advances in multiples of this. Every limit, including the hour of void tokens, is more than 7 s away from every
 * multiple, so that the real duration of a run has no effect.
 */
export const STEP_MS = 22_000;
/** As in production, the retention is far longer than a lease, and records that were in doubt are kept far longer than that. */
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
  /** Resolves when the commands that a node sends after its answers, such as releasing a lease, are done too. */
  quiet(): Promise<void>;
}

export interface Universe {
  readonly name: string;
  /** Empties the store for one run. */
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
    database.exec(
      'DELETE FROM records; DELETE FROM voided_tokens; DELETE FROM audit; DELETE FROM resolutions',
    );
    return world;
  };
  return { name: 'sqlite', open };
}

/**
 * Commands and scripts in Redis observe time only through each key's time to live. Reducing every time to live by `ms` in one
 * atomic step, and removing keys that have none left, therefore looks to them exactly as if `ms` had passed. (The expiry that
 * redlock computes itself never makes it hold a lock longer.)
 */
const PASS = `for _, key in ipairs(redis.call('KEYS', '*')) do
  local ttl = redis.call('PTTL', key)
  local left = ttl - tonumber(ARGV[1])
  -- The index of open records and the numbers of resolutions do not expire.
  if ttl == -1 then left = nil end
  if not left then
  elseif left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
end`;

export async function redis(): Promise<Universe> {
  // Nothing has to survive a restart, so persistence is off.
  const server = await startRedis({ appendonly: false });
  const place = { kind: 'redis', url: server.url, prefix: 'model' } as const;
  const nodes = await Promise.all(Array.from({ length: NODES }, () => openStore(place, TIMES)));
  await Promise.all(nodes.map(teachScripts));
  const world: World = {
    nodes,
    pass: async (ms) => void (await server.admin.eval(PASS, 0, ms)),
    quiet: async () => {
      // By the next turn of the event loop the command was sent, and Redis executes the commands of a connection in order.
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

/** Loads the scripts first: a script that the server does not know is sent twice, and so out of order. */
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
