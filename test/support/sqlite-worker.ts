/** A process that makes the calls which its parent writes to standard input, one JSON array a line. */
import { createInterface } from 'node:readline';
import { DatabaseSync } from 'node:sqlite';
import { systemClock } from '../../src/lib/clock.ts';
import type { StoreUnavailable } from '../../src/store/contract.ts';
import { databaseOf, openSqliteStore, type SqliteStoreOptions } from './open-store.ts';
import { newRequest, paid } from './requests.ts';

/** `refused`: why the call was rejected. */
export type Reply = { answer: unknown } | { refused: { message: string; maybeWritten: boolean } };

export interface RemoteRequest {
  key: string;
  requestId: string;
  /** Hexadecimal. */
  token: string;
}

export type RemoteCall =
  | 'start'
  | 'peek'
  | 'complete'
  | 'release'
  | 'health'
  | 'refusing'
  /** Closes the store and opens it again. */
  | 'reopen'
  /** Stops the process within a write transaction, until SIGCONT; then it rolls back. */
  | 'stop';

const options = JSON.parse(process.argv[2] ?? '') as Omit<SqliteStoreOptions, 'clock'>;
const open = () => openSqliteStore({ ...options, clock: systemClock });
let store = await open();

async function make(call: RemoteCall, { key, requestId, token }: RemoteRequest): Promise<unknown> {
  const request = { ...newRequest({ key, requestId }), token: Buffer.from(token, 'hex') as never };
  if (call === 'start' || call === 'peek') return (await store[call](request)).kind;
  if (call === 'complete') return await store.complete(request, paid(key));
  if (call === 'release') return await store.takeBack(request);
  if (call === 'refusing') return store.refusing ?? null;
  if (call === 'health') return await store.health();
  if (call === 'stop') return stopWithinTransaction();
  await store.close();
  store = await open();
  return null;
}

function stopWithinTransaction(): void {
  using database = new DatabaseSync(databaseOf({ kind: 'sqlite', path: options.path }), { timeout: 10_000 });
  database.exec('BEGIN IMMEDIATE');
  process.kill(process.pid, 'SIGSTOP');
  database.exec('ROLLBACK');
}

const say = (id: number, reply: Reply) => process.stdout.write(`${JSON.stringify([id, reply])}\n`);

createInterface(process.stdin)
  .on('line', async (line) => {
    const [id, call, request] = JSON.parse(line) as [number, RemoteCall, RemoteRequest];
    try {
      say(id, { answer: await make(call, request) });
    } catch (error) {
      const { message, maybeWritten } = error as StoreUnavailable;
      say(id, { refused: { message, maybeWritten } });
    }
  })
  .on('close', () => process.exit());
say(0, { answer: 'open' });
