import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  cpSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it, onTestFinished } from 'vitest';
import { StoreUnavailable } from '../../src/store/types.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { countRecords, openSqlite, query, storeFolder } from '../support/sqlite-files.ts';
import { bring, replayOf } from './states.ts';

const modeOf = (path: string) => (statSync(path).mode & 0o777).toString(8);

describe('the files of the SQLite store', () => {
  it('are readable and writable by this user only, whatever the umask', async () => {
    const umask = process.umask(0);
    onTestFinished(() => void process.umask(umask));
    const path = join(storeFolder(), 'new', 'data');
    await bring(await openSqlite(path), 'executing');
    expect(modeOf(path)).toBe('700');
    const names = readdirSync(path).toSorted();
    expect(names).toEqual(['records.db', 'records.db-lock', 'records.db-shm', 'records.db-wal']);
    for (const name of names) expect(modeOf(join(path, name))).toBe('600');
  });

  it('that others may use are usable for them whatever the umask is', async () => {
    const path = storeFolder();
    writeFileSync(join(path, 'records.db'), '');
    chmodSync(join(path, 'records.db'), 0o660);
    await bring(await openSqlite(path), 'executing');
    for (const name of readdirSync(path)) expect([name, modeOf(join(path, name))]).toEqual([name, '660']);
  });

  it.runIf(process.getuid?.() === 0)(
    'that a command of root makes belong to the owner of the database',
    async () => {
      const path = storeFolder();
      writeFileSync(join(path, 'records.db'), '');
      chownSync(join(path, 'records.db'), 4711, 4712);
      await bring(await openSqlite(path), 'executing');
      const owners = readdirSync(path).map((name) => statSync(join(path, name)));
      expect(owners.map(({ uid, gid }) => [uid, gid])).toEqual(Array(4).fill([4711, 4712]));
    },
  );

  it('cannot be made if a file has the name of the folder, or in a folder that accepts none; the error names the path', async () => {
    const file = join(storeFolder(), 'file');
    writeFileSync(file, '');
    // In /proc not even root can make a file.
    for (const path of [file, join(file, 'data'), '/proc'])
      await expect(openSqlite(path)).rejects.toMatchObject({
        name: 'StoreUnavailable',
        message: expect.stringContaining(path),
      });
  });

  it('can be opened while another process makes the same database', async () => {
    const path = storeFolder();
    const other = new DatabaseSync(join(path, 'records.db'));
    // Another process holds this lock while it changes the journal mode of the new file.
    other.exec('BEGIN IMMEDIATE');
    const opening = openSqlite(path);
    const timer = setTimeout(() => other.close(), 300);
    onTestFinished(() => clearTimeout(timer));
    const store = await opening;
    expect(await store.start(newRequest())).toEqual({ kind: 'started' });
  });

  it('that are not a database are refused and not changed', async () => {
    const path = storeFolder();
    writeFileSync(join(path, 'records.db'), Buffer.alloc(8192, 'x'));
    await expect(openSqlite(path)).rejects.toThrow('not a database');
    expect(readdirSync(path)).toEqual(['records.db', 'records.db-lock']);
    expect(statSync(join(path, 'records.db')).size).toBe(8192);
  });

  it('with a damaged lock file are refused by its name, because the database is intact', async () => {
    const path = storeFolder();
    const lock = join(path, 'records.db-lock');
    writeFileSync(lock, Buffer.alloc(4096, 'x'));
    await expect(openSqlite(path)).rejects.toThrow(`${lock}: file is not a database`);
  });

  it('whose database is mounted without its folder are refused, because each mount would have another WAL', async (context) => {
    const path = storeFolder();
    await (await openSqlite(path)).close();
    const source = (name: string) => new URL(`../../src/${name}.ts`, import.meta.url);
    const program = join(storeFolder(), 'open.mjs');
    const script = `import { DatabaseSync } from 'node:sqlite';
      import { systemClock } from '${source('lib/clock')}';
      import { SqliteRegister } from '${source('store/sqlite/sqlite-register')}';
      import { ApplicationRegister } from '${source('store/sqlite/application-register')}';
      const options = { timeoutMs: 1000, clock: systemClock };
      for (const open of [
        () => SqliteRegister.open({ path: '.', ...options }),
        () => ApplicationRegister.openIn(new DatabaseSync('records.db'), options),
      ])
        console.log(await open().then(() => 'opened', ({ message }) => message));
      process.exit();`;
    writeFileSync(program, script);
    const folder = storeFolder();
    const run = (shell: string) =>
      spawnSync('unshare', ['--mount', 'sh', '-ec', shell, process.execPath, program], {
        ...{ encoding: 'utf8', cwd: folder },
      });
    // As in a container, whose folders are on another file system.
    const mount = `mount -t tmpfs none ${folder}; cd ${folder}; touch records.db; mount --bind ${path}/records.db records.db`;
    if (run(mount).status !== 0) context.skip('this machine makes no mounts');
    const { stdout } = run(`${mount}; exec "$0" "$1"`);
    const refusal = expect.stringContaining('mount its folder, and not the file alone');
    expect(stdout.trim().split('\n')).toEqual([refusal, refusal]);
  });

  it('can be backed up while the store is open, and the backup is the same store', async () => {
    const [path, backup] = [storeFolder(), storeFolder()];
    const store = await openSqlite(path);
    const completed = await bring(store, 'completed');
    const identity = await store.visit('protect');
    query(path, `VACUUM INTO '${join(backup, 'records.db')}'`);
    const restored = await openSqlite(backup);
    expect(await restored.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    expect(await restored.readIdentity('protect')).toEqual(identity);
  });

  it('of another application are refused', async () => {
    const path = storeFolder();
    const store = await openSqlite(path);
    await store.close();
    query(path, 'PRAGMA user_version = 0');
    await expect(openSqlite(path)).rejects.toThrow('another application');
  });

  it('cannot be used after close', async () => {
    const store = await openSqlite(storeFolder());
    const owner = await bring(store, 'executing');
    await store.close();
    const calls = [
      () => store.start(duplicateOf(owner)),
      () => store.complete(owner, paid()),
      () => store.get(owner.recordId),
      () => store.list({ inDoubt: false, limit: 1 }),
      () => store.audit(owner.recordId),
    ];
    for (const call of calls)
      await expect(call()).rejects.toMatchObject({ name: 'StoreUnavailable', maybeWritten: false });
    expect((await store.health()).ok).toBe(false);
    await store.close();
  });
});

describe('a path that names another file than the open one', () => {
  it.each(['records.db', 'records.db-wal', 'records.db-shm'])(
    '(%s) stops all writes until the file is back, and the error says so',
    async (name) => {
      const path = storeFolder();
      const store = await openSqlite(path);
      const [owner, completed] = [await bring(store, 'executing'), await bring(store, 'completed')];
      const [file, aside] = [join(path, name), join(path, 'aside')];
      renameSync(file, aside);
      // A copy at the same path, as from a restored backup.
      cpSync(aside, file);
      const refusal = {
        name: 'StoreUnavailable',
        maybeWritten: false,
        message: expect.stringContaining(file),
      };
      await expect(store.complete(owner, paid())).rejects.toMatchObject(refusal);
      await expect(store.start(newRequest())).rejects.toMatchObject(refusal);
      expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining(file) });
      expect(await store.start(duplicateOf(completed))).toMatchObject({ kind: 'completed' });
      renameSync(aside, file);
      expect(await store.complete(owner, paid())).toBe('ok');
      expect(await store.start(newRequest())).toEqual({ kind: 'started' });
      expect(countRecords(path)).toBe(3);
    },
  );

  it('because the folder was removed', async () => {
    const path = join(storeFolder(), 'data');
    const store = await openSqlite(path);
    expect(await store.health()).toEqual({ ok: true, detail: 'sqlite', warnings: [] });
    rmSync(path, { recursive: true });
    await expect(store.start(newRequest())).rejects.toThrow(StoreUnavailable);
    expect(await store.health()).toMatchObject({ ok: false, detail: expect.stringContaining(path) });
  });
});
