/** Transactions of handlers on a server with a synchronous standby. */
import { beforeAll, expect, it, onTestFinished } from 'vitest';
import { postgresStore } from '../../../src/index.ts';
import { type PostgresServer, startPostgres, startStandby } from '../../support/postgres-server.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';
import { embed } from './embedded.ts';

const CONNECTIONS = 3;

let primary: PostgresServer;
let standby: PostgresServer;

beforeAll(async () => {
  primary = await startPostgres({ fsync: 'off' });
  standby = await startStandby(primary, { fsync: 'off' });
  await primary.set({ synchronous_standby_names: '*' });
  const { admin } = primary;
  await until(
    async () => (await admin.query("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'")).rowCount,
  );
  await admin.query('CREATE TABLE payouts (key text)');
});

it('a standby that is away keeps transactions from being answered, and none is paid twice or lost when it is back', async () => {
  const { admin } = primary;
  const store = await postgresStore({ url: primary.url, timeoutMs: 500, maxTransactions: CONNECTIONS });
  onTestFinished(() => store.close());
  const { post } = await embed(
    (app, protect) =>
      app.post('/payouts', protect, async (req) => {
        await req.idempotency?.transaction(async (client) => {
          await client.query('INSERT INTO payouts VALUES ($1)', [req.idempotency?.key]);
          return { status: 201, json: {} };
        });
      }),
    { store, transactional: true, completeRetryMs: 200, waitMs: 0 },
  );
  expect((await post('before')).status).toBe(201);
  const keys = ['cancelled', 'k-1', 'k-2', 'k-3', 'k-4'];
  standby.freeze();
  const [cancelled, ...others] = keys.map((key) => post(key));
  const waits = `SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'`;
  await until(async () => (await admin.query(waits)).rowCount === CONNECTIONS);
  // What is visible then is not on the standby, so it is not answered either.
  await admin.query(`SELECT pg_cancel_backend(pid) FROM (${waits} LIMIT 1) waiting`);
  const answers = await Promise.all([cancelled, ...others]);
  const codes = answers.map((answer) => answer && codeOf(answer));
  expect(new Set(codes)).toEqual(new Set(['request_in_flight', 'store_unavailable']));
  const backends = `SELECT FROM pg_stat_activity WHERE datname = 'postgres' AND application_name = 'oncegate'`;
  const before = (await admin.query(backends)).rowCount as number;
  await Promise.all(['k-5', 'k-6', 'k-7'].map((key) => post(key)));
  expect((await admin.query(backends)).rowCount).toBeLessThanOrEqual(before);
  standby.thaw();
  for (const key of [...keys, 'k-5', 'k-6', 'k-7']) await until(async () => (await post(key)).status === 201);
  const { rows } = await admin.query(
    'SELECT key, count(*)::int AS n FROM payouts GROUP BY key HAVING count(*) > 1',
  );
  expect(rows).toEqual([]);
  expect((await admin.query('SELECT DISTINCT key FROM payouts')).rowCount).toBe(9);
  expect(
    (await admin.query("SELECT FROM oncegate.records WHERE state IN ('executing', 'in_doubt')")).rowCount,
  ).toBe(0);
});

it('a COMMIT of the handler itself that waits for the standby leaves no key free, although the handler throws', async () => {
  const { admin } = primary;
  const store = await postgresStore({ url: primary.url, timeoutMs: 500, leaseMs: 1000 });
  onTestFinished(() => store.close());
  const { post } = await embed(
    (app, protect) =>
      app.post('/payouts', protect, async (req) => {
        await req.idempotency?.transaction(async (client) => {
          await client.query('INSERT INTO payouts VALUES ($1)', [req.idempotency?.key]);
          client.query('COMMIT').catch(() => {});
          throw new Error('no');
        });
      }),
    { store, transactional: true, completeRetryMs: 200 },
  );
  standby.freeze();
  // The COMMIT may take effect as soon as the standby is back.
  expect((await post('own')).status).toBe(409);
  standby.thaw();
  await until(async () => codeOf(await post('own')) === 'outcome_unknown');
  expect((await admin.query("SELECT FROM payouts WHERE key = 'own'")).rowCount).toBe(1);
});
