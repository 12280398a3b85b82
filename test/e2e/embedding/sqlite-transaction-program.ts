/**
 * An Express application that pays in transactions of its own SQLite database, and that is killed in the middle. Argument: the file of the
 * database. Prints its port.
 */
import { createServer } from 'node:http';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import { idempotency, sqliteStore } from '../../../src/index.ts';

const [file = ''] = process.argv.slice(2);
const database = new DatabaseSync(file);
const store = await sqliteStore({ database, timeoutMs: 5000 });
const protect = idempotency({ store, merchant: () => 'M-ALPHA', transactional: true });

const never = new Int32Array(new SharedArrayBuffer(4));
const blockFor = (ms: number) => Atomics.wait(never, 0, 0, ms);

function pay(client: DatabaseSync, key: string) {
  // Most of the time passes in the middle of the transaction.
  blockFor(Math.random() * 10);
  const { lastInsertRowid } = client.prepare('INSERT INTO payouts (key) VALUES (?)').run(key);
  blockFor(Math.random() * 10);
  return { status: 201, json: { number: String(lastInsertRowid) } };
}

const app = express();
app.post(['/transaction', '/own'], protect, async (req) => {
  const { transaction, key } = req.idempotency as NonNullable<typeof req.idempotency>;
  await sleep(Math.random() * 10);
  await transaction((client) => pay(client, key));
});
const server = createServer(app).listen(0, '127.0.0.1', () => {
  process.stdout.write(`${(server.address() as { port: number }).port}\n`);
});
