import pg from 'pg';
import { describe, expect, it, onTestFinished } from 'vitest';
import { openStore, type PostgresPlace } from '../support/open-store.ts';
import { newSchema, startPostgres } from '../support/postgres-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { storeForTest } from '../support/stores.ts';
import { postgresDamages } from './postgres-damages.ts';
import { bring, replayOf, stages } from './states.ts';
import { storeContract } from './store-contract.ts';

// Nothing has to survive the machine.
const server = await startPostgres({ fsync: 'off' });

storeContract({ name: 'postgres', place: () => newSchema(server), damages: postgresDamages });

/** The address of the server for another role or database. */
function urlOf(parts: { user?: string; database?: string }): string {
  const url = new URL(server.url);
  if (parts.user) url.username = parts.user;
  if (parts.database) url.pathname = parts.database;
  return url.href;
}

/** A role that may use a schema, and may not make one. */
async function roleFor({ schema }: PostgresPlace, settings: Record<string, string> = {}): Promise<string> {
  const role = `role_of_${schema}`;
  await server.admin.query(`CREATE ROLE ${role} LOGIN; GRANT USAGE ON SCHEMA ${schema} TO ${role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO ${role};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role}`);
  for (const [name, value] of Object.entries(settings))
    await server.admin.query(`ALTER ROLE ${role} SET ${name} = '${value}'`);
  return urlOf({ user: role });
}

const note = { by: 'ada', reason: 'in the books' };

describe('in postgres', () => {
  it('people read a record with psql, and a text with a NUL is one', async () => {
    const place = await newSchema(server);
    const store = await storeForTest(place);
    const owner = await bring(store, 'in_doubt', newRequest({ merchant: 'M-\0ü', key: 'order 7' }));
    const { rows } = await server.admin.query(
      `SELECT state, merchant, operation, idempotency_key, expires_at > now() + interval '19 minutes' AS lives FROM ${place.schema}.records`,
    );
    const [state, merchant, operation] = ['in_doubt', 'M-\ufffdü', 'withdraw'];
    expect(rows).toEqual([{ state, merchant, operation, idempotency_key: 'order 7', lives: true }]);
    expect(await store.get(owner.recordId)).toMatchObject({ merchant: 'M-\0ü', key: 'order 7' });
  });

  it('a role with no right but to read and write the tables is enough, whatever its defaults are', async () => {
    const place = await newSchema(server);
    const url = await roleFor(place, {
      ...{ default_transaction_isolation: 'serializable', synchronous_commit: 'off', DateStyle: 'SQL, DMY' },
      ...{ client_min_messages: 'error', statement_timeout: '7s', bytea_output: 'escape' },
      ...{
        search_path: '',
        client_encoding: 'LATIN1',
        TimeZone: 'Asia/Kathmandu',
        IntervalStyle: 'iso_8601',
        extra_float_digits: '-15',
      },
    });
    const store = await storeForTest({ ...place, url });
    const owners = await Promise.all(stages.map((stage) => bring(store, stage)));
    // A rounded age would make the owner of a young record dead.
    const [owner] = owners as [(typeof owners)[0] & object];
    expect(await store.start(duplicateOf(owner))).toMatchObject({ kind: 'in_flight' });
    expect(await store.start(duplicateOf(owners[2] as (typeof owners)[0] & object))).toMatchObject({
      kind: 'completed',
    });
    const doubtful = await bring(store, 'in_doubt');
    expect(await store.resolve(doubtful.recordId, doubtful.token, { as: 'released' }, note)).toBe('ok');
    expect(await store.audit(doubtful.recordId)).toMatchObject([note]);
    const first = await store.list({ inDoubt: false, open: true, limit: 1 });
    const second = await store.list({ inDoubt: false, open: true, limit: 1, cursor: first.cursor });
    expect(new Set([...first.records, ...second.records].map(({ recordId }) => recordId))).toEqual(
      new Set(owners.slice(0, 2).map(({ recordId }) => recordId)),
    );
    expect(await store.visit('protect')).toMatchObject({ count: 1 });
    expect(await store.health()).toMatchObject({ ok: true });
    // A limit that is short enough to be felt would also end the statement that replaces it.
    await server.admin.query(`CREATE FUNCTION ${place.schema}.tell() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN NEW.cause := current_setting(''statement_timeout''); RETURN NEW; END';
      CREATE TRIGGER tell BEFORE INSERT ON ${place.schema}.records FOR EACH ROW EXECUTE FUNCTION ${place.schema}.tell()`);
    const { key } = await bring(store, 'executing');
    const { rows } = await server.admin.query(
      `SELECT cause FROM ${place.schema}.records WHERE idempotency_key = $1`,
      [key],
    );
    expect(rows).toEqual([{ cause: '1min' }]);
  });

  it('a large response is not read for a list, and comes back whole', async () => {
    const place = await newSchema(server);
    const store = await storeForTest(place);
    const owner = await bring(store, 'executing');
    const large = paid('x'.repeat(1_000_000));
    expect(await store.complete(owner, large)).toBe('ok');
    expect(await store.start(duplicateOf(owner))).toEqual(replayOf(large, owner));
    const { rows } = await server.admin.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
      SELECT substring(record FROM 1 FOR 1000) FROM ${place.schema}.records`);
    expect(rows[0]['QUERY PLAN'][0].Plan['Shared Hit Blocks']).toBeLessThan(60);
  });

  it('an address that takes no records is refused with a sentence', async () => {
    const place = await newSchema(server);
    await server.admin.query('CREATE ROLE nobody LOGIN');
    await server.admin.query(`CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0`);
    const refused: [string, Partial<PostgresPlace>, RegExp][] = [
      [
        'not prepared',
        { schema: 'elsewhere' },
        /run oncegate store prepare, which makes the schema elsewhere/,
      ],
      ['without rights', { url: urlOf({ user: 'nobody' }) }, /permission denied for schema/],
      ['no such role', { url: urlOf({ user: 'unknown' }) }, /role "unknown" does not exist/],
      ['no such database', { url: urlOf({ database: 'missing' }) }, /database "missing" does not exist/],
      ['another encoding', { url: urlOf({ database: 'latin' }) }, /has the encoding LATIN1: it must be UTF8/],
      ['no server', { url: 'postgres://oncegate@127.0.0.1:1/postgres' }, /ECONNREFUSED/],
    ];
    for (const [, other, why] of refused) {
      const error = await openStore({ ...place, ...other }).catch((reason: unknown) => reason);
      expect(error).toMatchObject({ name: 'StoreUnavailable', maybeWritten: false });
      expect((error as Error).message).toMatch(why);
    }
  });

  it('the function writes in no other isolation level than read committed, and never without waiting for the disk', async () => {
    const place = await newSchema(server);
    const client = new pg.Client(server.url);
    await client.connect();
    onTestFinished(() => client.end());
    for (const level of ['REPEATABLE READ', 'SERIALIZABLE']) {
      await client.query(`BEGIN ISOLATION LEVEL ${level}`);
      await expect(client.query(`SELECT * FROM ${place.schema}.write('[]')`)).rejects.toThrow(
        'read committed',
      );
      await client.query('ROLLBACK');
    }
    for (const [weaker, used] of [
      ['off', 'on'],
      ['local', 'on'],
      ['remote_write', 'on'],
      ['on', 'on'],
      ['remote_apply', 'remote_apply'],
    ] as const) {
      await client.query(`SET synchronous_commit = ${weaker}; SET client_min_messages = error`);
      const results = (await client.query(
        `BEGIN; SELECT * FROM ${place.schema}.write('[]'); SELECT current_setting('synchronous_commit') AS waits, current_setting('client_min_messages') AS warns; COMMIT`,
      )) as unknown as { rows: unknown[] }[];
      expect(results[2]?.rows).toEqual([{ waits: used, warns: 'warning' }]);
    }
  });
});
