import pg from 'pg';
import { describe, expect, it, onTestFinished } from 'vitest';
import { functionsOf } from '../../src/store/postgres/functions.ts';
import { Lanes } from '../../src/store/postgres/lanes.ts';
import { schemaSql } from '../../src/store/postgres/schema.ts';
import { Sweep, statementsFor } from '../../src/store/postgres/sweep.ts';
import type { CopyProgress } from '../../src/store/register.ts';
import type { Execution } from '../../src/store/types.ts';
import { StoreClosed, StoreUnavailable } from '../../src/store/types.ts';
import { openCopyRegister, openStore, type PostgresPlace, type StoreTimes } from '../support/open-store.ts';
import { newSchema, startPostgres } from '../support/postgres-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeForTest } from '../support/stores.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

// Nothing has to survive the machine.
const server = await startPostgres({ fsync: 'off' });

/** The time limit of a command, where a test waits for it. Elsewhere it is longer than a loaded machine needs. */
const TIMEOUT_MS = 1000;
const SHORT = { timeoutMs: TIMEOUT_MS };
/** Of one store: four write, and two read. */
const CONNECTIONS = 6;

/** A connection of another gateway or of an operator, whose transactions a test steps through. */
async function session(url = server.url) {
  const client = new pg.Client(url);
  client.on('error', () => {});
  await client.connect();
  onTestFinished(() => client.end());
  return client;
}

/** Writes as a gateway does: a create in a transaction that the caller ends. */
async function createIn(client: pg.Client, { schema }: PostgresPlace, { recordId, token }: Execution) {
  const command = {
    ...{ n: 0, kind: 'create', id: `\\x${recordId}`, token: `\\x${token.toString('hex')}` },
    ...{ revision: `\\x${'00'.repeat(16)}`, record: '\\x00', state: 'executing', lives_ms: 600_000 },
    ...{ created_at_ms: Date.now(), unless_closed: true },
  };
  const { rows } = await client.query(`SELECT answer FROM ${schema}.write($1)`, [JSON.stringify([command])]);
  return rows[0].answer;
}

const statesIn = async ({ schema }: PostgresPlace): Promise<string[]> =>
  (await server.admin.query(`SELECT state FROM ${schema}.records`)).rows.map(({ state }) => state);

/** Whether something waits for a transaction of this connection. */
async function isBlocking(client: pg.Client): Promise<boolean> {
  const { rows } = await client.query('SELECT pg_backend_pid() AS pid');
  const blocked = 'SELECT 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))';
  return (await server.admin.query(blocked, [rows[0].pid])).rows.length > 0;
}

describe('a released row that is due', () => {
  /** A store with one such row, and the execution that was released. */
  async function withReleased() {
    const place = await newSchema(server);
    const store = await storeForTest(place);
    const released = await bring(store, 'executing');
    expect(await store.takeBack(released)).toBe('ok');
    await server.admin.query(
      `UPDATE ${place.schema}.records SET due = now() - interval '1 s', void_until = ARRAY[now() - interval '1 s']`,
    );
    const options = { ...place, timeoutMs: 5000, connectTimeoutMs: 5000 };
    const lanes = new Lanes(options);
    await lanes.open();
    const sweep = new Sweep(lanes, options);
    onTestFinished(async () => {
      sweep.close();
      await lanes.close();
    });
    return { place, store, sweep, next: duplicateOf(released) };
  }

  it('is not swept after a start has taken it over, committed or not', async () => {
    const { place, sweep, next } = await withReleased();
    const client = await session();
    await client.query('BEGIN');
    expect(await createIn(client, place, next)).toBe('done');
    expect(await sweep.step()).toBe(0);
    await client.query('COMMIT');
    expect(await sweep.step()).toBe(0);
    expect(await statesIn(place)).toEqual(['executing']);
  });

  it('makes a start wait while it is being swept, and is a new row after that', async () => {
    const { place, store, next } = await withReleased();
    const client = await session();
    await client.query('BEGIN');
    await client.query(statementsFor(place.schema)[0] as string);
    expect(await store.start(next)).toEqual({ kind: 'in_flight' });
    await client.query('COMMIT');
    expect(await store.start(next)).toEqual({ kind: 'started' });
    expect(await statesIn(place)).toEqual(['executing']);
  });
});

const closing: CopyProgress = {
  ...{ epoch: 1, state: 'closing', runId: 'run' },
  ...{ copyId: 'copy', source: { id: 'ab', count: 2 } },
};

describe.each(['read committed', 'repeatable read', 'serializable'])(
  'with roles that default to %s',
  (level) => {
    async function withRole() {
      const place = await newSchema(server);
      const role = `role_of_${place.schema}`;
      await server.admin.query(
        `CREATE ROLE ${role} LOGIN SUPERUSER; ALTER ROLE ${role} SET default_transaction_isolation = '${level}'`,
      );
      const url = new URL(server.url);
      url.username = role;
      return { ...place, url: url.href };
    }

    it('a close waits for a start, and every start after it is refused', async () => {
      const place = await withRole();
      const [store, copy] = [await storeForTest(place), await openCopyRegister(place)];
      onTestFinished(() => copy.close());
      const client = await session();
      await client.query('BEGIN');
      expect(await createIn(client, place, newRequest())).toBe('done');
      const change = copy.changeCopyProgress(closing);
      const looks = "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT DISTINCT pid%pg_locks%'";
      await until(async () => (await server.admin.query(looks)).rowCount);
      expect(await statesIn(place)).toEqual([]);
      await client.query('COMMIT');
      expect(await change).toBe(true);
      await expect(store.start(newRequest())).rejects.toThrow(StoreClosed);
      expect(await statesIn(place)).toEqual(['executing']);
    });

    it('a start waits for a close, and is refused', async () => {
      const place = await withRole();
      const store = await storeForTest(place);
      const client = await session();
      await client.query(`BEGIN; LOCK TABLE ${place.schema}.copy IN EXCLUSIVE MODE;
      UPDATE ${place.schema}.copy SET progress = 'starts 1 {}'`);
      // Behind the lock of the close, a start does not say that its key is in flight.
      await expect(store.start(newRequest())).rejects.toMatchObject({
        message: /lock timeout/,
        maybeWritten: false,
      });
      // A start gives up after its lock timeout. If no look has seen it waiting by then, another one begins.
      const starts: Promise<void>[] = [];
      let ended = 0;
      const start = () => expect(store.start(newRequest())).rejects.toMatchObject({ maybeWritten: false });
      await until(() => {
        if (ended === starts.length) starts.push(start().finally(() => ended++));
        return isBlocking(client);
      });
      await client.query('COMMIT');
      await Promise.all(starts);
      await expect(store.start(newRequest())).rejects.toThrow(StoreClosed);
      expect(await statesIn(place)).toEqual([]);
    });
  },
);

describe('a record that another transaction writes', () => {
  it('is in flight for a start, and the other keys of its batch go on', async () => {
    const place = await newSchema(server);
    const store = await storeForTest(place);
    const [locked, completed] = [newRequest(), await bring(store, 'executing')];
    const client = await session();
    await client.query('BEGIN');
    expect(await createIn(client, place, locked)).toBe('done');
    const starts = [locked, ...Array.from({ length: 20 }, () => newRequest())].map((request) =>
      store.start(duplicateOf(request)),
    );
    const answers = await Promise.all([...starts, store.complete(completed, paid())]);
    expect(answers.map((answer) => (typeof answer === 'string' ? answer : answer.kind))).toEqual([
      ...['in_flight', ...Array.from({ length: 20 }, () => 'started'), 'ok'],
    ]);
    await client.query('ROLLBACK');
    expect(await store.start(locked)).toEqual({ kind: 'started' });
  });

  it('keeps its completion back until that ends', async () => {
    const place = await newSchema(server);
    const store = await storeForTest(place);
    const owner = await bring(store, 'executing');
    const client = await session();
    await client.query('BEGIN');
    await client.query(`SELECT 1 FROM ${place.schema}.records FOR UPDATE`);
    await expect(store.complete(owner, paid())).rejects.toMatchObject({ maybeWritten: false });
    await client.query('COMMIT');
    expect(await store.complete(owner, paid())).toBe('ok');
  });
});

describe('a table that another transaction has locked', () => {
  const locks: [what: string, sql: (schema: string) => string][] = [
    ['the records, as VACUUM FULL and ALTER do', (schema) => `LOCK TABLE ${schema}.records`],
    ['an index of the records, as REINDEX does', (schema) => `REINDEX INDEX ${schema}.records_pkey`],
    ['the store', (schema) => `LOCK TABLE ${schema}.store`],
    ['the progress of a copy', (schema) => `LOCK TABLE ${schema}.copy`],
  ];

  it.each(locks)('is no key in flight, and makes the store not ready: %s', async (_what, lock) => {
    const place = await newSchema(server);
    // The functions of one have run before, and those of the other have not.
    const stores = [await storeForTest(place), await storeForTest(place)] as const;
    await bring(stores[0], 'executing');
    const client = await session();
    await client.query(`BEGIN; ${lock(place.schema)}`);
    for (const store of stores) {
      const refused = { message: /lock timeout/, maybeWritten: false };
      await expect(store.start(newRequest())).rejects.toMatchObject(refused);
      expect(await store.health()).toMatchObject({
        ok: false,
        detail: expect.stringContaining('lock timeout'),
      });
    }
    await client.query('ROLLBACK');
    for (const store of stores) {
      expect(await store.start(newRequest())).toEqual({ kind: 'started' });
      expect(await store.health()).toMatchObject({ ok: true });
    }
  });
});

describe('a backend in the middle of a write', () => {
  /** A store whose inserts take so long that a test can end their backend. */
  async function withSlowInserts() {
    const place = await newSchema(server);
    const store = await storeForTest(place);
    await server.admin.query(`CREATE FUNCTION ${place.schema}.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NEW; END';
      CREATE TRIGGER slow BEFORE INSERT ON ${place.schema}.records FOR EACH ROW EXECUTE FUNCTION ${place.schema}.slow()`);
    const end = async (how: string) =>
      await until(async () => {
        const { rows } = await server.admin.query(
          `SELECT ${how}(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%${place.schema}.write%'`,
        );
        return rows.length > 0;
      });
    const heal = () => server.admin.query(`DROP TRIGGER slow ON ${place.schema}.records`);
    return { store, end, heal };
  }

  it.each([
    ['cancelled', 'pg_cancel_backend', false],
    ['killed', 'pg_terminate_backend', true],
  ])('that is %s: nothing is there, and the store goes on', async (_how, signal, maybeWritten) => {
    const { store, end, heal } = await withSlowInserts();
    const owner = newRequest();
    const start = store.start(owner).catch((error: unknown) => error);
    await end(signal);
    expect(await start).toMatchObject({ name: 'StoreUnavailable', maybeWritten });
    await heal();
    if (maybeWritten) expect(await untilAnswered(() => store.takeBack(owner))).toBe('stale');
    expect(await untilAnswered(() => store.start(duplicateOf(owner)))).toEqual({ kind: 'started' });
  });
});

it('a response that takes the server longer than the time limit is stored all the same', async () => {
  const place = await newSchema(server);
  const store = await storeForTest(place, SHORT);
  const owner = await bring(store, 'executing');
  const slow = `${place.schema}.slow`;
  await server.admin.query(`CREATE FUNCTION ${slow}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(${(1.5 * TIMEOUT_MS) / 1000}); RETURN NEW; END';
    CREATE TRIGGER slow BEFORE UPDATE ON ${place.schema}.records FOR EACH ROW EXECUTE FUNCTION ${slow}()`);
  expect(await store.complete(owner, paid()).catch((error: unknown) => error)).toMatchObject({
    maybeWritten: true,
  });
  expect(await untilAnswered(() => store.complete(owner, paid()))).toBe('ok');
  expect(await store.start(duplicateOf(owner))).toEqual(replayOf(paid(), owner));
});

/** Repeats a write until it is answered, as the engine does. */
const untilAnswered = async <T>(write: () => Promise<T>) => await until(() => write().catch(() => undefined));

/** A server for one test, and a store. */
async function withPostgres(times: Partial<StoreTimes> = {}) {
  const own = await startPostgres({ fsync: 'off' });
  const place: PostgresPlace = { kind: 'postgres', url: own.url, schema: 'oncegate' };
  const store = await storeForTest(place, times);
  return { server: own, place, store };
}

describe('when the server', () => {
  it('starts together with a gateway, that one waits for it', async () => {
    const { server: own, place } = await withPostgres();
    await own.kill();
    const opening = storeForTest(place);
    await own.start();
    expect(await (await opening).start(newRequest())).toEqual({ kind: 'started' });
  });

  it('is killed in the middle of writes, what was answered is there when it is back, and nothing else is for sure', async () => {
    const { server: own, store } = await withPostgres();
    const owners: Execution[] = [];
    const answers = new Map<Execution, unknown>();
    let isKilled = false;
    const clients = Array.from({ length: 20 }, async () => {
      while (!isKilled) {
        const owner = newRequest();
        owners.push(owner);
        answers.set(owner, await store.start(owner).catch((error: unknown) => error));
      }
    });
    await until(async () => owners.length > 500);
    await own.kill();
    isKilled = true;
    await own.start();
    await Promise.all(clients);
    const failed = owners.filter((owner) => answers.get(owner) instanceof StoreUnavailable);
    expect(failed.length).toBeGreaterThan(0);
    for (const owner of owners) {
      const isThere =
        (await untilAnswered(async () => ({ found: await store.get(owner.recordId) }))).found !== undefined;
      const answer = answers.get(owner);
      if (!(answer instanceof StoreUnavailable)) expect(isThere).toBe(true);
      else if (!answer.maybeWritten) expect(isThere).toBe(false);
      else {
        expect(await untilAnswered(() => store.takeBack(owner))).toBe(isThere ? 'ok' : 'stale');
        await expect(store.start(owner)).rejects.toMatchObject({ maybeWritten: false });
      }
    }
  });

  it('is frozen, each call fails at its time limit, no connection is added, and all go on when it is thawed', async () => {
    const { server: own, store } = await withPostgres(SHORT);
    const [owner, other] = [await bring(store, 'executing'), await bring(store, 'executing')];
    const connections = async () =>
      (
        await own.admin.query(
          `SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'oncegate'`,
        )
      ).rows[0].count;
    // The sweep may have one of them. Without another one for writes, the start would wait for it, and would not be sent.
    await until(async () => (await connections()) >= CONNECTIONS);
    own.freeze();
    const lost = newRequest();
    const calls = [
      () => store.start(lost),
      () => store.peek(owner),
      () => store.restart(duplicateOf(owner)),
      () => store.renew(owner),
      () => store.complete(owner, paid()),
      () => store.release(other),
      () => store.get(owner.recordId),
      () => store.visit('protect'),
    ];
    const startedMs = performance.now();
    const answers = await Promise.all(calls.map((call) => call().catch((error: unknown) => error)));
    const tookMs = performance.now() - startedMs;
    expect(answers.map((answer) => answer instanceof StoreUnavailable)).toEqual(calls.map(() => true));
    expect(answers[0]).toMatchObject({ maybeWritten: true });
    expect(tookMs).toBeGreaterThanOrEqual(TIMEOUT_MS - 5);
    expect(tookMs).toBeLessThan(4 * TIMEOUT_MS);
    expect(await store.health()).toMatchObject({ ok: false });
    // A store that is closed meanwhile does not wait for the server.
    own.thaw();
    expect(await untilAnswered(() => store.takeBack(lost))).toMatch(/ok|stale/);
    expect(await untilAnswered(() => store.complete(owner, paid()))).toBe('ok');
    await until(async () => (await store.health()).ok);
    await until(async () => (await connections()) <= CONNECTIONS + 1);
  });

  it('is frozen, a store closes all the same', async () => {
    const own = await startPostgres({ fsync: 'off' });
    const store = await openStore({ kind: 'postgres', url: own.url, schema: 'oncegate' }, SHORT);
    own.freeze();
    const start = store.start(newRequest()).catch((error: unknown) => error);
    await new Promise(setImmediate);
    const startedMs = performance.now();
    await store.close();
    expect(performance.now() - startedMs).toBeLessThan(3000);
    expect(await start).toMatchObject({ name: 'StoreUnavailable', maybeWritten: true });
    own.thaw();
  });
});

describe('through a network', () => {
  async function withProxy(times: Partial<StoreTimes> = {}) {
    const proxy = await startProxy(server.port);
    const place = await newSchema(server);
    const url = new URL(server.url);
    url.port = String(proxy.port);
    const store = await storeForTest({ ...place, url: url.href }, times);
    return { proxy, place, store };
  }

  it('that loses an answer, a start is perhaps written, and its connection is given up', async () => {
    const { proxy, place, store } = await withProxy(SHORT);
    const owner = newRequest();
    proxy.swallowReplies(true);
    await expect(store.start(owner)).rejects.toMatchObject({ maybeWritten: true });
    expect(await statesIn(place)).toEqual(['executing']);
    proxy.swallowReplies(false);
    expect(await untilAnswered(() => store.takeBack(owner))).toBe('ok');
    await expect(store.start(owner)).rejects.toMatchObject({ maybeWritten: false });
    expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'started' });
  });

  it('that is cut before an answer arrives, a start is perhaps written', async () => {
    const { proxy, place, store } = await withProxy();
    const owner = newRequest();
    proxy.swallowReplies(true);
    const start = store.start(owner).catch((error: unknown) => error);
    await until(async () => (await statesIn(place)).length > 0);
    proxy.cut();
    expect(await start).toMatchObject({ name: 'StoreUnavailable', maybeWritten: true });
    proxy.swallowReplies(false);
    expect(await untilAnswered(() => store.takeBack(owner))).toBe('ok');
  });

  it('that delivers a start after it was taken back, the start is refused', async () => {
    const { proxy, place, store } = await withProxy(SHORT);
    const owner = newRequest();
    proxy.holdRequests();
    await expect(store.start(owner)).rejects.toMatchObject({ maybeWritten: true });
    proxy.strandHeld();
    expect(await untilAnswered(() => store.takeBack(owner))).toBe('stale');
    proxy.deliverHeld();
    const late = `SELECT 1 FROM pg_stat_activity WHERE query LIKE '%${place.schema}.write%' AND state <> 'idle' AND pid <> pg_backend_pid()`;
    await until(async () => (await server.admin.query(late)).rows.length === 0);
    expect(await store.get(owner.recordId)).toBeUndefined();
    expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'started' });
  });

  it('that drops everything in silence, the store finds other connections', async () => {
    const { proxy, store } = await withProxy(SHORT);
    const completed = await bring(store, 'completed');
    // No connection that is open now gets an answer any more, and none of them is reset.
    proxy.holdRequests();
    await expect(store.start(newRequest())).rejects.toMatchObject({ maybeWritten: true });
    expect(await untilAnswered(() => store.start(newRequest()))).toEqual({ kind: 'started' });
    expect(await untilAnswered(() => store.start(duplicateOf(completed)))).toEqual(
      replayOf(paid(), completed),
    );
  });
});

describe('a schema that is made again under a gateway', () => {
  it('gets no record of it before a new connection has shown that it is another store', async () => {
    const place = await newSchema(server);
    const store = await storeForTest(place);
    const completed = await bring(store, 'completed');
    const before = store.connectionOf();
    // One that opened later would find the other store first, and drop the connection of the start.
    const opened = `SELECT FROM pg_stat_activity
      WHERE application_name = 'oncegate' AND state = 'idle' AND query LIKE '%${place.schema}.%'`;
    await until(async () => (await server.admin.query(opened)).rows.length === CONNECTIONS);
    await server.admin.query(`DROP SCHEMA ${place.schema} CASCADE; ${schemaSql(place.schema)}`);
    await expect(store.start(duplicateOf(completed))).rejects.toMatchObject({
      message: expect.stringContaining('another server'),
      maybeWritten: false,
    });
    expect(await statesIn(place)).toEqual([]);
    await until(() => store.connectionOf() !== before);
  });

  it('is another store, which the connection shows', async () => {
    const place = await newSchema(server);
    const register = await openCopyRegister(place);
    onTestFinished(() => register.close());
    const before = register.register.connectionOf?.();
    await server.admin.query(`DROP SCHEMA ${place.schema} CASCADE`);
    const store = await openStore(place).catch((error: unknown) => error);
    expect(store).toMatchObject({ message: expect.stringContaining('run oncegate store prepare') });
    await server.admin.query(schemaSql(place.schema));
    const again = await openCopyRegister(place);
    onTestFinished(() => again.close());
    expect(again.register.connectionOf?.()).not.toBe(before);
  });
});

it('functions are replaced under gateways that pay', async () => {
  const place = await newSchema(server);
  const store = await storeForTest(place);
  let isReplaced = false;
  const paying = Array.from({ length: 8 }, async () => {
    while (!isReplaced) {
      const owner = newRequest();
      expect(await store.start(owner)).toEqual({ kind: 'started' });
      expect(await store.complete(owner, paid())).toBe('ok');
    }
  });
  for (let times = 0; times < 20; times++) await server.admin.query(schemaSql(place.schema));
  isReplaced = true;
  await Promise.all(paying);
  expect(new Set(await statesIn(place))).toEqual(new Set(['completed']));
  const { rows } = await server.admin.query(
    'SELECT proname FROM pg_proc WHERE pronamespace = $1::regnamespace',
    [place.schema],
  );
  expect([...functionsOf(place.schema).keys()].sort()).toEqual(rows.map(({ proname }) => proname).sort());
});
