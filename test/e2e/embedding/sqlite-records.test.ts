/** The command of an operator, in a process of its own, on an application's SQLite database that has the records of its keys. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, it, onTestFinished } from 'vitest';
import { sqliteStore } from '../../../src/index.ts';
import type { IdempotencyStore } from '../../../src/middleware/stores.ts';
import { runProcess } from '../../support/command.ts';
import { temporaryFolder } from '../../support/config.ts';
import { executionShown } from '../../support/execution.ts';
import { read } from '../../support/repository.ts';
import { codeOf } from '../../support/wire.ts';
import { embed } from './embedded.ts';

const [, EXAMPLE = ''] = /```yaml sqlite-records\n(.*?)```/s.exec(read('docs/transactions.md')) ?? [];

/** The configuration of docs/transactions.md, for this file. */
function configFor(file: string, more = ''): string {
  const config = join(temporaryFolder(), 'records.yaml');
  writeFileSync(config, EXAMPLE.replace('./payouts.sqlite', `${file}${more}`));
  return config;
}

/** The database of an application, with settings and tables of its own. */
function openDatabase(mode = 'WAL'): DatabaseSync & { file: string } {
  const file = join(temporaryFolder(), 'payouts.sqlite');
  const database = new DatabaseSync(file);
  onTestFinished(() => database.close());
  database.exec(`PRAGMA page_size = 1024; PRAGMA journal_mode = ${mode}; PRAGMA synchronous = NORMAL;
    PRAGMA user_version = 7; CREATE TABLE records (key TEXT); CREATE TABLE store (name TEXT); INSERT INTO store VALUES ('mine')`);
  return Object.assign(database, { file });
}

const openStore = async (database: DatabaseSync, identityFile?: string): Promise<IdempotencyStore> => {
  const store = await sqliteStore({ database, timeoutMs: 5000, ...(identityFile && { identityFile }) });
  onTestFinished(() => store.close());
  return store;
};

/** What the commands must leave as it is, seen by this connection. */
const settingsOf = (database: DatabaseSync) =>
  ['page_size', 'journal_mode', 'synchronous', 'user_version'].map((name) =>
    database.prepare(`PRAGMA ${name}`).get(),
  );
const ownedBy = (database: DatabaseSync) => [
  ...settingsOf(database),
  database.prepare('SELECT * FROM sqlite_schema ORDER BY name').all(),
  database.prepare('SELECT * FROM store').all(),
];

it.each(['WAL', 'DELETE'])(
  'oncegate records resolves the keys of an application that runs, and leaves its database as it was (%s)',
  async (mode) => {
    const database = openDatabase(mode);
    const { post } = await embed(
      (app, protect) =>
        app.post('/payouts', protect, (req, res) => {
          const { key = '' } = req.idempotency ?? {};
          const paid = database.prepare('INSERT INTO records VALUES (?) RETURNING rowid').get(key)?.rowid;
          if (paid === 1 || paid === 2) req.idempotency?.unknown();
          res.status(201).json({ paid });
        }),
      { store: await openStore(database) },
    );
    for (const key of ['k-1', 'k-2']) {
      await post(key);
      expect(codeOf(await post(key))).toBe('outcome_unknown');
    }
    const before = ownedBy(database);
    const config = configFor(database.file);
    const records = (action: string, ...args: string[]) =>
      runProcess(['records', action, '--config', config, ...args]);
    expect((await records('list', '--in-doubt')).stdout).toMatch(
      /M-ALPHA +handler +k-1 .*\n.*M-ALPHA +handler +k-2 /,
    );
    const body = join(temporaryFolder(), 'answer.json');
    writeFileSync(body, '{"paid":"by hand"}');
    const completed = ['--as', 'completed', '--status', '201', '--body', body];
    for (const [key, as] of [
      ['k-1', completed],
      ['k-2', ['--as', 'released']],
    ] as const) {
      const named = ['--merchant', 'M-ALPHA', '--key', key, ...(await executionShown(config, key))];
      const resolved = await records('resolve', ...named, ...as, '--reason', 'in the table');
      expect(resolved).toMatchObject({ code: 0, stderr: '' });
    }
    expect((await post('k-1')).json()).toEqual({ paid: 'by hand' });
    expect((await post('k-2')).json()).toEqual({ paid: 3 });
    expect(ownedBy(database)).toEqual(before);
    // As a gateway opens its store.
    await expect(sqliteStore({ path: database.file })).rejects.toThrow('is not a folder');
  },
);

it('oncegate records copy moves them to a store of their own, and closes the database to transactions', async () => {
  const database = openDatabase();
  const store = await openStore(database);
  const { post } = await embed(
    (app, protect) =>
      app.post('/payouts', protect, async (req) => {
        await req.idempotency?.transaction(() => ({ status: 201, json: { paid: 10 } }));
      }),
    { store, transactional: true },
  );
  expect((await post('k-1')).status).toBe(201);
  const [from, to] = [configFor(database.file), configFor(join(temporaryFolder(), 'data'))];
  const copied = await runProcess(['records', 'copy', '--from', from, '--to', to]);
  expect(copied).toMatchObject({ code: 0, stdout: expect.stringMatching(/^records +1$/m) });
  expect(codeOf(await post('k-2'))).toBe('store_unavailable');
  expect((await post('k-1')).headers['idempotent-replayed']).toBe('true');
  const listed = await runProcess(['records', 'list', '--config', to]);
  expect(listed.stdout).toMatch(/^completed .* k-1 /m);
});

it('oncegate store accept accepts another database than the one that was used', async () => {
  const [used, restored] = [openDatabase(), openDatabase()];
  const identityFile = join(temporaryFolder(), 'identity.json');
  await (await openStore(used, identityFile)).close();
  const store = await openStore(restored, identityFile);
  expect(await store.health()).toMatchObject({ ok: false });
  const config = configFor(restored.file, `, identityFile: ${identityFile}`);
  const accept = () => runProcess(['store', 'accept', '--config', config, '--reason', 'restored']);
  expect(await accept()).toMatchObject({ code: 0, stdout: expect.stringMatching(/^accepted: /) });
  expect((await accept()).code).toBe(1);
});

it('a file without our tables is refused, and not changed', async () => {
  const { file } = openDatabase('DELETE');
  const none = join(temporaryFolder(), 'none.sqlite');
  writeFileSync(none, 'something else, which is no database at all'.repeat(100));
  for (const [path, why] of [
    [file, 'no application keeps its keys there: it has no table oncegate_store'],
    [none, 'file is not a database'],
  ] as const) {
    const config = configFor(path);
    const before = readFileSync(path);
    for (const args of [
      ['records', 'list', '--config', config],
      ['records', 'copy', '--from', config, '--to', configFor(join(temporaryFolder(), 'data'))],
      ['records', 'copy', '--from', configFor(path), '--to', config, '--undo'],
      ['store', 'accept', '--config', config, '--reason', 'none'],
    ]) {
      const { code, stderr } = await runProcess(args);
      expect([code, stderr]).toEqual([69, `oncegate: ${path} cannot be used: ${why}\n`]);
    }
    expect(readFileSync(path).equals(before)).toBe(true);
    expect(readdirSync(dirname(path))).toHaveLength(1);
  }
});
