/**
 * An Express application that pays in transactions of PostgreSQL, and that is killed in the middle. Argument: the server's address.
 * Prints its port.
 */
import { createServer } from 'node:http';
import express from 'express';
import pg from 'pg';
import { idempotency, postgresStore } from '../../../src/index.ts';
import type { SqlClient } from '../../../src/store/register.ts';

const [url = ''] = process.argv.slice(2);
const store = await postgresStore({ url, timeoutMs: 5000 });
const protect = idempotency({ store, merchant: () => 'M-ALPHA', transactional: true });
const pool = new pg.Pool({ connectionString: url });
pool.on('error', () => {});

async function pay(client: SqlClient, key: string) {
  // Most of the time passes in the middle of the transaction.
  await client.query(`SELECT pg_sleep(${Math.random() * 0.02})`, []);
  const paid = await client.query('INSERT INTO payouts (key) VALUES ($1) RETURNING number', [key]);
  await client.query(`SELECT pg_sleep(${Math.random() * 0.02})`, []);
  const { rows } = paid as { rows: { number: string }[] };
  return { status: 201, json: { number: rows[0]?.number } };
}

const app = express();
// With PostgreSQL's client of the package, and with a transaction of the application's own.
app.post('/transaction', protect, async (req) => {
  const { transaction, key } = req.idempotency as NonNullable<typeof req.idempotency>;
  await transaction((client) => pay(client, key));
});
app.post('/own', protect, async (req, res) => {
  const { startIn, completeIn, key } = req.idempotency as NonNullable<typeof req.idempotency>;
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    await startIn(client);
    await completeIn(client, await pay(client, key));
    await client.query('COMMIT');
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  } finally {
    client.release();
  }
  res.end();
});
app.use((_error: Error, _req: express.Request, res: express.Response, _next: express.NextFunction) => {
  res.status(500).end();
});
const server = createServer(app).listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as { port: number }).port}\n`);
});
