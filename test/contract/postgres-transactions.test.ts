/** Transactions of the application that write the record of a key: what only a real PostgreSQL shows. */
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { systemClock } from '../../src/lib/clock.ts';
import { PostgresCopyRegister } from '../../src/store/postgres/copy-register.ts';
import type { PostgresOptions } from '../../src/store/postgres/health.ts';
import { PostgresRegister } from '../../src/store/postgres/register.ts';
import { schemaSql } from '../../src/store/postgres/schema.ts';
import {
  type Create,
  type Isolation,
  KeyLocked,
  type SqlClient,
  type Transaction,
} from '../../src/store/register.ts';
import type { KeyRecord } from '../../src/store/types.ts';
import { StoreClosed } from '../../src/store/types.ts';
import { closeTo } from '../registers/places.ts';
import { completed, creation, newId, newRecord } from '../registers/records.ts';
import { type PostgresServer, startPostgres } from '../support/postgres-server.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';

const ISOLATIONS: Isolation[] = ['read committed', 'repeatable read', 'serializable'];
let server: PostgresServer;
let register: PostgresRegister;
let copy: PostgresCopyRegister;
let options: PostgresOptions;

beforeAll(async () => {
  server = await startPostgres({ fsync: 'off' });
  await server.admin.query('CREATE TABLE payouts (number bigserial PRIMARY KEY, key text)');
  options = {
    ...{ url: server.url, schema: 'oncegate' },
    ...{ timeoutMs: 2000, connectTimeoutMs: 5000, clock: systemClock },
  };
  register = await PostgresRegister.open(options);
  copy = await PostgresCopyRegister.open(options);
});
afterAll(() => Promise.all([register.close(), copy.close()]));

const begin = (isolation: Isolation = 'read committed') =>
  register.transactions.begin({ isolation, idleMs: 10_000 });

/** The application's own connection, in a transaction of its own. */
async function connected(isolation: Isolation = 'read committed'): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: server.url });
  client.on('error', () => {});
  await client.connect();
  onTestFinished(() => client.end());
  await client.query(`BEGIN ISOLATION LEVEL ${isolation}`);
  return client;
}

const claim = (client: SqlClient, id: ReturnType<typeof newId>, record: KeyRecord) =>
  register.transactions.claim(client, id, creation(record) as Create);

function complete(client: SqlClient, id: ReturnType<typeof newId>, begun: KeyRecord, result: KeyRecord) {
  const { operation } = result;
  const write = {
    kind: 'replace',
    revision: undefined,
    record: result,
    operation,
    expiresInMs: 1e6,
  } as const;
  return register.transactions.complete(client, id, begun.revision, write);
}

const pay = (client: SqlClient, key: string) => client.query('INSERT INTO payouts (key) VALUES ($1)', [key]);
/** When a close last looked who keeps it from going on. */
async function looks(): Promise<string[] | undefined> {
  const { rows } = await server.admin.query(
    "SELECT query_start::text AS at FROM pg_stat_activity WHERE query LIKE 'SELECT DISTINCT pid%pg_locks%'",
  );
  return rows.length > 0 ? rows.map(({ at }) => at) : undefined;
}

const paid = async (key: string) =>
  (await server.admin.query('SELECT FROM payouts WHERE key = $1', [key])).rowCount;
const codeOf = (work: Promise<unknown>) => work.then(String, ({ code }) => code);

it.each(ISOLATIONS)('commits the record and the statements together (%s)', async (isolation) => {
  const [id, record] = [newId(), newRecord()];
  const result = completed(record);
  const transaction = await begin(isolation);
  expect(await claim(transaction.client, id, record)).toBe(true);
  await pay(transaction.client, id);
  await complete(transaction.client, id, record, result);
  expect(await register.read(id)).toBeUndefined();
  await transaction.commit();
  expect((await register.read(id))?.record).toEqual(result);
  expect(await paid(id)).toBe(1);
});

it('makes others wait shortly, and answers that the key is in flight, while the transaction runs', async () => {
  const [id, record, other] = [newId(), newRecord(), newRecord()];
  const transaction = await begin();
  await claim(transaction.client, id, record);
  const startedMs = performance.now();
  await expect(register.create(id, creation(other) as Create)).rejects.toThrow(KeyLocked);
  expect(performance.now() - startedMs).toBeGreaterThan(40);
  const rival = await begin();
  await expect(claim(rival.client, id, other)).rejects.toThrow(KeyLocked);
  await rival.rollback();
  await transaction.rollback();
  expect(await register.create(id, creation(other) as Create)).toEqual({ done: true });
});

it.each(ISOLATIONS)(
  'refuses a key that has a record, whatever the snapshot shows (%s)',
  async (isolation) => {
    const [id, record] = [newId(), newRecord()];
    const client = await connected(isolation);
    await pay(client, id);
    await register.create(id, creation(record) as Create);
    // An older snapshot does not show the record. Then the server refuses the transaction as a whole.
    const isOlder = isolation !== 'read committed';
    expect(await codeOf(claim(client, id, newRecord()))).toBe(isOlder ? '40001' : 'false');
    await client.query('ROLLBACK');
    await client.query(`BEGIN ISOLATION LEVEL ${isolation}`);
    expect(await claim(client, id, newRecord())).toBe(false);
  },
);

it.each(ISOLATIONS)(
  'claims a key whose row was swept, whatever the snapshot shows (%s)',
  async (isolation) => {
    const [id, record, removed] = [newId(), newRecord(), newRecord()];
    await register.create(id, creation(removed) as Create);
    const client = await connected(isolation);
    await client.query('SELECT FROM oncegate.records');
    const nothing = { record: undefined, operation: '', expiresInMs: 0 } as const;
    await register.replace(id, { kind: 'replace', revision: removed.revision, ...nothing });
    expect(await claim(client, id, record)).toBe(true);
    await complete(client, id, record, completed(record));
    await client.query('COMMIT');
    expect((await register.read(id))?.record.state).toBe('completed');
  },
);

it.each(ISOLATIONS)('sees that the store was closed, whatever the snapshot shows (%s)', async (isolation) => {
  const client = await connected(isolation);
  await pay(client, 'before');
  await closeTo(copy, 'starts');
  const seen = claim(client, newId(), newRecord());
  if (isolation === 'read committed') await expect(seen).rejects.toThrow(StoreClosed);
  else expect(await codeOf(seen)).toBe('40001');
  await client.query('ROLLBACK');
  await client.query(`BEGIN ISOLATION LEVEL ${isolation}`);
  await expect(claim(client, newId(), newRecord())).rejects.toThrow(StoreClosed);
  await client.query('ROLLBACK');
  await closeTo(copy, 'no');
});

it.each(ISOLATIONS)(
  'closes the store only after the transactions that did not see it (%s)',
  async (isolation) => {
    const [id, record] = [newId(), newRecord()];
    const client = await connected(isolation);
    await claim(client, id, record);
    let isClosed = false;
    const closing = closeTo(copy, 'starts').then(() => {
      isClosed = true;
    });
    await until(looks);
    expect(isClosed).toBe(false);
    await complete(client, id, record, completed(record));
    await client.query('COMMIT');
    await closing;
    await closeTo(copy, 'no');
    expect((await register.read(id))?.record.state).toBe('completed');
  },
);

/** A register for a copy whose commands have a time limit of their own. */
async function copyWithin(timeoutMs: number): Promise<PostgresCopyRegister> {
  const opened = await PostgresCopyRegister.open({ ...options, timeoutMs });
  onTestFinished(() => opened.close());
  return opened;
}

it('pays other keys while a close waits for a long transaction, and closes the store when that ends', async () => {
  const [id, record] = [newId(), newRecord()];
  const client = await connected();
  await claim(client, id, record);
  const isOld = `SELECT FROM pg_stat_activity WHERE state LIKE 'idle in%' AND xact_start < clock_timestamp() - interval '600 ms'`;
  await until(async () => (await server.admin.query(isOld)).rowCount);
  const closing = closeTo(await copyWithin(30_000), 'starts');
  const queued = `SELECT FROM pg_locks WHERE NOT granted AND relation = 'oncegate.copy'::regclass`;
  const seen = new Set<string>();
  while (seen.size < 4) {
    for (const at of (await looks()) ?? []) seen.add(at);
    expect(await register.create(newId(), creation(newRecord()) as Create)).toEqual({ done: true });
    expect((await server.admin.query(queued)).rowCount).toBe(0);
  }
  await complete(client, id, record, completed(record));
  await client.query('COMMIT');
  await closing;
  await expect(register.create(newId(), creation(newRecord()) as Create)).rejects.toThrow(StoreClosed);
  await closeTo(copy, 'no');
});

it('names the transaction that keeps the store from being closed', async () => {
  const client = await connected();
  await client.query("SET application_name = 'payments'");
  await claim(client, newId(), newRecord());
  const { rows } = await client.query('SELECT pg_backend_pid() AS pid');
  await expect(closeTo(await copyWithin(1500), 'starts')).rejects.toMatchObject({
    message: expect.stringMatching(
      `within 1500 ms: pid ${rows[0].pid} \\(payments, since [-\\d]+ [:\\d]+[-+]`,
    ),
    maybeWritten: false,
  });
  expect(await register.create(newId(), creation(newRecord()) as Create)).toEqual({ done: true });
});

it('refuses a client of another database, as a failover may give it, even if that has the same tables', async () => {
  await server.admin.query('CREATE DATABASE shard');
  const client = new pg.Client({ connectionString: server.url.replace(/[^/]*$/, 'shard') });
  await client.connect();
  onTestFinished(() => client.end());
  await client.query(`${schemaSql('oncegate')}; BEGIN`);
  await expect(claim(client, newId(), newRecord())).rejects.toMatchObject({
    name: 'StoreUnavailable',
    message: expect.stringContaining('another server'),
    maybeWritten: false,
  });
});

it('lets gateways visit the store while a transaction is open', async () => {
  const client = await connected('serializable');
  await claim(client, newId(), newRecord());
  await register.visit('protect');
  const other = await connected('serializable');
  expect(await claim(other, newId(), newRecord())).toBe(true);
});

it('takes a row whose record was removed, and keeps the void tokens in it', async () => {
  const [id, record, removed] = [newId(), newRecord(), newRecord()];
  await register.create(id, creation(removed) as Create);
  const nothing = { record: undefined, operation: '', expiresInMs: 0, voidToken: removed.token } as const;
  await register.replace(id, { kind: 'replace', revision: removed.revision, ...nothing });
  const transaction = await begin();
  expect(await claim(transaction.client, id, record)).toBe(true);
  await complete(transaction.client, id, record, completed(record));
  await transaction.commit();
  expect((await register.read(id))?.record.state).toBe('completed');
  const { rows } = await server.admin.query('SELECT void_tokens FROM oncegate.records WHERE id = $1', [
    Buffer.from(id, 'hex'),
  ]);
  expect(rows[0].void_tokens).toEqual([removed.token]);
});

it('refuses to claim in a savepoint, and to complete in one', async () => {
  const [id, record] = [newId(), newRecord()];
  const client = await connected();
  await client.query('SAVEPOINT nested');
  await expect(claim(client, id, record)).rejects.toThrow('not in a savepoint');
  await client.query('ROLLBACK TO nested; RELEASE nested');
  await claim(client, id, record);
  await client.query('SAVEPOINT nested');
  await expect(complete(client, id, record, completed(record))).rejects.toThrow('not in a savepoint');
  await client.query('ROLLBACK TO nested; RELEASE nested');
  await complete(client, id, record, completed(record));
  await client.query('COMMIT');
  expect((await register.read(id))?.record.state).toBe('completed');
});

it('refuses to complete in another transaction than that of the record', async () => {
  for (const ending of ['COMMIT', 'ROLLBACK']) {
    const [id, record] = [newId(), newRecord()];
    const client = await connected();
    await claim(client, id, record);
    await client.query(`${ending} AND CHAIN`);
    await expect(complete(client, id, record, completed(record))).rejects.toThrow(
      'is not in this transaction',
    );
    await client.query('ROLLBACK');
    expect((await register.read(id))?.record.state).toBe(ending === 'COMMIT' ? 'executing' : undefined);
  }
});

it('leaves the time limit of locks to the application, and makes its commit durable', async () => {
  const client = await connected();
  await client.query("SET LOCAL lock_timeout = '7s'; SET LOCAL synchronous_commit = off");
  await claim(client, newId(), newRecord());
  const { rows } = await client.query(
    "SELECT current_setting('lock_timeout') AS locks, current_setting('synchronous_commit') AS commits",
  );
  expect(rows).toEqual([{ locks: '7s', commits: 'on' }]);
});

it('is ended by the server when its host is silent for too long', async () => {
  const transaction = await register.transactions.begin({ isolation: 'read committed', idleMs: 50 });
  const [id, record] = [newId(), newRecord()];
  await claim(transaction.client, id, record);
  await until(
    async () => (await codeOf(register.create(id, creation(newRecord()) as Create))) === '[object Object]',
  );
  await expect(pay(transaction.client, id)).rejects.toThrow();
  await transaction.rollback();
  await (await begin()).rollback();
});

it('makes room for another when the server has ended it, even if its function never returns', async () => {
  const ofOne = await PostgresRegister.open({ ...options, maxTransactions: 1 });
  onTestFinished(() => ofOne.close());
  const hung = await ofOne.transactions.begin({ isolation: 'read committed', idleMs: 50 });
  const next = await ofOne.transactions.begin({ isolation: 'read committed', idleMs: 10_000 });
  await expect(pay(hung.client, newId())).rejects.toThrow();
  await expect(hung.commit()).rejects.toThrow();
  await hung.rollback();
  await next.client.query('SELECT 1', []);
  await next.commit();
});

describe('whose COMMIT has no answer in time', () => {
  async function withPlaceForOne(url = server.url) {
    const ofOne = await PostgresRegister.open({ ...options, url, timeoutMs: 500, maxTransactions: 1 });
    onTestFinished(() => ofOne.close());
    return () => ofOne.transactions.begin({ isolation: 'read committed', idleMs: 10_000 });
  }
  const begun = async (begins: Promise<Transaction>) => {
    const transaction = await begins.catch(() => undefined);
    await transaction?.rollback();
    return transaction !== undefined;
  };

  it('makes room for another if the answer was lost in silence', async () => {
    const proxy = await startProxy(server.port);
    const beginOne = await withPlaceForOne(server.url.replace(`:${server.port}`, `:${proxy.port}`));
    const id = newId();
    const transaction = await beginOne();
    await pay(transaction.client, id);
    proxy.silence();
    await expect(transaction.commit()).rejects.toThrow('no answer to COMMIT');
    await transaction.rollback();
    expect(await paid(id)).toBe(1);
    await until(() => begun(beginOne()));
  });

  it('keeps its place while the server is at work on it', async () => {
    const beginOne = await withPlaceForOne();
    await server.admin.query(`CREATE TABLE slow (key text); CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
      CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`);
    const lock = await connected();
    await lock.query('SELECT pg_advisory_xact_lock(7)');
    const transaction = await beginOne();
    await transaction.client.query("INSERT INTO slow VALUES ('one')", []);
    await expect(transaction.commit()).rejects.toThrow('no answer to COMMIT');
    await transaction.rollback();
    expect(await begun(beginOne())).toBe(false);
    await lock.query('ROLLBACK');
    await until(() => begun(beginOne()));
    expect((await server.admin.query('SELECT FROM slow')).rowCount).toBe(1);
  });
});

it('is not committed if a statement has failed or was not awaited', async () => {
  const [id, record] = [newId(), newRecord()];
  const transaction = await begin();
  await claim(transaction.client, id, record);
  await complete(transaction.client, id, record, completed(record));
  await transaction.client.query('SELECT 1/0', []).catch(() => {});
  await expect(transaction.commit()).rejects.toThrow('nothing was committed');
  expect(await register.read(id)).toBeUndefined();

  const hurried = await begin();
  const late = pay(hurried.client, id);
  await expect(hurried.commit()).rejects.toThrow('await every statement');
  await hurried.rollback();
  await late;
  await expect(pay(hurried.client, id)).rejects.toThrow('has ended');
  expect(await paid(id)).toBe(0);
});
