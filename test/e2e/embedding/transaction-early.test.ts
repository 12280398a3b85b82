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
  const timeoutMs = 1000;
  const { post } = await application(
    async (idempotency, end) => {
      // Timers of the same length end in the order in which they began, so this one ends after the merchant's.
      await payInOwn(idempotency, () => new Promise((resolve) => setTimeout(resolve, timeoutMs)));
      end(200);
    },
    { timeoutMs },
  );
  // Told that the outcome is unknown, it could ask for as long as keys in doubt are kept, and this one is kept for a day.
  expect((await post(newKey())).status).toBe(201);
});

type Start = (idempotency: Idempotency, client: SqlClient) => Promise<void>;

const startInSavepoint: Start = async (idempotency, client) => {
  await client.query('BEGIN; SAVEPOINT nested', []);
  await idempotency.startIn(client);
};

it.each<[failure: string, start: Start, message: string]>([
  ['refuses a savepoint', startInSavepoint, 'not in a savepoint'],
  [
    'refuses a savepoint in a second attempt',
    async (idempotency, client) => {
      await client.query('BEGIN', []);
      await idempotency.startIn(client);
      await client.query('ROLLBACK', []);
      await startInSavepoint(idempotency, client);
    },
    'not in a savepoint',
  ],
  [
    'has no answer in time',
    async (idempotency, client) => {
      await client.query('BEGIN', []);
      const unanswered = async (text: string, values: string[]) => {
        await client.query(text, values);
        return await new Promise(() => {});
      };
      await idempotency.startIn({ query: unanswered });
    },
    'no answer within 2000 ms',
  ],
  [
    'is ended by the time limit of a library, whose code looks like one of the server,',
    async (idempotency, client) => {
      await client.query('BEGIN', []);
      const impatient = async (text: string, values: string[]) => {
        await client.query(text, values);
        throw Object.assign(new Error('Operations timed out'), { code: 'P1008' });
      };
      await idempotency.startIn({ query: impatient });
    },
    'Operations timed out',
  ],
])(
  'startIn %s: a handler that pays and commits all the same leaves its key in doubt',
  async (_, start, message) => {
    const { post } = await application(async (idempotency, end) => {
      const client = await pool.connect();
      await expect(start(idempotency, client)).rejects.toThrow(message);
      await pay(client, idempotency.key);
      await client.query('COMMIT');
      client.release();
      end(200);
    });
    const key = newKey();
    expect(codeOf(await post(key))).toBe('outcome_unknown');
    expect(codeOf(await post(key))).toBe('outcome_unknown');
    expect(await paid(key)).toBe(1);
  },
);

it('a handler whose first attempt was committed, and whose second one gets no answer, is answered by the first', async () => {
  const { post } = await application(async (idempotency) => {
    await payInOwn(idempotency, async () => {});
    // The library has lost the answer to COMMIT, and tries again.
    await idempotency.startIn({ query: () => Promise.reject(new Error('the connection is lost')) });
  });
  const key = newKey();
  expect((await post(key)).status).toBe(201);
  expect(await paid(key)).toBe(1);
});
