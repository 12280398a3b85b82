import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, expect } from 'vitest';
import type { RecordId } from '../../src/lib/brands.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { PostgresCopyRegister } from '../../src/store/postgres/copy-register.ts';
import { PostgresRegister } from '../../src/store/postgres/register.ts';
import { Names } from '../../src/store/redis/commands.ts';
import { RedisCopyRegister } from '../../src/store/redis/copy-register.ts';
import { RedisRegister } from '../../src/store/redis/register.ts';
import type { Closed, CopyRegister, Register } from '../../src/store/register.ts';
import { ApplicationRegister } from '../../src/store/sqlite/application-register.ts';
import { SqliteCopyRegister } from '../../src/store/sqlite/copy-register.ts';
import { SqliteRegister } from '../../src/store/sqlite/sqlite-register.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import { startPostgres } from '../support/postgres-server.ts';
import { startRedis } from '../support/redis-server.ts';

/**
 * Time passes in multiples of this. Every limit, the hour of a void token included, is more than 7 s away from every multiple,
 * so that the real duration of a test has no effect.
 */
export const STEP_MS = 22_000;
/** How far two registers may be apart in what is left of a lifetime. */
export const EXACT_MS = 7_000;

/** A store with two registers on it, as two gateways have them. Its time passes only when `pass` is called. */
export interface Place {
  readonly name: string;
  readonly nodes: readonly [Register, Register];
  pass(ms: number): Promise<void>;
  /** Empties the store. */
  reset(): Promise<void>;
  /** What is there is no record of this format any more. Its revision can still be read. */
  damage(id: RecordId): Promise<void>;
  closeTo(closed: Closed): Promise<void>;
}

/** The register of tests, which the others are compared with. */
export function memory(Kind = MemoryRegister): Place {
  let nowMs = 1_000_000;
  const open = () => new Kind(() => nowMs);
  let register = open();
  return {
    name: 'memory',
    get nodes() {
      return [register, register] as const;
    },
    pass: async (ms) => {
      nowMs += ms;
    },
    reset: async () => {
      register = open();
    },
    damage: async (id) => register.damage(id),
    closeTo: (closed) => closeTo(register, closed),
  };
}

/** SQLite takes its time from the injected clock only. */
export async function sqlite(): Promise<Place> {
  const path = mkdtempSync(join(tmpdir(), 'registers-'));
  let passedMs = 1_000_000;
  const clock = { ...systemClock, monotonicMs: () => passedMs, wallMs: () => 1_700_000_000_000 + passedMs };
  const options = { path, clock, timeoutMs: 10_000 };
  const nodes = [await SqliteRegister.open(options), await SqliteRegister.open(options)] as const;
  const copy = await SqliteCopyRegister.open(options);
  const change = (sql: string, ...values: string[]) => {
    using database = new DatabaseSync(join(path, 'records.db'), { timeout: 10_000 });
    database.prepare(sql).run(...values);
  };
  afterAll(async () => {
    await Promise.all([copy, ...nodes].map((node) => node.close()));
    rmSync(path, { recursive: true, force: true });
  });
  return {
    name: 'sqlite',
    nodes,
    pass: async (ms) => {
      passedMs += ms;
    },
    reset: async () => {
      for (const table of ['records', 'void_tokens', 'audit', 'resolutions']) change(`DELETE FROM ${table}`);
      change(
        'UPDATE store SET mark = NULL, marks = 0, protect_until = 0, observe_until = 0, copy_mark = NULL',
      );
    },
    damage: async (id) =>
      // Its first letter and its revision, and then something else.
      change(
        "UPDATE records SET record = CAST(substr(record, 1, 17) || x'ff' AS BLOB) WHERE lower(hex(record_id)) = ?",
        id,
      ),
    closeTo: (closed) => closeTo(copy, closed),
  };
}

/** The tables are in the database of an application, which reads its own integers as BigInt. The other node is an operator's command. */
export async function sqliteOfApplication(): Promise<Place> {
  const path = mkdtempSync(join(tmpdir(), 'registers-'));
  let passedMs = 1_000_000;
  const clock = { ...systemClock, monotonicMs: () => passedMs, wallMs: () => 1_700_000_000_000 + passedMs };
  const file = join(path, 'application.db');
  const admin = new DatabaseSync(file, { readBigInts: true, returnArrays: true });
  admin.exec('PRAGMA journal_mode = WAL; PRAGMA user_version = 7; CREATE TABLE records (id, name)');
  const options = { clock, timeoutMs: 10_000 };
  const nodes = [
    await ApplicationRegister.openIn(admin, options),
    await ApplicationRegister.openFile({ ...options, path: file }),
  ] as const;
  const copy = await SqliteCopyRegister.openFile({ ...options, path: file });
  afterAll(async () => {
    await Promise.all([copy, ...nodes].map((node) => node.close()));
    admin.close();
    rmSync(path, { recursive: true, force: true });
  });
  return {
    name: 'sqlite of an application',
    nodes,
    pass: async (ms) => {
      passedMs += ms;
    },
    reset: async () => {
      for (const table of ['records', 'void_tokens', 'audit', 'resolutions'])
        admin.exec(`DELETE FROM oncegate_${table}`);
      admin.exec(
        'UPDATE oncegate_store SET mark = NULL, marks = 0, protect_until = 0, observe_until = 0, copy_mark = NULL',
      );
    },
    damage: async (id) =>
      void admin
        .prepare(
          "UPDATE oncegate_records SET record = CAST(substr(record, 1, 17) || x'ff' AS BLOB) WHERE lower(hex(record_id)) = ?",
        )
        .run(id),
    closeTo: (closed) => closeTo(copy, closed),
  };
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

export async function redis(): Promise<Place> {
  // Nothing has to survive a restart, so persistence is off.
  const { url, admin } = await startRedis({ appendonly: false });
  const options = {
    ...{ location: { url }, prefix: 'place', gatewayId: 'gateway', lockNodes: [], replicas: 0 },
    ...{ timeoutMs: 10_000, connectTimeoutMs: 5_000, clock: systemClock },
  };
  const names = new Names(options.prefix);
  const nodes = [await RedisRegister.open(options), await RedisRegister.open(options)] as const;
  const copy = await RedisCopyRegister.open(options);
  afterAll(() => Promise.all([copy, ...nodes].map((node) => node.close())));
  return {
    name: 'redis',
    nodes,
    pass: async (ms) => {
      await admin.eval(PASS, 0, ms);
    },
    reset: async () => void (await admin.flushall()),
    damage: async (id) => {
      const key = Buffer.from(names.recordOf(id), 'latin1');
      const value = await admin.getBuffer(key);
      // Its first letter and its revision, and then something else.
      await admin.set(
        key,
        Buffer.concat([value?.subarray(0, 17) ?? Buffer.of(), Buffer.of(0xff)]),
        'KEEPTTL',
      );
    },
    closeTo: (closed) => closeTo(copy, closed),
  };
}

/** As if `ms` had passed: every time that the tables hold is earlier by that. */
const passIn = (schema: string) => `
  UPDATE ${schema}.records SET expires_at = expires_at - $1::interval, due = due - $1::interval, leased_until = leased_until - $1::interval,
    void_until = (SELECT array_agg(u - $1::interval ORDER BY n) FROM unnest(void_until) WITH ORDINALITY v (u, n));`;

export async function postgres(): Promise<Place> {
  // Nothing has to survive the machine.
  const { url, admin } = await startPostgres({ fsync: 'off' });
  const options = {
    ...{ url, schema: 'oncegate' },
    ...{ timeoutMs: 10_000, connectTimeoutMs: 5_000, clock: systemClock },
  };
  const nodes = [await PostgresRegister.open(options), await PostgresRegister.open(options)] as const;
  const copy = await PostgresCopyRegister.open(options);
  afterAll(() => Promise.all([copy, ...nodes].map((node) => node.close())));
  return {
    name: 'postgres',
    nodes,
    pass: async (ms) => {
      const by = `${ms} ms`;
      await admin.query(passIn('oncegate'), [by]);
      const visited = ['protect_until', 'observe_until'].map(
        (column) => `${column} = ${column} - $1::interval`,
      );
      await admin.query(`UPDATE oncegate.store SET ${visited.join()}`, [by]);
    },
    reset: async () => {
      // The identity of the store is a row among the records.
      await admin.query('DELETE FROM oncegate.records; TRUNCATE oncegate.audit, oncegate.resolutions');
      await admin.query("UPDATE oncegate.store SET protect_until = '-infinity', observe_until = '-infinity'");
      await admin.query('UPDATE oncegate.copy SET progress = NULL');
    },
    damage: async (id) => {
      // Its first letter and its revision, and then something else.
      const damaged = "substring(record FROM 1 FOR 17) || '\\xff'::bytea";
      await admin.query(`UPDATE oncegate.records SET record = ${damaged} WHERE id = $1`, [
        Buffer.from(id, 'hex'),
      ]);
    },
    closeTo: (closed) => closeTo(copy, closed),
  };
}

const STATES = { no: 'undone', starts: 'closing', all: 'sealed' } as const;

export async function closeTo(copy: CopyRegister, closed: Closed): Promise<void> {
  const epoch = ((await copy.readCopyProgress())?.epoch ?? 0) + 1;
  const progress = {
    epoch,
    state: STATES[closed],
    copyId: 'copy',
    runId: 'run',
    source: { id: '', count: 0 },
  };
  expect(await copy.changeCopyProgress(progress)).toBe(true);
}
