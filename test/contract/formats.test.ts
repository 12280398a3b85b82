import { randomUUID } from 'node:crypto';
import { type AddressInfo, connect, createServer } from 'node:net';
import { Redis } from 'ioredis';
import { describe, expect, it, onTestFinished } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { auditName } from '../../src/store/redis/commands.ts';
import { requireFormat, whileUnanswered } from '../../src/store/redis/health.ts';
import { OtherFormat, UnreadableIdentity } from '../../src/store/types.ts';
import { freePort } from '../support/free-port.ts';
import { openCopyRegister, openStore, type RedisPlace } from '../support/open-store.ts';
import { newSchema, startPostgres } from '../support/postgres-server.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { countRecords, query, storeFolder } from '../support/sqlite-files.ts';
import { storeForTest } from '../support/stores.ts';
import { recordKeyOf } from './redis-damages.ts';
import { bring, replayOf } from './states.ts';

const server = await startRedis();
// These records need not survive a crash of the machine.
const postgres = await startPostgres({ fsync: 'off' });

const newPlace = (): RedisPlace => ({ kind: 'redis', url: server.url, prefix: randomUUID() });
const newFolder = () => ({ kind: 'sqlite' as const, path: storeFolder() });

/** Everything under a prefix, with its content. */
async function contentOf({ prefix }: RedisPlace): Promise<Record<string, Buffer>> {
  const names = (await server.admin.keys(`*${prefix}:*`)).toSorted();
  return Object.fromEntries(
    await Promise.all(names.map(async (name) => [name, await server.admin.dump(name as string)])),
  );
}

async function expectRefused(place: RedisPlace, why: RegExp): Promise<void> {
  const before = await contentOf(place);
  for (const open of [() => openStore(place), () => openCopyRegister(place)]) {
    const error = await open().catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OtherFormat);
    expect(error).toMatchObject({ maybeWritten: false });
    expect((error as Error).message).toMatch(why);
    expect((error as Error).message).toContain(place.prefix);
  }
  expect(await contentOf(place)).toEqual(before);
}

describe('a Redis', () => {
  it('gets a note of the format with its first gateway, which later ones accept', async () => {
    const place = newPlace();
    await storeForTest(place);
    expect(await server.admin.get(`${place.prefix}:format`)).toBe('4');
    const before = await contentOf(place);
    await storeForTest(place);
    expect(await contentOf(place)).toEqual(before);
  });

  it.each([
    ['3', /records of format 3 .* knows format 4: use a gateway version that knows it/],
    ['5', /records of format 5 .* knows format 4: use a gateway version that knows it/],
    ['x', /records of an unknown format/],
  ])('whose note says %s is refused, and not changed', async (note, why) => {
    const place = newPlace();
    await server.admin.set(`${place.prefix}:format`, note);
    await expectRefused(place, why);
  });

  it.each(['arrives', 'is lost'])(
    'gets one format, also if the answer that it has another one %s',
    async (how) => {
      const place = newPlace();
      const client = new Redis(place.url);
      onTestFinished(() => client.disconnect());
      const set = client.set.bind(client);
      // A gateway of another version writes its note after this one has found none.
      client.set = (async (...command: Parameters<typeof set>) => {
        await server.admin.set(command[0], '5', 'NX');
        if (how === 'is lost') throw new Error('Command timed out');
        return await set(...command);
      }) as typeof client.set;
      await expect(requireFormat(client, place.prefix)).rejects.toThrow('records of format 5');
      expect(await server.admin.get(`${place.prefix}:format`)).toBe('5');
    },
  );

  it('gets a note when its cluster serves all slots again', async () => {
    const args = ['--cluster-enabled', 'yes', '--cluster-port', String(await freePort())];
    const node = await startRedis({ args });
    const untilMs = systemClock.monotonicMs() + 10_000;
    let asked = 0;
    const note = () => {
      if (asked++ === 1) void node.admin.call('CLUSTER', 'ADDSLOTSRANGE', 0, 16_383);
      return requireFormat(node.admin, 'oncegate');
    };
    await whileUnanswered(note, systemClock, untilMs);
    expect(await node.admin.get('oncegate:format')).toBe('4');
  });

  it('that a later version has migrated under a gateway makes it not ready', async () => {
    const place = newPlace();
    const store = await storeForTest(place);
    expect((await store.health()).ok).toBe(true);
    await server.admin.set(`${place.prefix}:format`, '5');
    expect(await store.health()).toMatchObject({
      ...{ ok: false, isClosed: true },
      detail: expect.stringContaining('records of format 5'),
    });
  });

  it('refuses an audit trail with a line of another format, or of none', async () => {
    const place = newPlace();
    const store = await storeForTest(place);
    const { recordId, token } = await bring(store, 'in_doubt');
    await store.resolve(recordId, token, { as: 'released' }, { by: 'ada', reason: 'not in the books' });
    const name = auditName(recordKeyOf(place, recordId));
    const [line = ''] = await server.admin.lrange(name, 0, -1);
    const { format, ...unnumbered } = JSON.parse(line);
    expect(format).toBe(1);
    for (const [other, said] of [
      [{ ...unnumbered, format: 2 }, '2'],
      [unnumbered, 'none'],
    ] as const) {
      await server.admin.lset(name, 0, JSON.stringify(other));
      const before = await contentOf(place);
      await expect(store.audit(recordId)).rejects.toThrow(`its audit trail has format ${said}`);
      expect(await contentOf(place)).toEqual(before);
    }
  });

  it('keeps an identity of another format, and says so', async () => {
    const place = newPlace();
    const store = await storeForTest(place);
    await store.visit('protect');
    const [name = ''] = (await server.admin.keys(`*${place.prefix}:4:0}:mark`)) as string[];
    await server.admin.set(name, 'an identity of another version');
    const before = await contentOf(place);
    await expect(store.visit('protect')).rejects.toThrow(UnreadableIdentity);
    await expect(store.readIdentity('protect')).rejects.toThrow(UnreadableIdentity);
    expect(await contentOf(place)).toEqual(before);
  });
});

describe('a SQLite database', () => {
  it.each([2, 3, 5])('of schema version %i is refused, and not changed', async (version) => {
    const place = newFolder();
    const store = await openStore(place);
    await bring(store, 'completed');
    await store.close();
    query(place.path, `PRAGMA user_version = ${version}`);
    for (const open of [() => openStore(place), () => openCopyRegister(place)]) {
      const error = (await open().catch((reason: unknown) => reason)) as Error;
      expect(error.message).toMatch(
        new RegExp(`${place.path}.* has schema version ${version}, and this gateway knows version 4: use a`),
      );
      expect(error.cause).toMatchObject({ name: 'StoreUnavailable', maybeWritten: false });
    }
    expect(query(place.path, 'PRAGMA user_version')).toEqual([{ user_version: version }]);
    expect(countRecords(place.path)).toBe(1);
  });

  it('that a later version has migrated under a gateway gets no write of it, and makes it not ready', async () => {
    const place = newFolder();
    const store = await storeForTest(place);
    const owner = await bring(store, 'executing');
    query(place.path, 'PRAGMA user_version = 5');
    const refused = { name: 'StoreUnavailable', maybeWritten: false };
    for (let round = 0; round < 2; round++) {
      await expect(store.start(newRequest())).rejects.toMatchObject(refused);
      await expect(store.complete(owner, paid())).rejects.toMatchObject(refused);
    }
    expect(await store.health()).toMatchObject({
      ...{ ok: false, isClosed: true },
      detail: expect.stringContaining('schema version 5'),
    });
    expect(query(place.path, 'SELECT state FROM records')).toEqual([{ state: 'executing' }]);
    // The migration was undone.
    query(place.path, 'PRAGMA user_version = 4');
    expect(await store.complete(owner, paid())).toBe('ok');
  });

  it('with more columns and tables is one that an added feature may have made: this version reads and writes it', async () => {
    const place = newFolder();
    const first = await openStore(place);
    const completed = await bring(first, 'completed');
    await first.visit('protect');
    await first.close();
    const tables = query<{ name: string }>(
      place.path,
      `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`,
    );
    expect(tables.length).toBeGreaterThan(5);
    for (const { name } of tables) query(place.path, `ALTER TABLE ${name} ADD COLUMN added TEXT`);
    const store = await storeForTest(place);
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    const doubtful = await bring(store, 'in_doubt');
    const note = { by: 'ada', reason: 'in the books' };
    expect(await store.takeBack(await bring(store, 'executing'))).toBe('ok');
    expect(await store.resolve(doubtful.recordId, doubtful.token, { as: 'released' }, note)).toBe('ok');
    expect(await store.audit(doubtful.recordId)).toMatchObject([note]);
    expect(await store.visit('protect')).toMatchObject({ count: 2 });
    expect(await store.health()).toMatchObject({ ok: true });
    const side = await openCopyRegister(place);
    await side.close();
  });
});

describe('a PostgreSQL schema', () => {
  const setFormat = (schema: string, format: number) =>
    postgres.admin.query(`UPDATE ${schema}.store SET format = ${format}`);
  const statesIn = async (schema: string) =>
    (await postgres.admin.query(`SELECT state FROM ${schema}.records`)).rows;

  it.each([2, 3, 5])('of format %i is refused, and not changed', async (format) => {
    const place = await newSchema(postgres);
    await setFormat(place.schema, format);
    for (const open of [() => openStore(place), () => openCopyRegister(place)]) {
      const error = await open().catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(OtherFormat);
      expect(error).toMatchObject({ maybeWritten: false });
      expect((error as Error).message).toMatch(
        new RegExp(
          `schema ${place.schema} has records of format ${format}, .* knows format 4: use a gateway`,
        ),
      );
    }
    const { rows } = await postgres.admin.query(`SELECT format FROM ${place.schema}.store`);
    expect(rows).toEqual([{ format }]);
    // A visit would be a row.
    expect(await statesIn(place.schema)).toEqual([]);
  });

  it('that a later version has migrated under a gateway gets no write of it, and makes it not ready', async () => {
    const place = await newSchema(postgres);
    const store = await storeForTest(place);
    const owner = await bring(store, 'executing');
    await setFormat(place.schema, 5);
    const refused = { name: 'StoreUnavailable', maybeWritten: false };
    await expect(store.start(newRequest())).rejects.toMatchObject(refused);
    await expect(store.complete(owner, paid())).rejects.toMatchObject(refused);
    expect(await store.health()).toMatchObject({
      ...{ ok: false, isClosed: true },
      detail: expect.stringContaining('records of format 5'),
    });
    expect(await statesIn(place.schema)).toEqual([{ state: 'executing' }]);
    // The migration was undone.
    await setFormat(place.schema, 4);
    expect(await store.complete(owner, paid())).toBe('ok');
  });

  it('with more columns is one that an added feature may have made: this version reads and writes it', async () => {
    const place = await newSchema(postgres);
    const tables = await postgres.admin.query('SELECT tablename FROM pg_tables WHERE schemaname = $1', [
      place.schema,
    ]);
    expect(tables.rows.length).toBeGreaterThan(4);
    for (const { tablename } of tables.rows)
      await postgres.admin.query(`ALTER TABLE ${place.schema}.${tablename} ADD COLUMN added text`);
    const store = await storeForTest(place);
    const completed = await bring(store, 'completed');
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    expect(await store.takeBack(await bring(store, 'executing'))).toBe('ok');
    const doubtful = await bring(store, 'in_doubt');
    const note = { by: 'ada', reason: 'in the books' };
    expect(await store.resolve(doubtful.recordId, doubtful.token, { as: 'released' }, note)).toBe('ok');
    expect(await store.visit('protect')).toMatchObject({ count: 1 });
    expect(await store.health()).toMatchObject({ ok: true });
  });

  it('on a server before version 13 is refused', async () => {
    const place = await newSchema(postgres);
    const { rows } = await postgres.admin.query('SHOW server_version_num');
    const version: string = rows[0].server_version_num;
    // The version in the server's answers, as an older one would say it.
    const proxy = createServer((client) => {
      const real = connect(postgres.port, '127.0.0.1');
      client.pipe(real);
      real.on('data', (bytes) => {
        client.write(bytes.toString('latin1').replaceAll(version, '120022'), 'latin1');
      });
      for (const socket of [client, real]) socket.on('error', () => {});
      client.on('close', () => real.destroy());
    });
    await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
    const { port } = proxy.address() as AddressInfo;
    onTestFinished(() => void proxy.close());
    const url = new URL(place.url);
    url.port = String(port);
    await expect(openStore({ ...place, url: url.href })).rejects.toMatchObject({
      ...{ message: 'postgres is too old: 13 or newer is needed', maybeWritten: false },
    });
  });
});
