import { execFileSync, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { cpSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { schemaSql } from '../../../src/store/postgres/schema.ts';
import { withdraw } from '../../support/client.ts';
import { expectPlain, newFolder, run } from '../../support/command.ts';
import { configFile, type MoreConfig, testConfig } from '../../support/config.ts';
import { startPostgres } from '../../support/postgres-server.ts';
import { MAIN } from '../../support/spawn.ts';
import { stackForTest } from '../../support/stack.ts';

const server = await startPostgres();
// A role as a gateway should have: it may connect, and no more.
await server.admin.query(`CREATE ROLE gateway LOGIN PASSWORD 'not shown'`);

const urlFor = (user: string) => `postgres://${user}@127.0.0.1:${server.port}/postgres`;
const GATEWAY = urlFor('gateway:not%20shown');

const section = (schema: string, url = server.url): MoreConfig => ({
  store: { kind: 'postgres', url, schema },
});

/** Runs a command with a configuration whose records are in a schema. */
function inSchema(more: MoreConfig, command: string, ...args: string[]) {
  const folder = newFolder();
  const file = configFile(testConfig(folder, 'http://127.0.0.1:9', more), folder);
  return run([...command.split(' '), '--config', file, ...args]);
}

test('store prepare makes a schema, says so when it is there, and runs twice at once', async () => {
  const unprepared = await inSchema(section('payouts'), 'records list');
  expect(unprepared).toMatchObject({ code: 69, stdout: '' });
  expect(unprepared.stderr).toContain('run oncegate store prepare, which makes the schema payouts');
  const both = await Promise.all([1, 2].map(() => inSchema(section('payouts'), 'store prepare')));
  const [made, found] = ['prepared: the schema payouts\n', 'nothing to do: the schema payouts is prepared\n'];
  expect(both.map(({ stdout, code, stderr }) => [stdout, code, stderr]).sort()).toEqual([
    [found, 0, ''],
    [made, 0, ''],
  ]);
  expect((await inSchema(section('payouts'), 'store prepare')).stdout).toBe(found);
  expect(await inSchema(section('payouts'), 'records list')).toMatchObject({ code: 0, stderr: '' });
  await server.admin.query('UPDATE payouts.store SET format = 99');
  expect((await inSchema(section('payouts'), 'store prepare')).stderr).toContain('records of format 99');
});

test('a schema with the functions of another version is refused by their names, and prepared by who owns it', async () => {
  await server.admin.query(schemaSql('older'));
  await server.admin.query(`GRANT USAGE ON SCHEMA older TO gateway; GRANT ALL ON ALL TABLES IN SCHEMA older TO gateway;
    CREATE OR REPLACE FUNCTION older.timeline() RETURNS text LANGUAGE sql AS 'SELECT NULL';
    ALTER FUNCTION older.claim(text) SET lock_timeout = '1s'`);
  expect((await inSchema(section('older', GATEWAY), 'check')).stdout).toMatch(
    /^FAIL store: postgres: the functions claim, timeline of the schema older are not those of this version: run oncegate store prepare, which replaces them/m,
  );
  const refused = await inSchema(section('older', GATEWAY), 'store prepare');
  expect(refused.stderr).toMatch(/permission denied for schema older: .*store prepare --print shows/);
  const { stdout } = await inSchema(section('older', GATEWAY), 'store prepare', '--print');
  expect(await inSchema(section('older'), 'store prepare')).toMatchObject({
    code: 0,
    stdout: 'prepared: the functions of the schema older are those of this version\n',
  });
  expect((await inSchema(section('older', GATEWAY), 'store prepare')).stdout).toContain('nothing to do');
  // What is printed can be run on a schema that is there. It keeps the records.
  await server.admin.query(
    `INSERT INTO older.records (id, state) VALUES ('a', 'absent'); DROP FUNCTION older.write`,
  );
  await server.admin.query(stdout);
  expect((await server.admin.query('SELECT FROM older.records')).rowCount).toBe(1);
  expect(await inSchema(section('older', GATEWAY), 'records list')).toMatchObject({ code: 0, stderr: '' });
  await server.admin.query('UPDATE older.store SET format = 99');
  await expect(server.admin.query(stdout)).rejects.toThrow('records of another format');
});

test('a role that owns an empty schema prepares it, without any right on the database', async () => {
  await server.admin.query('CREATE SCHEMA owned AUTHORIZATION gateway');
  const prepared = await inSchema(section('owned', GATEWAY), 'store prepare');
  expect(prepared).toMatchObject({ code: 0, stdout: 'prepared: the schema owned\n', stderr: '' });
  expect(await inSchema(section('owned', GATEWAY), 'records list')).toMatchObject({ code: 0 });
});

test('a role that may not create gets the SQL, and its gateway pays with the rights in it', async () => {
  const more = section('granted', GATEWAY);
  const refused = await inSchema(more, 'store prepare');
  expect(refused).toMatchObject({ code: 69, stdout: '' });
  expect(refused.stderr).toMatch(/permission denied for database postgres: .*store prepare --print shows/);
  expectPlain(refused);
  const printed = await inSchema(more, 'store prepare', '--print');
  expect(printed).toMatchObject({ code: 0, stderr: '' });
  expect(printed.stdout).not.toContain('not shown');
  // As an owner of the database, in psql.
  const psql = (sql: string) =>
    execFileSync('psql', ['-v', 'ON_ERROR_STOP=1', '-qXAt', server.url], { input: sql, encoding: 'utf8' });
  psql(printed.stdout);
  expect((await inSchema(more, 'store prepare')).stdout).toContain('is prepared');

  const { url, adminUrl, sandbox } = await stackForTest(more);
  expect((await withdraw(url, { key: 'k-1', fault: 'execute-then-reset' })).status).toBe(502);
  expect((await withdraw(url, { key: 'k-1' })).status).toBe(409);
  expect(sandbox.ledger.transactions()).toHaveLength(1);
  expect(await (await fetch(`${adminUrl}/readyz`)).json()).toMatchObject({ status: 'ready' });
  expect(psql("SELECT idempotency_key FROM granted.records WHERE state = 'in_doubt'")).toBe('k-1\n');

  psql('REVOKE UPDATE ON granted.records FROM gateway');
  expect((await inSchema(more, 'check')).stdout).toContain(
    'FAIL store: postgres: the role may not write all tables of the schema granted: oncegate store prepare --print',
  );
});

test('check and config print say where the store is, without its password', async () => {
  const { stdout } = await inSchema(section('oncegate', GATEWAY), 'check');
  expect(stdout).toMatch(/^FAIL store: postgres: permission denied for schema oncegate: .*--print/m);
  expect(stdout).toContain(`(${urlFor('gateway:masked')})`);
  const printed = await inSchema(section('oncegate', GATEWAY), 'config print');
  expect(printed.stdout).toContain(`url: ${urlFor('gateway:masked')}\n`);
  expect(stdout + printed.stdout).not.toMatch(/not(?: |%20)shown/);
});

test('what only another store needs is refused with a sentence', async () => {
  expect(await inSchema({}, 'store prepare')).toMatchObject({
    code: 1,
    stderr: 'oncegate: there is nothing to prepare: sqlite needs no tables that a person makes\n',
  });
  expect(await inSchema(section('oncegate'), 'store repair-index')).toMatchObject({
    code: 1,
    stderr: 'oncegate: there is nothing to repair: postgres itself keeps the index of its records\n',
  });
  expect(await inSchema(section('oncegate'), 'store accept', '--reason', 'none')).toMatchObject({ code: 1 });
});

test('without the package pg, the command says what to install', () => {
  const folder = newFolder();
  for (const name of ['dist', 'config', 'package.json'])
    cpSync(join(dirname(dirname(MAIN)), name), join(folder, name), { recursive: true });
  const file = configFile(testConfig(folder, 'http://127.0.0.1:9', section('oncegate')), folder);
  const main = join(folder, 'dist', 'main.js');
  const ended = () =>
    execFileSync(process.execPath, [main, 'store', 'prepare', '--config', file], {
      encoding: 'utf8',
      stdio: 'pipe',
    });
  expect(ended).toThrow('oncegate: store.kind: postgres needs the package pg: npm install pg@8\n');
});

test('the bundle of the command loads the package pg without a warning of Node', () => {
  const folder = newFolder();
  const file = configFile(testConfig(folder, 'http://127.0.0.1:9', section('oncegate')), folder);
  const list = [MAIN, 'records', 'list', '--config', file];
  expect(spawnSync(process.execPath, list, { encoding: 'utf8' })).toMatchObject({ status: 0, stderr: '' });
});

test('a server that answers nothing is waited for as long as the configuration says, and is named', async () => {
  const silent = createServer().listen(0, '127.0.0.1');
  onTestFinished(() => void silent.close());
  await once(silent, 'listening');
  const { port } = silent.address() as AddressInfo;
  const url = `postgres://oncegate@127.0.0.1:${port}/payments`;
  for (const command of ['store prepare', 'records list'])
    expect(
      await inSchema({ store: { kind: 'postgres', url, connectTimeoutMs: 1200 } }, command),
    ).toMatchObject({ code: 69, stderr: 'oncegate: postgres: no connection within 1200 ms\n' });
});
