import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import type { PostgresOptions } from '../../src/store/postgres/health.ts';
import { PostgresRegister } from '../../src/store/postgres/register.ts';
import { statementsFor } from '../../src/store/postgres/sweep.ts';
import type { Create } from '../../src/store/register.ts';
import { creation, newId, newRecord } from '../registers/records.ts';
import { emitTo } from '../support/emit.ts';
import { startPostgres } from '../support/postgres-server.ts';
import { until } from '../support/until.ts';

const server = await startPostgres({ fsync: 'off', full_page_writes: 'off' });

async function opened(more: Partial<PostgresOptions> = {}): Promise<PostgresRegister> {
  const register = await PostgresRegister.open({
    ...{ url: server.url, schema: 'oncegate', timeoutMs: 500, connectTimeoutMs: 5000, tls: false },
    ...{ clock: systemClock, ...more },
  });
  onTestFinished(() => register.close());
  return register;
}

test('health warns of settings with which a crash or a failover loses records', async () => {
  const register = await opened();
  const warnings = async () => (await register.health()).warnings.map((text) => text.split(':')[0]);
  const unsafe = ['postgres runs with fsync off', 'postgres runs with full_page_writes off'];
  expect(await warnings()).toEqual(unsafe);

  await server.set({ synchronous_standby_names: 'one' });
  onTestFinished(() => server.set({ synchronous_standby_names: '' }));
  await until(async () => !(await register.health()).ok);
  const none = 'postgres waits for a synchronous standby, and none is connected';
  expect(await warnings()).toEqual([...unsafe, none]);
  // One that the server does not wait for.
  const folder = join(server.dir, 'received');
  mkdirSync(folder);
  const args = ['-D', folder, '-d', `${server.url}?application_name=two`];
  const receiver = spawn(server.program('pg_receivewal'), args, { stdio: 'ignore' });
  onTestFinished(() => void receiver.kill());
  const connected =
    "SELECT 1 FROM pg_stat_replication WHERE application_name = 'two' AND state = 'streaming'";
  await until(async () => (await server.admin.query(connected)).rowCount);
  expect(await warnings()).toEqual([...unsafe, none]);

  await server.set({ synchronous_standby_names: '' });
  await until(async () => (await register.health()).ok);
  const asynchronous = 'postgres has 1 standby and no synchronous_standby_names';
  expect(await warnings()).toEqual([...unsafe, asynchronous]);
});

test.each([
  ['ANY 1 (one, two)', ['postgres waits for any 1 of 2 standbys']],
  ['any 2 (one, "two, too", *)', ['postgres waits for any 2 of several standbys']],
  ['ANY 2 (one, two)', []],
  ['FIRST 1 (one, two)', []],
])(
  'health warns of a quorum that leaves standbys without the latest records: %s',
  async (names, expected) => {
    const register = await opened();
    await server.set({ synchronous_standby_names: names });
    onTestFinished(() => server.set({ synchronous_standby_names: '' }));
    await until(async () => !(await register.health()).ok);
    const warnings = (await register.health()).warnings.map((text) => text.split(':')[0]);
    expect(warnings.filter((text) => text?.includes('waits for any'))).toEqual(expected);
  },
);

test('health warns of rows that are gone and not removed, until they are', async () => {
  const { admin, url } = await startPostgres({ fsync: 'off', autovacuum: 'off' });
  await admin.query(`CREATE SEQUENCE numbers; CREATE ROLE gateway LOGIN; GRANT USAGE ON SCHEMA oncegate TO gateway;
    GRANT ALL ON ALL TABLES IN SCHEMA oncegate TO gateway`);
  const register = await opened({ url: url.replace('oncegate@', 'gateway@'), timeoutMs: 10_000 });
  const dead = async () => (await register.health()).warnings.filter((text) => text.includes('gone'));
  const add = (rows: number) => `INSERT INTO oncegate.records (id, state, expires_at, due)
    SELECT int8send(nextval('numbers')), 'completed', 'infinity', 'infinity' FROM generate_series(1, ${rows})`;
  /** A session counts its rows when it ends, and otherwise some seconds later. */
  const run = async (text: string) => {
    const client = new pg.Client(url);
    await client.connect();
    await client.query(text);
    await client.end();
  };
  // Rows of a transaction that was rolled back are gone, too.
  const kill = (rows: number) => run(`BEGIN; ${add(rows)}; ROLLBACK`);
  const untilCounted = (rows: number) =>
    until(async () => {
      const text = `SELECT n_dead_tup::int AS rows FROM pg_stat_user_tables WHERE relname = 'records'`;
      return (await admin.query(text)).rows[0].rows >= rows;
    });
  // Each check leaves a row that is gone, too.
  await kill(99_500);
  await untilCounted(99_500);
  expect(await dead()).toEqual([]);
  await kill(501);
  await untilCounted(100_001);
  const warning = 'the table of records has more than 10 rows that are gone for each one that is there';
  expect(await dead()).toEqual([expect.stringContaining(warning)]);
  await run(add(10_100));
  await until(async () => (await dead()).length === 0);
  // As after a crash of the server, the counters begin at zero.
  await run(
    "ANALYZE oncegate.records; SELECT pg_stat_reset_single_table_counters('oncegate.records'::regclass)",
  );
  await kill(100_500);
  await untilCounted(100_500);
  expect(await dead()).toEqual([]);
  await kill(501);
  await until(async () => (await dead()).length === 1);
  await run('VACUUM oncegate.records');
  await until(async () => (await dead()).length === 0);
});

test.each([
  ['forwards', -5000, 'by 5000 ms: records expire early'],
  ['backwards', 5000, 'by -5000 ms: records expire late'],
])('health warns if the clock of the host is stepped %s', async (_, shiftMs, warning) => {
  let monotonicShiftMs = 0;
  // It is compared with our monotonic clock, so a shift of the second looks like a step of the first.
  const clock = { ...systemClock, monotonicMs: () => systemClock.monotonicMs() + monotonicShiftMs };
  const steps: number[] = [];
  const emit = emitTo({ clock_stepped: ({ stepMs }) => steps.push(stepMs) });
  const register = await opened({ clock, emit });
  const stepped = async () => (await register.health()).warnings.filter((text) => text.includes('clock'));
  for (let checks = 0; checks < 2; checks++) expect(await stepped()).toEqual([]);
  monotonicShiftMs = shiftMs;
  const [text = ''] = await stepped();
  expect(text.replace(/by (-?)\d+/, 'by $15000')).toBe(
    `the clock of the store's host was stepped ${warning}`,
  );
  expect(Math.abs((steps[0] ?? 0) + shiftMs)).toBeLessThan(500);
  await stepped();
  expect(steps).toHaveLength(1);
});

test('weaker settings of the role do not hold for the sessions of a gateway', async () => {
  await server.admin.query(`CREATE ROLE weak LOGIN SUPERUSER; ALTER ROLE weak SET synchronous_commit = off;
    ALTER ROLE weak SET default_transaction_isolation = 'serializable'; ALTER ROLE weak SET statement_timeout = 7000;
    ALTER ROLE weak SET lock_timeout = 1`);
  const register = await opened({ url: server.url.replace('oncegate@', 'weak@') });
  const text = `SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation'),
    current_setting('statement_timeout'), current_setting('lock_timeout')`;
  expect(await register.lanes.ask(text)).toEqual([['on', 'read committed', '500ms', '250ms']]);
});

test('a server that is slow to accept connections gets one for each lane, and none is left after close', async () => {
  const { admin, url } = await startPostgres({ fsync: 'off', post_auth_delay: '1' });
  const register = await opened({ url, timeoutMs: 10_000, connectTimeoutMs: 10_000 });
  const text = `SELECT count(*)::int AS number FROM pg_stat_activity WHERE application_name = 'oncegate'`;
  const connections = async (): Promise<number> => (await admin.query(text)).rows[0].number;
  await until(async () => (await connections()) >= 6);
  await register.close();
  await until(async () => (await connections()) === 0);
});

test('parsers that the application has replaced do not change what the store reads', async () => {
  const replaced = [
    pg.types.builtins.BOOL,
    pg.types.builtins.BYTEA,
    pg.types.builtins.INT4,
    pg.types.builtins.INT8,
  ];
  for (const type of [...replaced, pg.types.builtins.TEXT, pg.types.builtins.FLOAT8]) {
    const before = pg.types.getTypeParser(type, 'text');
    onTestFinished(() => pg.types.setTypeParser(type, before));
    pg.types.setTypeParser(type, () => 'replaced');
  }
  await server.admin.query(
    `CREATE ROLE escaping LOGIN SUPERUSER; ALTER ROLE escaping SET bytea_output = 'escape'`,
  );
  const register = await opened({ url: server.url.replace('oncegate@', 'escaping@') });
  const [id, record] = [newId(), newRecord()];
  expect(await register.create(id, { kind: 'create', record, expiresInMs: 60_000 })).toEqual({ done: true });
  expect(await register.read(id)).toMatchObject({ record, isLeased: false });
  expect(await register.health()).toMatchObject({ ok: true });
});

test('a server that ends while it starts fails its test at once, with its log', async () => {
  await expect(startPostgres({ wal_level: 'nonsense' })).rejects.toThrow(/did not start:\n.*nonsense/s);
});

test('a record whose expiry somebody has set to infinity is read and refused as it is, and hides no other from lists', async () => {
  const register = await opened();
  const [kept, other] = [newId(), newId()];
  for (const id of [kept, other])
    await register.create(id, creation(newRecord({ state: 'in_doubt' })) as Create);
  await server.admin.query(
    "UPDATE oncegate.records SET expires_at = 'infinity', due = 'infinity' WHERE id = $1",
    [Buffer.from(kept, 'hex')],
  );
  const seen = { expiresInMs: Number.POSITIVE_INFINITY, record: { state: 'in_doubt' } };
  expect(await register.read(kept)).toMatchObject(seen);
  const again = await register.create(kept, creation(newRecord()) as Create);
  expect(again).toMatchObject({ done: false, held: seen });
  const { records } = await register.list({ open: true, limit: 10 });
  expect(records.map(({ id }) => id)).toEqual(expect.arrayContaining([kept, other]));
});

test('a record whose expiry an operator has put off is not removed before', async () => {
  const register = await opened();
  const id = newId();
  await register.create(id, creation(newRecord({ state: 'in_doubt' })) as Create);
  const change = `UPDATE oncegate.records SET due = clock_timestamp(), expires_at = clock_timestamp() + interval '1 hour' WHERE id = $1`;
  await server.admin.query(change, [Buffer.from(id, 'hex')]);
  for (const text of statementsFor('oncegate')) await server.admin.query(text);
  expect(await register.read(id)).toMatchObject({ record: { state: 'in_doubt' } });
});
