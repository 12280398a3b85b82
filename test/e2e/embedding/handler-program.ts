/**
 * An Express application that pays by itself, in its own SQLite database, and that can be killed in the handler.
 * Arguments: the folder of the store, the file of the database, and the version of Express. Prints its port.
 */
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { DatabaseSync } from 'node:sqlite';
import type express5 from 'express';
import { type Idempotency, idempotency, sqliteStore } from '../../../src/index.ts';

const [folder = '', file = '', version = 'express'] = process.argv.slice(2);
const express = createRequire(import.meta.url)(version) as typeof express5;
const payouts = new DatabaseSync(file, { timeout: 5000 });
payouts.exec('CREATE TABLE IF NOT EXISTS payouts (merchant TEXT, key TEXT, amount REAL)');
const store = await sqliteStore({ path: folder, leaseMs: 2000, timeoutMs: 5000 });
const protect = idempotency({
  store,
  merchant: (req) => String(req.headers['x-tenant']),
  timeoutMs: 2000,
});
const app = express();
app.post('/payouts', protect, express.json(), (req, res) => {
  const { key = '', merchant = '' } = (req as { idempotency?: Idempotency }).idempotency ?? {};
  if (req.headers['x-die'] === 'before') process.kill(process.pid, 'SIGKILL');
  payouts.prepare('INSERT INTO payouts VALUES (?, ?, ?)').run(merchant, key, req.body.amount);
  if (req.headers['x-die'] === 'after') process.kill(process.pid, 'SIGKILL');
  res.status(201).json({ paid: req.body.amount });
});
app.post('/rejects', protect, async () => {
  throw new Error('the bank is away');
});
app.post('/passes-on', protect, (_req, _res, next) => {
  Promise.reject(new Error('the bank is away')).catch(next);
});
const server = createServer(app).listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as { port: number }).port}\n`);
});
