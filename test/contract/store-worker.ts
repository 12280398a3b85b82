import { DatabaseSync } from 'node:sqlite';
import type { Store } from '../../src/ledger/ledger.ts';
import { databaseOf, openStore, type SqlitePlace, type StorePlace } from '../support/open-store.ts';
import { newRequest, paid } from '../support/requests.ts';

/** A task that a worker process does with a store. */
export type Work =
  /** Starts and completes one key after the other on each lane, and reports each answer, until it is killed. */
  | { kind: 'ledger'; lanes: number }
  /** Opens and closes the store repeatedly. */
  | { kind: 'reopen' }
  /** Stops within a write transaction of SQLite, until SIGCONT; then it rolls back and ends. */
  | { kind: 'stop_within_transaction' };

/** Leaves every third key executing. The request ids are the keys, so that the parent process knows them. */
async function ledger(store: Store, lane: number): Promise<void> {
  for (let number = 0; ; number++) {
    const key = `${lane}-${number}`;
    const request = newRequest({ key, requestId: key });
    const { kind } = await store.start(request);
    say(kind, key);
    if (kind !== 'started' || number % 3 === 0) continue;
    say(`complete ${await store.complete(request, paid(key))}`, key);
  }
}

async function reopen(place: StorePlace): Promise<never> {
  for (;;) {
    const store = await openStore(place);
    say('opened');
    await store.close();
  }
}

function stopWithinTransaction(place: SqlitePlace): void {
  const database = new DatabaseSync(databaseOf(place));
  database.exec('PRAGMA busy_timeout = 10000');
  database.exec('BEGIN IMMEDIATE');
  say('stops');
  process.kill(process.pid, 'SIGSTOP');
  database.exec('ROLLBACK');
  database.close();
}

/** Standard output is a pipe, and Node writes to pipes synchronously, so every line that was written before a kill arrives. */
function say(word: string, about: unknown = null): void {
  process.stdout.write(`${JSON.stringify([word, about])}\n`);
}

const { place, work } = JSON.parse(process.argv[2] ?? '') as { place: StorePlace; work: Work };
// The parent process is gone.
process.stdin.resume().once('end', () => process.exit());

if (work.kind === 'reopen') await reopen(place);
if (work.kind === 'stop_within_transaction') {
  stopWithinTransaction(place as SqlitePlace);
  process.exit();
}
const store = await openStore(place);
if (work.kind === 'ledger')
  await Promise.all(Array.from({ length: work.lanes }, (_, lane) => ledger(store, lane)));
