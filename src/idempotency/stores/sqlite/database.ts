import { accessSync, closeSync, constants, existsSync, openSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { makeFolder } from '../../../kernel/folder.ts';
import { StoreUnavailable } from '../../store.ts';

/** Goes up with every change that an older gateway would misread. */
export const SCHEMA_VERSION = 2;

/** Pages in the WAL at which the writer moves them into the database file. */
export const CHECKPOINT_PAGES = 1000;
/** A WAL that grew while a long read kept it from being reused is cut back to this. */
const LARGEST_IDLE_WAL_BYTES = 64 * 1024 * 1024;

/**
 * The columns are for people too: `select … from records where state = 'in_doubt'` in the `sqlite3` shell answers what an
 * operator asks. Columns that end in `_ms` are durations or, with `at`, Unix times for people; `alive_at` and `expires_at`
 * are running times (see running-time.ts). No column has a constraint on its content: readers check every value
 * themselves, because a disk may damage what a constraint let in.
 *
 * A table with rowid, because scopes are digests: in a table ordered by scope every write changes another page.
 */
const TABLES = `
  CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    scope BLOB NOT NULL UNIQUE,
    state TEXT,
    token BLOB,
    fingerprint BLOB,
    merchant TEXT,
    operation TEXT,
    idempotency_key TEXT,
    request_id TEXT,
    gateway_id TEXT,
    encryption_key_id TEXT,
    created_at_ms INTEGER,
    changed_at_ms INTEGER,
    lease_ms INTEGER,
    retention_ms INTEGER,
    in_doubt_retention_ms INTEGER,
    was_in_doubt INTEGER,
    owner_gave_up INTEGER,
    alive_at INTEGER,
    expires_at INTEGER,
    status INTEGER,
    headers TEXT,
    body BLOB
  );
  CREATE INDEX records_open ON records (id) WHERE state <> 'completed';
  CREATE INDEX records_expiry ON records (expires_at);
  CREATE TABLE voided_tokens (token BLOB PRIMARY KEY, expires_at INTEGER NOT NULL) WITHOUT ROWID;
  CREATE INDEX voided_tokens_expiry ON voided_tokens (expires_at);
  CREATE TABLE audit (
    id INTEGER PRIMARY KEY,
    scope BLOB NOT NULL,
    at_ms INTEGER NOT NULL,
    resolved_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    from_state TEXT NOT NULL,
    merchant TEXT NOT NULL,
    operation TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    request_id TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    changed_at_ms INTEGER NOT NULL,
    resolved_as TEXT NOT NULL,
    kind TEXT,
    status INTEGER,
    expires_at INTEGER NOT NULL
  );
  CREATE INDEX audit_scope ON audit (scope);
  CREATE INDEX audit_expiry ON audit (expires_at);
  CREATE TABLE clock (
    id INTEGER PRIMARY KEY,
    boot BLOB,
    offset_ms REAL,
    boot_began_at INTEGER,
    observed_at INTEGER
  );
  CREATE TABLE probe (id INTEGER PRIMARY KEY, content BLOB);
  PRAGMA user_version = ${SCHEMA_VERSION};
`;

/**
 * The writer's connection. Makes the tables if the file is new.
 *
 * Throws SQLITE_BUSY while another process opens the same new file; the caller tries again. SQLite's own time limit does not
 * cover the change of the journal mode, and its waiting starves some processes.
 */
export function openForWriting(file: string): DatabaseSync {
  const database = new DatabaseSync(file, { timeout: 0 });
  try {
    database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL');
    database.exec(`PRAGMA wal_autocheckpoint = ${CHECKPOINT_PAGES}`);
    database.exec(`PRAGMA journal_size_limit = ${LARGEST_IDLE_WAL_BYTES}`);
    if (versionOf(database) === 0) makeTables(database);
    const version = versionOf(database);
    if (version !== SCHEMA_VERSION)
      throw new StoreUnavailable(
        `${file} has schema version ${version}, and this gateway knows version ${SCHEMA_VERSION}: use the gateway that wrote it, or configure another path`,
        { maybeWritten: false },
      );
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

/** How long the main thread waits, before it serves, for a process that recovers the database. */
const OPEN_FOR_READING_WITHIN_MS = 1000;

/** The main thread's connection: once it is open, it never waits for a lock, and it cannot write. */
export function openForReading(file: string): DatabaseSync {
  const database = new DatabaseSync(file, { timeout: OPEN_FOR_READING_WITHIN_MS });
  database.exec('PRAGMA query_only = ON; SELECT count(*) FROM sqlite_schema; PRAGMA busy_timeout = 0');
  return database;
}

function makeTables(database: DatabaseSync): void {
  database.exec('BEGIN IMMEDIATE');
  try {
    // Another process may have made them since.
    if (versionOf(database) === 0) {
      const { others } = database.prepare('SELECT count(*) AS others FROM sqlite_schema').get() as {
        others: number;
      };
      if (others > 0)
        throw new StoreUnavailable('the database has tables of another application', {
          maybeWritten: false,
        });
      database.exec(TABLES);
    }
    database.exec('COMMIT');
  } catch (error) {
    if (database.isTransaction) database.exec('ROLLBACK');
    throw error;
  }
}

const versionOf = (database: DatabaseSync): number =>
  (database.prepare('PRAGMA user_version').get() as { user_version: number }).user_version;

/** SQLite's primary result code, or 0 for an error that does not come from SQLite. */
export function resultCodeOf(error: unknown): number {
  const { errcode } = error as { errcode?: number };
  return (errcode ?? 0) & 0xff;
}

export const SQLITE_BUSY = 5;

export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/**
 * Makes the folder and the file if they are missing, for this user only.
 *
 * An existing file is not opened here: closing a descriptor drops all POSIX locks that the process holds on the file,
 * SQLite's included.
 */
export function prepareFiles(folder: string): string {
  if (existsSync(join(folder, 'data.mdb')))
    throw new StoreUnavailable(
      `${folder} holds an LMDB store, which this version cannot read: move the folder away, or configure another store.path`,
      { maybeWritten: false },
    );
  makeFolder(folder);
  const file = join(folder, 'records.db');
  try {
    // SQLite gives its other files the mode of this one.
    closeSync(openSync(file, 'wx', 0o600));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  // On a read-only file SQLite would open, and could never write again, even if the file became writable later.
  for (const path of [folder, file]) accessSync(path, constants.W_OK);
  return file;
}

/** SQLite's files, and which ones they were when the database was opened. */
export class Identity {
  readonly #files: { path: string; inode: string }[];

  constructor(file: string) {
    this.#files = [file, `${file}-wal`, `${file}-shm`].map((path) => ({ path, inode: inodeOf(path) }));
  }

  /** @throws if a path does not name its file any more: what was written there would be lost to all other processes */
  check(): void {
    for (const { path, inode } of this.#files) {
      if (inodeOf(path) !== inode)
        throw new Error(
          `${path} was removed or replaced while the gateway used it: put the file back, or restart the gateway`,
        );
    }
  }
}

/** By stat, never by opening the file. */
function inodeOf(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat ? `${stat.dev}:${stat.ino}` : 'none';
}
