/** What a person does to the table of records of PostgreSQL: keys that are lost are noticed by the identity of the store. */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { differenceOf, StoreWatch } from '../../src/ledger/store-watch.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { PostgresRegister } from '../../src/store/postgres/register.ts';
import { schemaSql } from '../../src/store/postgres/schema.ts';
import type { Create } from '../../src/store/register.ts';
import type { StoreIdentity } from '../../src/store/types.ts';
import { creation, newId, newRecord } from '../registers/records.ts';
import { emitTo } from '../support/emit.ts';
import type { PostgresPlace } from '../support/open-store.ts';
import { newSchema, startPostgres } from '../support/postgres-server.ts';
import { storeFolder } from '../support/sqlite-files.ts';
import { storeForTest } from '../support/stores.ts';
import { until } from '../support/until.ts';

// Nothing has to survive the machine.
const server = await startPostgres({ fsync: 'off' });
const { admin } = server;

/** A store that a gateway has visited, with one record. */
async function visited() {
  const { url, schema } = await newSchema(server);
  const register = await PostgresRegister.open({
    ...{ url, schema, timeoutMs: 10_000, connectTimeoutMs: 10_000, clock: systemClock },
  });
  onTestFinished(() => register.close());
  await register.visit('protect');
  const id = newId();
  await register.create(id, creation(newRecord()) as Create);
  return { register, schema, id };
}

let dumps = 0;

/** Keeps the table of records as it is. Returns a function that puts its rows back. */
async function dumped({ schema }: Pick<PostgresPlace, 'schema'>): Promise<() => void> {
  const file = join(server.dir, `${++dumps}.sql`);
  await server.run('pg_dump', '--data-only', '-t', `${schema}.records`, '-f', file, server.url);
  return () => void execFileSync('psql', ['-v', 'ON_ERROR_STOP=1', '-qX', '-f', file, server.url]);
}

it('records are not truncated, not even by a superuser whose triggers do not fire', async () => {
  const { register, schema, id } = await visited();
  for (const role of ['origin', 'replica'])
    await expect(
      admin.query(`SET LOCAL session_replication_role = ${role}; TRUNCATE ${schema}.records CASCADE`),
    ).rejects.toThrow(`each key in ${schema}.records can be paid again`);
  expect(await register.read(id)).toBeDefined();
});

it('records that were deleted are an emptied store, whose next visit gives it another identity', async () => {
  const { register, schema } = await visited();
  const before = await register.readIdentity('protect');
  await admin.query(`DELETE FROM ${schema}.records`);
  expect(await register.readIdentity('protect')).toBeUndefined();
  // A gateway that had just compared the identity does not hide it.
  const after = await register.visit('protect');
  expect(after.id).not.toBe(before?.id);
  expect(after.count).toBe(1);
  expect(await register.readIdentity('protect')).toEqual(after);
});

it('records of a dump are an older store, and those of its last visit the same one', async () => {
  const { register, schema } = await visited();
  const older = await dumped({ schema });
  const latest = await register.visit('protect');
  const same = await dumped({ schema });
  await admin.query(`DELETE FROM ${schema}.records`);
  older();
  expect(await register.readIdentity('protect')).toEqual({ ...latest, count: 1 });
  await admin.query(`DELETE FROM ${schema}.records`);
  same();
  expect(await register.readIdentity('protect')).toEqual(latest);
});

it('records of a dump in a schema that was made anew are the store that they were', async () => {
  const { register, schema, id } = await visited();
  const restore = await dumped({ schema });
  const identity = await register.readIdentity('protect');
  await admin.query(`DROP SCHEMA ${schema} CASCADE; ${schemaSql(schema)}`);
  restore();
  expect(await register.readIdentity('protect')).toEqual({ ...identity, otherMode: false });
  expect(await register.read(id)).toBeDefined();
});

it('gateways that visit a new store at the same time give it one identity', async () => {
  const { url, schema } = await newSchema(server);
  const options = { url, schema, timeoutMs: 10_000, connectTimeoutMs: 10_000 };
  const registers = await Promise.all(
    Array.from({ length: 4 }, () => PostgresRegister.open({ ...options, clock: systemClock })),
  );
  onTestFinished(async () => void (await Promise.all(registers.map((register) => register.close()))));
  const found = await Promise.all(registers.map((register) => register.visit('protect')));
  expect(new Set(found.map(({ id }) => id)).size).toBe(1);
  expect(found.map(({ count }) => count).sort()).toEqual([1, 2, 3, 4]);
});

it('a visit after a promotion does not hide it from gateways that compare later', async () => {
  const { register, schema } = await visited();
  const before = await register.readIdentity('protect');
  await admin.query(`UPDATE ${schema}.store SET timeline = 'of the old primary', waits = false`);
  const promoted = await register.readIdentity('protect');
  expect(differenceOf(before as StoreIdentity, promoted, 0)).toMatch(/older than it was/);
  const found = await Promise.all(Array.from({ length: 4 }, () => register.visit('protect')));
  const counts = found.map(({ count }) => count).sort((a, b) => a - b);
  expect(counts).toEqual([1, 2, 3, 4].map((visits) => Number(promoted?.count) + visits));
  const after = await register.readIdentity('protect');
  expect(differenceOf(before as StoreIdentity, after, 0)).toMatch(/older than it was/);
});

it('a table that a crash of the server has emptied is noticed before the first start after it', async () => {
  const { url, admin: person } = await startPostgres({ fsync: 'off' });
  const store = await storeForTest({ kind: 'postgres', url, schema: 'oncegate' });
  const watch = await StoreWatch.open({
    ...{ store, mode: 'protect', refuses: true, warnForMs: 60_000, clock: systemClock, emit: emitTo({}) },
    file: join(storeFolder(), 'identity.json'),
  });
  await watch.visit();
  await person.query('ALTER TABLE oncegate.records SET UNLOGGED');
  const { rows } = await person.query(`SELECT pid FROM pg_stat_activity WHERE application_name = 'oncegate'`);
  // As for want of memory. The server then ends all its other processes, and recovers.
  process.kill(rows[0].pid, 'SIGKILL');
  await until(() => store.refusing);
  await until(() => store.refusing === undefined);
  expect(watch.refusal).toMatch(/connected again|emptied/);
  await until(() => watch.refusal?.includes('emptied'));
});
