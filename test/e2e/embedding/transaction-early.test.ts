/** Handlers that end their response before their transaction has ended. */
import pg from 'pg';
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest';
import { type IdempotencyStore, postgresStore } from '../../../src/index.ts';
import type { Idempotency } from '../../../src/middleware/handler-request.ts';
import type { SqlClient } from '../../../src/store/register.ts';
import { type PostgresServer, startPostgres } from '../../support/postgres-server.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
import { type Embedded, embed } from './embedded.ts';

let server: PostgresServer;
let store: IdempotencyStore;
let pool: pg.Pool;

beforeAll(async () => {
  server = await startPostgres({ fsync: 'off' });
  await server.admin.query('CREATE TABLE payouts (number bigserial PRIMARY KEY, key text)');
  store = await postgresStore({ url: server.url, timeoutMs: 2000 });
  pool = new pg.Pool({ connectionString: server.url });
});
afterAll(async () => {
  await pool.end();
  await store.close();
});

type Handler = (idempotency: Idempotency, end: (status: number) => void) => Promise<unknown>;
type Options = NonNullable<Parameters<typeof embed>[1]>;

const application = (handler: Handler, options: Options = {}): Promise<Embedded> =>
  embed(
    (app, protect) =>
      app.post('/payouts', protect, (req, res, next) => {
        handler(req.idempotency as Idempotency, (status) => res.status(status).end()).catch(next);
      }),
    { store, transactional: true, ...options },
  );

const pay = (client: SqlClient, key: string) => client.query('INSERT INTO payouts (key) VALUES ($1)', [key]);
const paid = async (key: string) =>
  (await server.admin.query('SELECT FROM payouts WHERE key = $1', [key])).rowCount;
const PAID = { status: 201, json: { paid: 10 } };
let keys = 0;
const newKey = () => `key-${++keys}`;

it.each([200, 422])(
  'a response %i that ends in the middle of its transaction waits for the commit',
  async (status) => {
    const { post } = await application((idempotency, end) =>
      idempotency.transaction(async (client) => {
        end(status);
        await client.query('SELECT pg_sleep(0.1)', []);
        await pay(client, idempotency.key);
        return PAID;
      }),
    );
    const key = newKey();
    expect((await post(key)).status).toBe(201);
    expect(await paid(key)).toBe(1);
  },
);

it('in flight, if the transaction does not end in time, and the commit is replayed', async () => {
  const { promise: may, resolve: allow } = Promise.withResolvers<void>();
  const ofOne = await postgresStore({ url: server.url, timeoutMs: 2000, maxTransactions: 1 });
  onTestFinished(() => ofOne.close());
  const { post } = await application(
    (idempotency, end) => {
      const committed = idempotency.transaction(async (client) => {
        await may;
        await pay(client, idempotency.key);
        return PAID;
      });
      end(422);
      return committed;
    },
    { store: ofOne, completeRetryMs: 200 },
  );
  // The second transaction waits for the connection of the first one, and has claimed nothing when its response ends.
  const both = [newKey(), newKey()];
  for (const key of both) {
    const early = await post(key);
    expect(early.status).toBe(409);
    expect(codeOf(early)).toBe('request_in_flight');
  }
  allow();
  for (const key of both) {
    await until(async () => (await post(key)).status === 201);
    expect(await paid(key)).toBe(1);
  }
});

it('no transaction begins after the response has ended', async () => {
  const { promise: answered, resolve: tell } = Promise.withResolvers<void>();
  let failure: Promise<unknown> | undefined;
  const { post } = await application(async (idempotency, end) => {
    end(422);
    await answered;
    failure = idempotency
      .transaction(async (client) => {
        await pay(client, idempotency.key);
        return PAID;
      })
      .catch((error: unknown) => error);
  });
  const key = newKey();
  expect((await post(key)).status).toBe(422);
  tell();
  await until(() => failure);
  expect(await failure).toMatchObject({ name: 'TypeError' });
  expect(await paid(key)).toBe(0);
});

/** Pays in a transaction of the application's own. `beforeCommit` runs after completeIn. */
async function payInOwn(idempotency: Idempotency, beforeCommit: () => Promise<unknown>) {
  const client = await pool.connect();
  await client.query('BEGIN');
  await idempotency.startIn(client);
  await pay(client, idempotency.key);
  await idempotency.completeIn(client, PAID);
  await beforeCommit();
  await client.query('COMMIT');
  client.release();
}

it('a merchant whose time limit passes between completeIn and COMMIT is answered after it', async () => {
  const { post } = await application(
    async (idempotency, end) => {
      await payInOwn(idempotency, () => new Promise((resolve) => setTimeout(resolve, 400)));
      end(200);
    },
    { timeoutMs: 200 },
  );
  // Told that the outcome is unknown, it could ask for as long as keys in doubt are kept, and this one is kept for a day.
  expect((await post(newKey())).status).toBe(201);
});

it('a handler that goes on after startIn has refused its savepoint leaves its key in doubt', async () => {
  const { post } = await application(async (idempotency, end) => {
    const client = await pool.connect();
    await client.query('BEGIN; SAVEPOINT nested');
    await idempotency.startIn(client).catch(() => {});
    await pay(client, idempotency.key);
    await client.query('RELEASE nested; COMMIT');
    client.release();
    end(200);
  });
  const key = newKey();
  expect(codeOf(await post(key))).toBe('outcome_unknown');
  expect(codeOf(await post(key))).toBe('outcome_unknown');
  expect(await paid(key)).toBe(1);
});

it('a handler that goes on after startIn had no answer in time leaves its key in doubt', async () => {
  const hurried = await postgresStore({ url: server.url, timeoutMs: 200 });
  onTestFinished(() => hurried.close());
  const { post } = await application(
    async (idempotency, end) => {
      const client = await pool.connect();
      const { promise: mayAnswer, resolve: answer } = Promise.withResolvers<void>();
      const slow: SqlClient = {
        query: async (text, values) => {
          const result = await client.query(text, values);
          await mayAnswer;
          return result;
        },
      };
      await client.query('BEGIN');
      await idempotency.startIn(slow).catch(() => {});
      answer();
      await pay(client, idempotency.key);
      await client.query('COMMIT');
      client.release();
      end(200);
    },
    { store: hurried },
  );
  const key = newKey();
  expect(codeOf(await post(key))).toBe('outcome_unknown');
  expect(codeOf(await post(key))).toBe('outcome_unknown');
  expect(await paid(key)).toBe(1);
});

it('a handler whose second attempt goes on in a savepoint leaves its key in doubt', async () => {
  const { post } = await application(async (idempotency, end) => {
    const client = await pool.connect();
    await client.query('BEGIN');
    await idempotency.startIn(client);
    await client.query('ROLLBACK; BEGIN; SAVEPOINT nested');
    await idempotency.startIn(client).catch(() => {});
    await pay(client, idempotency.key);
    await client.query('RELEASE nested; COMMIT');
    client.release();
    end(200);
  });
  const key = newKey();
  expect(codeOf(await post(key))).toBe('outcome_unknown');
  expect(codeOf(await post(key))).toBe('outcome_unknown');
  expect(await paid(key)).toBe(1);
});

it('a handler whose first attempt was committed, and whose second one had no answer in time, is answered by the first', async () => {
  const hurried = await postgresStore({ url: server.url, timeoutMs: 200 });
  onTestFinished(() => hurried.close());
  const { post } = await application(
    async (idempotency) => {
      await payInOwn(idempotency, async () => {});
      const silent: SqlClient = { query: () => new Promise(() => {}) };
      // The library has lost the answer to COMMIT, and tries again.
      await idempotency.startIn(silent);
    },
    { store: hurried },
  );
  const key = newKey();
  expect((await post(key)).status).toBe(201);
  expect(await paid(key)).toBe(1);
});
