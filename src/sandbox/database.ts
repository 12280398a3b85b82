import { DatabaseSync, type SQLOutputValue, type StatementSync } from 'node:sqlite';
import { SCHEMA, SCHEMA_VERSION } from './schema.ts';

export type { DatabaseSync, StatementSync };

export type Row = Record<string, SQLOutputValue>;

/** How long a writer waits for another process's transaction before it gives up. */
const BUSY_TIMEOUT_MS = 10_000;

const SQLITE_BUSY = 5;

/** Opens the database at `path` (a file or `:memory:`), creating it where there is none. */
export function openDatabase(path: string): DatabaseSync {
  let database: DatabaseSync | undefined;
  try {
    database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS, enableForeignKeyConstraints: true });
    prepare(database);
    return database;
  } catch (error) {
    database?.close();
    throw explained(path, error);
  }
}

function prepare(database: DatabaseSync): void {
  useWriteAheadLog(database);
  // In WAL mode NORMAL survives a killed process, which is what the sandbox promises; only a power cut could
  // take the last commits.
  database.exec('PRAGMA synchronous = NORMAL');
  inTransaction(database, () => createSchema(database));
}

/**
 * Switching to WAL does not honour the busy timeout, so two processes opening a new file at once would
 * collide.
 */
function useWriteAheadLog(database: DatabaseSync): void {
  const deadline = performance.now() + BUSY_TIMEOUT_MS;
  for (;;) {
    try {
      database.exec('PRAGMA journal_mode = WAL');
      return;
    } catch (error) {
      if (!isBusy(error) || performance.now() > deadline) throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

function createSchema(database: DatabaseSync): void {
  const version = Number(database.prepare('PRAGMA user_version').get()?.user_version);
  if (version === SCHEMA_VERSION) return;
  if (version !== 0) throw new Error(`the file has ledger version ${version}, this is ${SCHEMA_VERSION}`);
  database.exec(SCHEMA);
}

/** IMMEDIATE takes the write lock before the first read: what `work` reads cannot change before it writes. */
export function inTransaction<T>(database: DatabaseSync, work: () => T): T {
  database.exec('BEGIN IMMEDIATE');
  try {
    const result = work();
    database.exec('COMMIT');
    return result;
  } catch (error) {
    if (database.isTransaction) database.exec('ROLLBACK');
    throw error;
  }
}

function isBusy(error: unknown): boolean {
  // The lower byte is the primary code; the upper ones only say which kind of busy it was.
  return ((error as { errcode?: number }).errcode ?? 0) % 256 === SQLITE_BUSY;
}

function explained(path: string, error: unknown): Error {
  const { code, message } = error as NodeJS.ErrnoException;
  const explanation = new Error(`sandbox: cannot open the ledger at ${path}: ${message}`, { cause: error });
  return Object.assign(explanation, code === undefined ? {} : { code });
}
