/** Handlers that execute their request, and store its answer, in one transaction of the application's own SQLite database. */
import type { ServerResponse } from 'node:http';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, expect, it, onTestFinished } from 'vitest';
import { idempotency, type SqliteStoreOptions, sqliteStore } from '../../../src/index.ts';
import type { Idempotency } from '../../../src/middleware/handler-request.ts';
import type { TransactionAnswer } from '../../../src/middleware/respond.ts';
import { STORE_FORMAT } from '../../../src/store/types.ts';
import { temporaryFolder } from '../../support/config.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
import { embed, expressVersions } from './embedded.ts';

type Handler = (idempotency: Idempotency, database: DatabaseSync, res: ServerResponse) => Promise<unknown>;
type Options = NonNullable<Parameters<typeof embed>[1]> & { file?: string; setting?: string };

const PAID = { status: 201, json: { paid: 10 } };
const INSERT = 'INSERT INTO payouts (key) VALUES (?)';

function openDatabase(file = join(temporaryFolder(), 'payouts.sqlite'), options = {}): DatabaseSync {
  const database = new DatabaseSync(file, options);
  onTestFinished(() => database.close());
  database.exec('CREATE TABLE IF NOT EXISTS payouts (key TEXT)');
  return database;
}

/** The time limit of the store's commands is 500 ms. */
const LONGER_THAN_A_COMMAND_MS = 1000;

/** An application with this handler, and its database. */
async function application(handler: Handler, { file, setting = '', ...options }: Options = {}) {
  const database = openDatabase(file);
  database.exec(setting);
  const store = await sqliteStore({ database });
  onTestFinished(() => store.close());
  const { post } = await embed(
    (app, protect, express) =>
      app.post('/payouts', protect, express.json(), (req, res, next) => {
        handler(req.idempotency as Idempotency, database, res).then((said) => {
          if (said !== undefined) res.status((said as TransactionAnswer).status).json(said);
        }, next);
      }),
    { store, transactional: true, ...options },
  );
  const paid = (key: string) => database.prepare('SELECT * FROM payouts WHERE key = ?').all(key).length;
  return { post, paid, database };
}

const payIn = async (idempotency: Idempotency, database: DatabaseSync, _res?: ServerResponse) => {
  await idempotency.transaction(() => {
    database.prepare(INSERT).run(idempotency.key);
    return PAID;
  });
};

describe('a handler with a transaction on SQLite', () => {
  it.each(expressVersions)('commits its statements and the answer together (%s)', async (_, express) => {
    const handler: Handler = async (idempotency) => {
      const isCommitted = await idempotency.transaction((client: DatabaseSync) => {
        client.prepare(INSERT).run(idempotency.key);
        return { ...PAID, headers: { 'X-Payout': '7' } };
      });
      expect(isCommitted).toBe(true);
      return { status: 500 };
    };
    const { post, paid } = await application(handler, { express });
    const [first, retry] = [await post('k'), await post('k')];
    expect([first.json(), retry.json()]).toEqual([{ paid: 10 }, { paid: 10 }]);
    for (const answer of [first, retry])
      expect(answer).toMatchObject({ status: 201, headers: { 'x-payout': '7' } });
    expect([first, retry].map(({ headers }) => headers['idempotent-replayed'])).toEqual([undefined, 'true']);
    expect(codeOf(await post('k', { body: '{"amount":11}' }))).toBe('idempotency_key_reused');
    expect(paid('k')).toBe(1);
  });

  it('frees the key and takes its statements back when it throws, and stores a refusal that it returns', async () => {
    let answer: TransactionAnswer | undefined;
    const { post, paid, database } = await application(async (idempotency, database) => {
      await idempotency.transaction(() => {
        database.prepare(INSERT).run(idempotency.key);
        if (!answer) throw Object.assign(new Error('no'), { status: 418 });
        return answer;
      });
    });
    expect((await post('k')).status).toBe(418);
    expect([paid('k'), database.isTransaction]).toEqual([0, false]);
    answer = { status: 429, json: { refused: true } };
    expect((await post('k')).status).toBe(429);
    answer = PAID;
    expect(await post('k')).toMatchObject({ status: 429, headers: { 'idempotent-replayed': 'true' } });
    expect(paid('k')).toBe(1);
  });

  it('runs once for duplicates of one process and of others', async () => {
    const file = join(temporaryFolder(), 'payouts.sqlite');
    const [here, there] = [await application(payIn, { file }), await application(payIn, { file })];
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, n) => (n % 2 ? here : there).post(`k-${n % 5}`)),
    );
    expect(new Set(answers.map(({ status, body }) => `${status} ${body}`))).toEqual(
      new Set(['201 {"paid":10}']),
    );
    expect([0, 1, 2, 3, 4].map((n) => here.paid(`k-${n}`))).toEqual([1, 1, 1, 1, 1]);
  });

  it('lets no statement of another request into its transaction', async () => {
    const others: unknown[] = [];
    const { post, paid } = await application(async (idempotency, database) => {
      // Continues in the first microtask that runs, and would be rolled back with the transaction.
      void Promise.resolve().then(() => others.push(database.isTransaction));
      await idempotency.transaction(() => {
        void Promise.resolve().then(() => others.push(database.isTransaction));
        throw Object.assign(new Error('no'), { status: 418 });
      });
    });
    expect((await post('k')).status).toBe(418);
    expect([others, paid('k')]).toEqual([[false, false], 0]);
  });

  it.each<[name: string, work: (database: DatabaseSync) => unknown]>([
    [
      'an asynchronous function',
      async (database) => {
        // Goes on when the transaction has ended.
        await undefined;
        database.prepare(INSERT).run('k');
        return PAID;
      },
    ],
    [
      'a nested transaction',
      (database) => {
        database.prepare(INSERT).run('k');
        database.exec('BEGIN');
        return PAID;
      },
    ],
    [
      'an error for which SQLite itself rolls back',
      (database) => {
        database.exec('CREATE TABLE names (name TEXT UNIQUE ON CONFLICT ROLLBACK)');
        database.exec("INSERT INTO payouts VALUES ('k'); INSERT INTO names VALUES ('a'), ('a')");
        return PAID;
      },
    ],
    [
      'an answer that cannot be sent',
      (database) => {
        database.prepare(INSERT).run('k');
        return { status: 99 };
      },
    ],
  ])('refuses %s, and frees the key', async (_, work) => {
    let isFixed = false;
    const { post, paid } = await application(async (idempotency, database) =>
      isFixed ? payIn(idempotency, database) : void (await idempotency.transaction(work as never)),
    );
    expect([(await post('k')).status, paid('k')]).toEqual([500, 0]);
    isFixed = true;
    expect([(await post('k')).status, paid('k')]).toEqual([201, 1]);
  });

  it('throws the violation of a deferred foreign key, which COMMIT notices, and frees the key', async () => {
    let violated: unknown;
    const setting = `CREATE TABLE accounts (id INTEGER PRIMARY KEY);
      CREATE TABLE entries (account INTEGER REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)`;
    const { post, paid } = await application(
      async (idempotency, database) => {
        const work = idempotency.transaction(() => {
          database.prepare(INSERT).run(idempotency.key);
          if (!violated) database.exec('INSERT INTO entries VALUES (99)');
          return PAID;
        });
        await work.catch((error) => {
          violated = error;
          throw error;
        });
      },
      { setting },
    );
    expect([(await post('k')).status, paid('k')]).toEqual([500, 0]);
    expect(violated).toMatchObject({ message: 'FOREIGN KEY constraint failed' });
    expect([(await post('k')).status, paid('k')]).toEqual([201, 1]);
  });

  it('is in doubt, and is not paid again, if the function returns a promise, because it goes on', async () => {
    const pay = async (key: string, database: DatabaseSync) => {
      await undefined;
      database.prepare(INSERT).run(key);
      return PAID;
    };
    const { post, paid } = await application(async (idempotency, database) => {
      await idempotency.transaction(() => pay(idempotency.key, database) as never);
    });
    expect((await post('k')).status).toBe(502);
    expect(codeOf(await post('k'))).toBe('outcome_unknown');
    expect(paid('k')).toBe(1);
  });

  it('is in doubt, and is not paid again, if the function ends the transaction itself', async () => {
    const ends: Record<string, [before: string, after: string, paid: number]> = {
      COMMIT: ['', 'COMMIT', 1],
      'COMMIT and BEGIN': ['', 'COMMIT; BEGIN', 1],
      // From here on, each statement is committed at once.
      ROLLBACK: ['ROLLBACK', '', 1],
      'ROLLBACK, and an error': ['ROLLBACK', '', 1],
      'ROLLBACK, and COMMIT': ['ROLLBACK', 'COMMIT', 1],
      'ROLLBACK and BEGIN': ['ROLLBACK; BEGIN', '', 0],
    };
    let runs = 0;
    const { post, paid } = await application(async (idempotency, database) => {
      const { key } = idempotency;
      const [before = '', after = ''] = ends[key] ?? [];
      await idempotency.transaction(() => {
        runs++;
        database.exec(before);
        database.prepare(INSERT).run(key);
        database.exec(after);
        if (key.endsWith('error')) throw new Error('broken');
        return PAID;
      });
    });
    for (const [key, [, , times]] of Object.entries(ends)) {
      expect([key, (await post(key)).status]).toEqual([key, 502]);
      expect(codeOf(await post(key))).toBe('outcome_unknown');
      expect([key, paid(key)]).toEqual([key, times]);
    }
    expect(runs).toBe(Object.keys(ends).length);
  });

  it('is in doubt if the function ends the transaction, and another process then holds the database for long', async () => {
    const { post, paid, database } = await application(async (idempotency, database) => {
      await idempotency.transaction(() => {
        database.exec('ROLLBACK');
        database.prepare(INSERT).run('k');
        other.exec('BEGIN IMMEDIATE');
        setTimeout(() => other.exec('ROLLBACK'), LONGER_THAN_A_COMMAND_MS);
        return PAID;
      });
    });
    const other = new DatabaseSync(database.location() as string);
    onTestFinished(() => other.close());
    expect((await post('k')).status).toBe(502);
    expect(codeOf(await post('k'))).toBe('outcome_unknown');
    expect(paid('k')).toBe(1);
  });

  it.each(['BEGIN', 'SAVEPOINT own'])(
    'refuses a connection that is in a transaction of the application (%s)',
    async (begin) => {
      const { post, paid } = await application(async (idempotency, database) => {
        database.exec(begin);
        try {
          await payIn(idempotency, database);
        } finally {
          database.exec('ROLLBACK');
        }
      });
      expect([(await post('k')).status, paid('k')]).toEqual([500, 0]);
    },
  );

  it('answers 503 while the application has a transaction open elsewhere, and executes the retry', async () => {
    const { post, paid, database } = await application(payIn);
    const other = new DatabaseSync(database.location() as string);
    onTestFinished(() => other.close());
    other.exec('BEGIN IMMEDIATE');
    expect(codeOf(await post('k'))).toBe('store_unavailable');
    other.exec('ROLLBACK');
    expect([(await post('k')).status, paid('k')]).toEqual([201, 1]);
  });

  it('keeps the answer as long as that of a key in doubt, if its merchant was told meanwhile that the outcome is unknown', async () => {
    const ended = Promise.withResolvers<void>();
    const handler: Handler = (...of) => payIn(...of).finally(ended.resolve);
    const { post, paid, database } = await application(handler, { timeoutMs: 200, waitMs: 0 });
    const other = new DatabaseSync(database.location() as string);
    onTestFinished(() => other.close());
    other.exec('BEGIN IMMEDIATE');
    expect(codeOf(await post('told'))).toBe('outcome_unknown');
    other.exec('ROLLBACK');
    await ended.promise;
    const kept = database.prepare(
      'SELECT expires_at - (SELECT observed_at FROM oncegate_store) AS ms FROM oncegate_records',
    );
    expect([paid('told'), Math.round(Number(kept.get()?.ms) / 86_400_000)]).toEqual([1, 30]);
  });

  it('stores no Content-Length and no Content-Encoding of its answer, and a field of the answer replaces one that was set', async () => {
    const headers = { 'Content-Length': '99', 'content-encoding': 'gzip', 'X-Payout': '7' };
    const { post } = await application(async (idempotency, _, res) => {
      res.setHeader('X-Payout', '6').setHeader('X-Set', 'too');
      await idempotency.transaction(() => ({ ...PAID, headers }));
    });
    for (const answer of [await post('k'), await post('k')]) {
      expect([answer.status, answer.json()]).toEqual([201, { paid: 10 }]);
      expect(answer.headers).toMatchObject({ 'x-payout': '7', 'x-set': 'too' });
      expect(answer.headers['content-encoding']).toBeUndefined();
    }
  });

  it('answers 503 after the application has set a journal_mode with which a crash damages the database', async () => {
    const { post, paid, database } = await application(payIn);
    database.exec('PRAGMA journal_mode = MEMORY');
    expect([codeOf(await post('k')), paid('k')]).toEqual(['store_unavailable', 0]);
    database.exec('PRAGMA journal_mode = DELETE');
    expect([(await post('k')).status, paid('k')]).toEqual([201, 1]);
  });

  it('is answered by its first transaction, which waits for the database, if the handler begins a second one, which is refused', async () => {
    let refusal: unknown;
    const { post, paid, database } = await application(async (...of) => {
      const other = new DatabaseSync(database.location() as string);
      other.exec('BEGIN IMMEDIATE');
      void payIn(...of);
      refusal = await payIn(...of).catch((error: unknown) => error);
      // The handler has answered by then.
      setImmediate(() => other.close());
      return { status: 422 };
    });
    expect([(await post('k')).status, paid('k')]).toEqual([201, 1]);
    expect(refusal).toMatchObject({ name: 'TypeError' });
  });

  it('leaves its answer whole, and the connection open, when the handler fails after it', async () => {
    const database = openDatabase();
    const store = await sqliteStore({ database });
    onTestFinished(() => store.close());
    const failed = Promise.withResolvers<void>();
    const { post } = await embed(
      (app, protect) => {
        // As compression and sessions do: the answer ends later than its head.
        app.use((_req, res, next) => {
          const { end } = res;
          res.end = ((...args: Parameters<typeof end>) => {
            res.writeHead(res.statusCode);
            void failed.promise.then(() => setTimeout(() => end.apply(res, args), 20));
            return res;
          }) as typeof res.end;
          next();
        });
        app.post('/payouts', protect, (req, res, next) => {
          payIn(req.idempotency as Idempotency, database).then(async () => {
            await until(() => res.headersSent);
            next(new Error('the mail was not sent'));
            failed.resolve();
          }, next);
        });
      },
      { store, transactional: true },
    );
    const first = await post('k');
    expect([first.status, first.json()]).toEqual([201, { paid: 10 }]);
  });

  it('answers 503 for a handler that answers with success and has committed nothing', async () => {
    const { post, paid } = await application(async (idempotency, database) =>
      paid('k') === 0 ? { status: 201 } : payIn(idempotency, database),
    );
    expect((await post('k')).status).toBeGreaterThanOrEqual(500);
  });

  it('executes in the other form too, on the same store', async () => {
    const { post, paid } = await application(
      async (idempotency, database) => {
        database.prepare(INSERT).run(idempotency.key);
        return { status: 201 };
      },
      { transactional: false },
    );
    const [first, retry] = [await post('k'), await post('k')];
    expect([first.status, retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 201, 'true']);
    expect(paid('k')).toBe(1);
  });

  it.each(['PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF', 'PRAGMA synchronous = NORMAL'])(
    'survives a power cut, whatever the application has set, and leaves it as it was, or NORMAL if it was OFF (%s)',
    async (setting) => {
      const level = (database: DatabaseSync) =>
        Object.values(database.prepare('PRAGMA synchronous').get() ?? {})[0];
      const levels: unknown[] = [];
      const { post, database } = await application(
        async (idempotency, database) => {
          database.exec(setting);
          levels.push(level(database));
          await idempotency.transaction(() => {
            levels.push(level(database));
            return PAID;
          });
        },
        { setting },
      );
      expect((await post('k')).status).toBe(201);
      expect(levels).toEqual(setting.includes('OFF') ? [0, 2] : [1, 3]);
      // With OFF, a later commit of the application could lose the record.
      expect(level(database)).toBe(1);
    },
  );
});

it('sqliteStore refuses a database that it cannot protect', async () => {
  const memory = new DatabaseSync(':memory:');
  await expect(sqliteStore({ database: memory })).rejects.toThrow(/is no file/);
  for (const options of [{}, { returnArrays: true }]) {
    const unsafe = openDatabase(undefined, options);
    unsafe.exec('PRAGMA journal_mode = MEMORY');
    await expect(sqliteStore({ database: unsafe })).rejects.toThrow(/journal_mode is memory/);
  }
  const wide = new DatabaseSync(join(temporaryFolder(), 'payouts.sqlite'));
  onTestFinished(() => wide.close());
  wide.exec("PRAGMA encoding = 'UTF-16'; CREATE TABLE payouts (key TEXT)");
  await expect(sqliteStore({ database: wide })).rejects.toThrow(/its texts are UTF-16/);
  const other = openDatabase();
  await (await sqliteStore({ database: other })).close();
  for (const format of [STORE_FORMAT - 1, STORE_FORMAT + 1]) {
    other.exec(`UPDATE oncegate_store SET format = ${format}`);
    await expect(sqliteStore({ database: other })).rejects.toThrow(`has schema version ${format}`);
  }
  const both: SqliteStoreOptions = { path: temporaryFolder(), database: other };
  await expect(sqliteStore(both)).rejects.toThrow(/path: does not go with database/);
  const options = { store: await sqliteStore({ path: temporaryFolder() }), transactional: true };
  onTestFinished(() => options.store.close());
  expect(() => idempotency(options)).toThrow(/needs the store of postgresStore, or of sqliteStore/);
});
