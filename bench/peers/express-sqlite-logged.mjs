// As express-redis-logged.mjs, with Node's SQLite. It checks nothing either: a known key gets what is stored, for every caller and every body.
// Writes that arrive while one commit is under way share the next one, on a thread of their own; questions are asked on the main thread.
// Follows Node's documentation of `node:sqlite` and `node:worker_threads`, SQLite's of WAL, and undici's as named in lib/forward.mjs.
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import express from 'express';
import { folder, host, port } from './lib/environment.mjs';
import { answer, forward, passOn, readBody } from './lib/forward.mjs';
import { logged } from './lib/logged.mjs';
import { answerStored, RUNNING, storedForm } from './lib/stored.mjs';

const database = new DatabaseSync(join(folder, `express-sqlite-logged-${port}.db`));
database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL');
database.exec('CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID');

function write() {
  const insert = database.prepare('INSERT INTO records VALUES (?1, ?2) ON CONFLICT DO NOTHING');
  const update = database.prepare('UPDATE records SET value = ?2 WHERE key = ?1');
  parentPort.on('message', (batch) => {
    database.exec('BEGIN IMMEDIATE');
    const changes = batch.map(([key, value, isNew]) => (isNew ? insert : update).run(key, value).changes);
    database.exec('COMMIT');
    parentPort.postMessage(changes);
  });
}

function serve() {
  const read = database.prepare('SELECT value FROM records WHERE key = ?');
  const writer = new Worker(new URL(import.meta.url));
  let [next, underWay] = [[], []];

  function send() {
    [underWay, next] = [next, []];
    writer.postMessage(underWay.map(({ change }) => change));
  }
  writer.on('message', (changes) => {
    const done = underWay;
    underWay = [];
    if (next.length > 0) send();
    for (const [i, { resolve }] of done.entries()) resolve(changes[i] === 1);
  });
  function set(...change) {
    return new Promise((resolve) => {
      if (next.length === 0 && underWay.length === 0) setImmediate(send);
      next.push({ change, resolve });
    });
  }

  async function once(request, response, body) {
    const key = request.headers['x-service-idempotency'];
    const stored = read.get(key);
    if (stored) return answerStored(response, Buffer.from(stored.value.buffer));
    if (!(await set(key, RUNNING, true))) return answerStored(response, RUNNING);
    forward(request, body, async (received) => {
      await set(key, storedForm(received), false);
      answer(response, received);
    });
  }

  const app = express();
  app.use(logged);
  app.post('/*path', (request, response) => readBody(request, (body) => once(request, response, body)));
  app.use(passOn);
  app.listen(port, host);
}

if (isMainThread) serve();
else write();
