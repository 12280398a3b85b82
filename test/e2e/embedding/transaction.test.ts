/** Handlers that execute their request, and store its answer, in one transaction of PostgreSQL. */
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { type IdempotencyStore, idempotency, postgresStore, sqliteStore } from '../../../src/index.ts';
import type { Idempotency } from '../../../src/middleware/handler-request.ts';
import type { TransactionAnswer } from '../../../src/middleware/respond.ts';
import type { Isolation, SqlClient } from '../../../src/store/register.ts';
import { temporaryFolder } from '../../support/config.ts';
import { type PostgresServer, startPostgres } from '../../support/postgres-server.ts';
import { startProxy } from '../../support/tcp-proxy.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
import { type Embedded, embed, expressVersions } from './embedded.ts';

let server: PostgresServer;
let store: IdempotencyStore;
let pool: pg.Pool;

beforeAll(async () => {
  server = await startPostgres({ fsync: 'off' });
  await server.admin.query('CREATE TABLE payouts (number bigserial PRIMARY KEY, key text)');
  store = await postgresStore({ url: server.url, timeoutMs: 2000 });
  pool = new pg.Pool({ connectionString: server.url, max: 20 });
  pool.on('error', () => {});
});
afterAll(async () => {
  await pool.end();
  await store.close();
});

type Handler = (idempotency: Idempotency, body: Record<string, unknown>) => Promise<unknown>;
type Options = NonNullable<Parameters<typeof embed>[1]>;

/** An application with this handler. What the handler returns, unless it is undefined, is sent as its own response. */
const application = (handler: Handler, options: Options = {}): Promise<Embedded> =>
  embed(
    (app, protect, express) =>
      app.post('/payouts', protect, express.json(), (req, res, next) => {
        handler(req.idempotency as Idempotency, req.body).then((said) => {
          if (said !== undefined) res.status((said as TransactionAnswer).status).json(said);
        }, next);
      }),
    { store, transactional: true, ...options },
  );

const pay = (client: SqlClient, key: string) => client.query('INSERT INTO payouts (key) VALUES ($1)', [key]);
const paid = async (key: string) =>
  (await server.admin.query('SELECT FROM payouts WHERE key = $1', [key])).rowCount;
const PAID = { status: 201, json: { paid: 10 } };

/** Pays in one transaction. */
const payIn: Handler = async (idempotency) => {
  await idempotency.transaction(async (client) => {
    await pay(client, idempotency.key);
    return PAID;
  });
};
let keys = 0;
const newKey = () => `key-${++keys}`;

describe('a handler with a transaction', () => {
  it.each(expressVersions)('commits its statements and the answer together (%s)', async (_, express) => {
    const { post } = await application(
      async (idempotency) => {
        const isCommitted = await idempotency.transaction(async (client) => {
          await pay(client, idempotency.key);
          return { ...PAID, headers: { 'X-Payout': '7' } };
        });
        expect(isCommitted).toBe(true);
        // What the handler still writes is dropped.
        return { status: 500 };
      },
      { express },
    );
    const key = newKey();
    const [first, retry] = [await post(key), await post(key)];
    expect(first).toMatchObject({ status: 201, headers: { 'x-payout': '7' } });
    expect([first.json(), retry.json()]).toEqual([{ paid: 10 }, { paid: 10 }]);
    expect(first.headers['content-type']).toBe('application/json; charset=utf-8');
    expect(retry).toMatchObject({ status: 201, headers: { 'x-payout': '7' } });
    expect([first, retry].map(({ headers }) => headers['idempotent-replayed'])).toEqual([undefined, 'true']);
    expect(codeOf(await post(key, { body: '{"amount":11}' }))).toBe('idempotency_key_reused');
    expect(await paid(key)).toBe(1);
  });

  it('frees the key and takes its statements back when it throws, and stores a refusal that it returns', async () => {
    let answer: TransactionAnswer | undefined;
    const { post } = await application(async (idempotency) => {
      await idempotency.transaction(async (client) => {
        await pay(client, idempotency.key);
        if (!answer) throw Object.assign(new Error('no'), { status: 418 });
        return answer;
      });
    });
    const key = newKey();
    expect((await post(key)).status).toBe(418);
    expect(await paid(key)).toBe(0);
    answer = { status: 429, json: { refused: true } };
    expect((await post(key)).status).toBe(429);
    answer = PAID;
    const retry = await post(key);
    expect(retry).toMatchObject({ status: 429, headers: { 'idempotent-replayed': 'true' } });
    expect(await paid(key)).toBe(1);
  });

  it('runs once for duplicates of one process, which use no connection, and of others, which wait', async () => {
    const { promise: may, resolve: allow } = Promise.withResolvers<void>();
    let runs = 0;
    const slowly: Handler = async (idempotency) => {
      await idempotency.transaction(async (client) => {
        runs++;
        await pay(client, idempotency.key);
        await may;
        return PAID;
      });
    };
    const other = await postgresStore({ url: server.url, timeoutMs: 2000 });
    onTestFinished(() => other.close());
    const [here, there] = [await application(slowly), await application(slowly, { store: other })];
    const key = newKey();
    const first = here.post(key);
    await until(() => runs === 1);
    const duplicates = [...Array.from({ length: 20 }, () => here.post(key)), there.post(key)];
    await until(async () => /oncegate_waiting 20\b/.test(await here.protect.metrics.text()));
    const open = `SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'`;
    await until(async () => (await server.admin.query(open)).rowCount === 1);
    // A key of its own does not wait.
    const quick = await application(payIn);
    expect((await quick.post(newKey())).status).toBe(201);
    allow();
    const answers = await Promise.all([first, ...duplicates]);
    expect(answers.map(({ status, body }) => `${status} ${body}`)).toEqual(
      answers.map(() => '201 {"paid":10}'),
    );
    expect([runs, await paid(key)]).toEqual([1, 1]);
  });

  it('answers a duplicate that may not wait, and runs it if the first one throws', async () => {
    const { promise: may, resolve: allow } = Promise.withResolvers<void>();
    let isFirst = true;
    const handler: Handler = async (idempotency) => {
      await idempotency.transaction(async (client) => {
        await pay(client, idempotency.key);
        if (!isFirst) return PAID;
        isFirst = false;
        await may;
        throw new Error('no');
      });
    };
    const other = await postgresStore({ url: server.url, timeoutMs: 2000 });
    onTestFinished(() => other.close());
    const [here, there] = [await application(handler), await application(handler, { store: other })];
    const key = newKey();
    const first = here.post(key);
    await until(() => !isFirst);
    const hurried = await there.post(key, { headers: { prefer: 'wait=0' } });
    expect([hurried.status, codeOf(hurried)]).toEqual([409, 'request_in_flight']);
    const second = there.post(key);
    allow();
    expect([(await first).status, (await second).status]).toEqual([500, 201]);
    expect(await paid(key)).toBe(1);
  });

  it.each(['40001', '40P01'])('runs again after the error %s, and asks for the key anew', async (code) => {
    let runs = 0;
    const { post } = await application(async (idempotency) => {
      await idempotency.transaction(
        async (client) => {
          await pay(client, idempotency.key);
          if (++runs < 3)
            await client.query(`DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '${code}'; END $$`);
          return PAID;
        },
        { isolation: 'serializable' },
      );
    });
    const key = newKey();
    expect((await post(key)).status).toBe(201);
    expect([runs, await paid(key)]).toEqual([3, 1]);
  });

  it('is refused if it has caught the error of a statement, or ends the transaction itself', async () => {
    let text = 'SELECT 1/0';
    const { post } = await application(async (idempotency) => {
      await idempotency.transaction(async (client) => {
        await pay(client, idempotency.key);
        await client.query(text).catch(() => {});
        return PAID;
      });
    });
    const key = newKey();
    expect((await post(key)).status).toBe(500);
    expect(await paid(key)).toBe(0);
    text = 'ROLLBACK AND CHAIN';
    expect((await post(key)).status).toBe(500);
    expect(await paid(key)).toBe(0);
    // Its statements are committed, and its answer is not.
    text = 'COMMIT AND CHAIN';
    expect(codeOf(await post(key))).toBe('outcome_unknown');
    expect(codeOf(await post(key))).toBe('outcome_unknown');
    expect(await paid(key)).toBe(1);
  });

  it.each(['ROLLBACK', 'COMMIT'])(
    'can pay nothing on its client after a %s of its own, so that a retry pays nothing twice',
    async (ending) => {
      // A helper that has a transaction of its own, and tries again in another one.
      const { post } = await application(async (idempotency) => {
        await idempotency.transaction(async (client) => {
          await client.query(ending);
          await client.query('BEGIN');
          await pay(client, idempotency.key);
          await client.query('COMMIT');
          return PAID;
        });
      });
      const key = newKey();
      for (let i = 0; i < 2; i++) await post(key);
      expect(await paid(key)).toBe(0);
    },
  );

  it('frees the key if it answers without a transaction, which only a refusal may do', async () => {
    let status = 422;
    const { post } = await application(async (idempotency) =>
      status === 0 ? await payIn(idempotency, {}) : { status },
    );
    const key = newKey();
    expect((await post(key)).status).toBe(422);
    status = 200;
    expect([(await post(key)).status, codeOf(await post(key))]).toEqual([503, 'overloaded']);
    status = 0;
    expect((await post(key)).status).toBe(201);
  });

  it('stores no response that is too large, and no answer that cannot be sent', async () => {
    let answer: unknown = { status: 201, json: 'x'.repeat(2000) };
    const { post } = await application(
      async (idempotency) => void (await idempotency.transaction(async () => answer as TransactionAnswer)),
      { maxStoredBytes: 1024 },
    );
    const key = newKey();
    expect((await post(key)).body).toHaveLength(2002);
    expect(codeOf(await post(key))).toBe('response_not_stored');
    for (answer of [undefined, { status: 99 }, { status: 200, headers: { 'bad name': 'x' } }])
      expect((await post(newKey())).status).toBe(500);
  });

  it('is decided by the store if its COMMIT has no answer', async () => {
    const proxy = await startProxy(server.port);
    const url = server.url.replace(`:${server.port}`, `:${proxy.port}`);
    const behind = await postgresStore({ url, timeoutMs: 1000 });
    onTestFinished(() => behind.close());
    let breaks: 'before' | 'after' | undefined;
    const { post } = await application(
      async (idempotency) => {
        await idempotency.transaction(async (client) => {
          await pay(client, idempotency.key);
          return PAID;
        });
      },
      { store: behind },
    );
    // A trigger that runs at COMMIT waits while `held` has a row, and then lets the server commit, or ends the connection.
    await server.admin.query(`CREATE TABLE held (key text);
      CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        WHILE EXISTS (SELECT FROM held WHERE key = NEW.key) LOOP PERFORM pg_sleep(0.01); END LOOP;
        IF NEW.key LIKE 'cut-before%' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
        RETURN NULL; END $$;
      CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON payouts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cut()`);
    for (breaks of ['before', 'after'] as const) {
      const key = `cut-${breaks}-${newKey()}`;
      await server.admin.query('INSERT INTO held VALUES ($1)', [key]);
      const first = post(key);
      const commits = `SELECT FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active'`;
      await until(async () => (await server.admin.query(commits)).rowCount);
      proxy.cut();
      // Until the store waits for the transaction. What does not wait has answered.
      const waits = `SELECT FROM pg_stat_activity WHERE wait_event = 'transactionid'`;
      await Promise.race([first, until(async () => (await server.admin.query(waits)).rowCount)]);
      await server.admin.query('DELETE FROM held');
      const answer = await first;
      if (breaks === 'after') expect(answer.status).toBe(201);
      else expect([answer.status, codeOf(answer)]).toEqual([503, 'store_unavailable']);
      expect(await paid(key)).toBe(breaks === 'after' ? 1 : 0);
    }
  });

  it('is kept for longer if its merchant was told that it is late, and is ended by the server if it does nothing', async () => {
    let statement = 'SELECT pg_sleep(0.6)';
    const { promise: may, resolve: allow } = Promise.withResolvers<void>();
    const { post } = await application(
      async (idempotency) => {
        await idempotency.transaction(async (client) => {
          await pay(client, idempotency.key);
          if (statement) await client.query(statement);
          else await may;
          return PAID;
        });
      },
      { timeoutMs: 200, abandonAfterMs: 60_000 },
    );
    const [slow, silent] = [newKey(), newKey()];
    const late = await post(slow);
    expect([late.status, codeOf(late)]).toEqual([504, 'outcome_unknown']);
    expect(await post(slow)).toMatchObject({ status: 201, headers: { 'idempotent-replayed': 'true' } });
    const { rows } = await server.admin.query(
      `SELECT round(extract(epoch FROM expires_at - clock_timestamp()) / 86400)::int AS days FROM oncegate.records WHERE idempotency_key = $1`,
      [slow],
    );
    expect(rows).toEqual([{ days: 30 }]);
    statement = '';
    expect((await post(silent)).status).toBe(504);
    const open = "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'";
    await until(async () => (await server.admin.query(open)).rowCount === 0);
    allow();
    expect(await paid(silent)).toBe(0);
    statement = 'SELECT 1';
    await until(async () => (await post(silent)).status === 201);
    expect([await paid(slow), await paid(silent)]).toEqual([1, 1]);
  });

  it('is answered 503 while its tables are locked, and executes the retry', async () => {
    const { post } = await application(payIn);
    const key = newKey();
    const client = await pool.connect();
    await client.query('BEGIN; LOCK TABLE oncegate.records IN SHARE MODE');
    expect(codeOf(await post(key))).toBe('store_unavailable');
    await client.query('ROLLBACK');
    client.release();
    expect((await post(key)).status).toBe(201);
  });

  it('needs the option transactional, and the store of its own database', async () => {
    const { post } = await application(payIn, { transactional: false });
    expect((await post(newKey())).status).toBe(500);
    const sqlite = await sqliteStore({ path: temporaryFolder() });
    onTestFinished(() => sqlite.close());
    expect(() => idempotency({ store: sqlite, transactional: true })).toThrow(
      'needs the store of postgresStore',
    );
    expect(() => idempotency({ store, transactional: true, inDoubt: 'retry' })).toThrow('must be hold');
  });
});

describe('a handler with a transaction of its own library', () => {
  /** What applications do: one client, BEGIN, COMMIT, and ROLLBACK after an error. */
  async function inTransaction(isolation: Isolation, work: (client: pg.PoolClient) => Promise<void>) {
    const client = await pool.connect();
    try {
      await client.query(`BEGIN ISOLATION LEVEL ${isolation}`);
      await work(client);
      await client.query('COMMIT');
    } catch (error) {
      await client.query('ROLLBACK');
      throw error;
    } finally {
      client.release();
    }
  }

  const payingIn =
    (isolation: Isolation, before: () => Promise<unknown> = async () => {}): Handler =>
    async (idempotency) => {
      await inTransaction(isolation, async (client) => {
        await idempotency.startIn(client);
        await pay(client, idempotency.key);
        await before();
        await idempotency.completeIn(client, PAID);
      });
      return { status: 200 };
    };

  it.each<Isolation>(['read committed', 'repeatable read', 'serializable'])(
    'commits its statements and the answer together (%s)',
    async (isolation) => {
      let fails = true;
      const { post } = await application(
        payingIn(isolation, async () => {
          if (fails) throw new Error('no');
        }),
      );
      const key = newKey();
      expect((await post(key)).status).toBe(500);
      expect(await paid(key)).toBe(0);
      fails = false;
      const [first, retry] = [await post(key), await post(key)];
      expect([first.status, first.json()]).toEqual([201, { paid: 10 }]);
      expect(retry).toMatchObject({ status: 201, headers: { 'idempotent-replayed': 'true' } });
      expect(await paid(key)).toBe(1);
    },
  );

  it('makes duplicates of another process roll back, and answers them with its own answer', async () => {
    const { promise: may, resolve: allow } = Promise.withResolvers<void>();
    let runs = 0;
    const handler = payingIn('read committed', async () => {
      runs++;
      await may;
    });
    const other = await postgresStore({ url: server.url, timeoutMs: 2000 });
    onTestFinished(() => other.close());
    const [here, there] = [await application(handler), await application(handler, { store: other })];
    const key = newKey();
    const first = here.post(key);
    await until(() => runs === 1);
    const second = there.post(key);
    await until(async () => /oncegate_executing 1\b/.test(await there.protect.metrics.text()));
    allow();
    expect([(await first).status, (await second).status]).toEqual([201, 201]);
    expect([runs, await paid(key)]).toEqual([1, 1]);
  });

  it('is in doubt if it commits without its answer, and free if it does not commit', async () => {
    let ending = 'ROLLBACK';
    const { post } = await application(async (idempotency) => {
      const client = await pool.connect();
      await client.query('BEGIN');
      await idempotency.startIn(client);
      await pay(client, idempotency.key);
      await client.query(ending);
      client.release();
      return { status: 400 };
    });
    const key = newKey();
    expect((await post(key)).status).toBe(400);
    ending = 'COMMIT';
    expect(codeOf(await post(key))).toBe('outcome_unknown');
    expect(codeOf(await post(key))).toBe('outcome_unknown');
    expect(await paid(key)).toBe(1);
  });

  it('is answered only when another connection has read the completion', async () => {
    const { promise: completed, resolve: written } = Promise.withResolvers<void>();
    const { promise: may, resolve: allow } = Promise.withResolvers<void>();
    const { post } = await application(
      async (idempotency) => {
        const committing = inTransaction('read committed', async (client) => {
          await idempotency.startIn(client);
          await idempotency.completeIn(client, PAID);
          written();
          await may;
        });
        await Promise.race([completed, committing]);
        return { status: 200 };
      },
      { completeRetryMs: 300 },
    );
    const key = newKey();
    const early = await post(key);
    expect([early.status, codeOf(early)]).toEqual([409, 'request_in_flight']);
    allow();
    await until(async () => (await post(key)).status === 201);
  });
});
