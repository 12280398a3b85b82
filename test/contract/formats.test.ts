import { randomUUID } from 'node:crypto';
import { Redis } from 'ioredis';
import { describe, expect, it, onTestFinished } from 'vitest';
import { OtherFormat, type Store, UnreadableMark } from '../../src/idempotency/store.ts';
import { whileUnanswered } from '../../src/idempotency/stores/redis/health.ts';
import { requireFormat } from '../../src/idempotency/stores/redis/store-format.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { openSide } from '../support/copy-side.ts';
import { freePort } from '../support/free-port.ts';
import { openStore, type RedisPlace, type StorePlace } from '../support/open-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { countRecords, query, storeFolder } from '../support/sqlite-files.ts';
import { bring, replayOf } from './states.ts';

const server = await startRedis();

const newPlace = (): RedisPlace => ({ kind: 'redis', url: server.url, prefix: randomUUID() });
const newFolder = () => ({ kind: 'sqlite' as const, path: storeFolder() });

async function opened(place: StorePlace): Promise<Store> {
  const store = await openStore(place);
  onTestFinished(() => store.close());
  return store;
}

const found = (format: number) =>
  expect.objectContaining({ name: 'StoreUnavailable', found: format, known: 2, maybeWritten: false });

/** Everything under a prefix, with its content. */
async function contentOf({ prefix }: RedisPlace): Promise<Record<string, Buffer>> {
  const names = (await server.admin.keys(`${prefix}:*`)).toSorted();
  return Object.fromEntries(
    await Promise.all(names.map(async (name) => [name, await server.admin.dump(name as string)])),
  );
}

async function expectRefused(place: RedisPlace, format: number, why: RegExp): Promise<void> {
  const before = await contentOf(place);
  for (const open of [() => openStore(place), () => openSide(place)]) {
    const error = await open().catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OtherFormat);
    expect(error).toEqual(found(format));
    expect((error as Error).message).toMatch(why);
    expect((error as Error).message).toContain(place.prefix);
  }
  expect(await contentOf(place)).toEqual(before);
}

describe('a Redis', () => {
  it('gets a note of the format with its first gateway, which later ones accept', async () => {
    const place = newPlace();
    await opened(place);
    expect(await server.admin.get(`${place.prefix}:format`)).toBe('2');
    const before = await contentOf(place);
    await opened(place);
    expect(await contentOf(place)).toEqual(before);
  });

  it.each([
    ['3', 3, /records of format 3 .* knows format 2: use a gateway version that knows it/],
    ['1', 1, /records of format 1 .* stop the gateways of version 0\.1\.0/],
    ['x', 0, /records of an unknown format/],
  ])('whose note says %s is refused, and not changed', async (note, format, why) => {
    const place = newPlace();
    await server.admin.set(`${place.prefix}:format`, note);
    await expectRefused(place, format, why);
  });

  it('without a note is refused if any record has the name of another format', async () => {
    const { scope } = newRequest();
    for (const [name, format] of [
      [`{${scope}}`, 1],
      [`v3:{${scope}}`, 3],
      [`v12:{${scope}}`, 12],
    ] as const) {
      const place = newPlace();
      // More keys than one step of the search reads, and none of them a record.
      const others = Array.from({ length: 1500 }, (_, i) => [`${place.prefix}:v2:{mark}:${i}`, '1']);
      await server.admin.mset(others.flat());
      await server.admin.set(`${place.prefix}:${name}`, 'a record');
      await expectRefused(place, format, new RegExp(`records of format ${format} `));
    }
  });

  it('without a note is accepted if it has records of this format, and what other formats have left', async () => {
    const place = newPlace();
    const completed = await bring(await opened(place), 'completed');
    await server.admin.del(`${place.prefix}:format`);
    for (const name of [`{${completed.scope}}:audit`, '{keys}:v1:head', 'rate:{x}', 'doubts'])
      await server.admin.set(`${place.prefix}:${name}`, '1');
    const store = await opened(place);
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    expect(await server.admin.get(`${place.prefix}:format`)).toBe('2');
  });

  it('gets one format, also if a gateway of another version starts at the same moment', async () => {
    const place = newPlace();
    const client = new Redis(place.url);
    onTestFinished(() => client.disconnect());
    // The other gateway writes its note while this one searches the names.
    const scan = client.scan.bind(client);
    client.scan = (async (...args: Parameters<typeof scan>) => {
      await server.admin.set(`${place.prefix}:format`, '3', 'NX');
      return await scan(...args);
    }) as typeof client.scan;
    await expect(requireFormat(client, place.prefix)).rejects.toEqual(found(3));
    expect(await server.admin.get(`${place.prefix}:format`)).toBe('3');
  });

  it('is refused if the answer that it got another format meanwhile is lost', async () => {
    const place = newPlace();
    const client = new Redis(place.url);
    onTestFinished(() => client.disconnect());
    Object.assign(client, {
      async set(name: string) {
        await server.admin.set(name, '3', 'NX');
        throw new Error('Command timed out');
      },
    });
    await expect(requireFormat(client, place.prefix)).rejects.toEqual(found(3));
  });

  it('is searched when its cluster serves all slots again', async () => {
    const args = ['--cluster-enabled', 'yes', '--cluster-port', String(await freePort())];
    const node = await startRedis({ args });
    const untilMs = systemClock.monotonicMs() + 10_000;
    let asked = 0;
    const search = () => {
      if (asked++ === 1) void node.admin.call('CLUSTER', 'ADDSLOTSRANGE', 0, 16_383);
      return requireFormat(node.admin, 'oncegate');
    };
    await whileUnanswered(search, systemClock, untilMs);
    expect(await node.admin.get('oncegate:format')).toBe('2');
  });

  it('that a later version has migrated under a gateway makes it not ready', async () => {
    const place = newPlace();
    const store = await opened(place);
    expect((await store.health()).ok).toBe(true);
    await server.admin.set(`${place.prefix}:format`, '3');
    expect(await store.health()).toMatchObject({
      ...{ ok: false, isClosed: true },
      detail: expect.stringContaining('records of format 3'),
    });
  });

  it('refuses an audit trail with a line of another format, and reads one from before version 1.0.0', async () => {
    const place = newPlace();
    const store = await opened(place);
    const { scope, token } = await bring(store, 'in_doubt');
    await store.resolve(scope, token, { as: 'released' }, { by: 'ada', reason: 'not in the books' });
    const [name = ''] = await server.admin.keys(`${place.prefix}:*${scope}*:audit`);
    const [line = ''] = await server.admin.lrange(name, 0, -1);
    const { format, ...unnumbered } = JSON.parse(line);
    expect(format).toBe(1);
    await server.admin.lset(name, 0, JSON.stringify(unnumbered));
    expect(await store.audit(scope)).toEqual([unnumbered]);
    await server.admin.lset(name, 0, JSON.stringify({ ...unnumbered, format: 2 }));
    const before = await contentOf(place);
    await expect(store.audit(scope)).rejects.toThrow('its audit trail has format 2');
    expect(await contentOf(place)).toEqual(before);
  });

  it('keeps a mark of another format, and says so', async () => {
    const place = newPlace();
    const store = await opened(place);
    await store.mark('protect', '1.0.0');
    const [name = ''] = (await server.admin.keys(`${place.prefix}:v2:{mark}`)) as string[];
    await server.admin.set(name, 'a mark of another version');
    const before = await contentOf(place);
    await expect(store.mark('protect', '1.0.0')).rejects.toThrow(UnreadableMark);
    await expect(store.readMark('protect')).rejects.toThrow(UnreadableMark);
    expect(await contentOf(place)).toEqual(before);
  });
});

describe('a SQLite database', () => {
  it.each([1, 3])('of schema version %i is refused, and not changed', async (version) => {
    const place = newFolder();
    const store = await openStore(place);
    await bring(store, 'completed');
    await store.close();
    query(place.path, `PRAGMA user_version = ${version}`);
    for (const open of [() => openStore(place), () => openSide(place)]) {
      const error = (await open().catch((reason: unknown) => reason)) as Error;
      expect(error.message).toMatch(
        new RegExp(`${place.path}.* has schema version ${version}, and this gateway knows version 2: use a`),
      );
      expect(error.cause).toEqual(found(version));
    }
    expect(query(place.path, 'PRAGMA user_version')).toEqual([{ user_version: version }]);
    expect(countRecords(place.path)).toBe(1);
  });

  it('that a later version has migrated under a gateway gets no write of it, and makes it not ready', async () => {
    const place = newFolder();
    const store = await opened(place);
    const owner = await bring(store, 'executing');
    query(place.path, 'PRAGMA user_version = 3');
    const refused = { name: 'StoreUnavailable', maybeWritten: false };
    for (let round = 0; round < 2; round++) {
      await expect(store.start(newRequest())).rejects.toMatchObject(refused);
      await expect(store.complete(owner, paid())).rejects.toMatchObject(refused);
    }
    expect(await store.health()).toMatchObject({
      ...{ ok: false, isClosed: true },
      detail: expect.stringContaining('schema version 3'),
    });
    expect(query(place.path, 'SELECT state FROM records')).toEqual([{ state: 'executing' }]);
    // The migration was undone.
    query(place.path, 'PRAGMA user_version = 2');
    expect(await store.complete(owner, paid())).toBe('ok');
  });

  it('with more columns and tables is one that an added feature may have made: this version reads and writes it', async () => {
    const place = newFolder();
    const first = await openStore(place);
    const completed = await bring(first, 'completed');
    await first.mark('protect', '1.0.0');
    await first.close();
    const tables = query<{ name: string }>(
      place.path,
      `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`,
    );
    expect(tables.length).toBeGreaterThan(7);
    for (const { name } of tables) query(place.path, `ALTER TABLE ${name} ADD COLUMN added TEXT`);
    const store = await opened(place);
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    const doubtful = await bring(store, 'in_doubt');
    const note = { by: 'ada', reason: 'in the books' };
    expect(await store.release(await bring(store, 'executing'), { voidToken: true })).toBe('ok');
    expect(await store.resolve(doubtful.scope, doubtful.token, { as: 'released' }, note)).toBe('ok');
    expect(await store.audit(doubtful.scope)).toMatchObject([note]);
    expect(await store.mark('protect', '1.0.0')).toMatchObject({ count: 2 });
    expect(await store.health()).toMatchObject({ ok: true });
    const side = await openSide(place);
    await side.close();
  });
});
