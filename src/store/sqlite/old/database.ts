import { accessSync, closeSync, constants, openSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync, type StatementSync } from 'node:sqlite';
import { makeFolder } from '../../../lib/folder.ts';
import { OtherFormat, STORE_FORMAT, StoreUnavailable } from '../../contract.ts';

/**
 * Makes the folder and the database file if they are missing, readable and writable by this user only.
 *
 * An existing file must not be opened here. Closing its descriptor would drop all POSIX locks that this process holds on the
 * file, SQLite's included.
 */
export function prepareFiles(folder: string): string {
  makeFolder(folder);
  const file = join(folder, 'records.db');
  try {
    // SQLite creates its -wal and -shm files with the mode of this file.
    closeSync(openSync(file, 'wx', 0o600));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  // SQLite would open a read-only file, and that connection could never write, even if the file became writable later.
  for (const path of [folder, file]) accessSync(path, constants.W_OK);
  return file;
}

/** The device and inode numbers of SQLite's files at the time when the database was opened. */
export class FileIdentity {
  readonly #files: { path: string; inode: string }[];

  constructor(file: string) {
    this.#files = [file, `${file}-wal`, `${file}-shm`].map((path) => ({ path, inode: inodeOf(path) }));
  }

  /** @throws if a path names another file now: other processes would never see what this process writes to the old one */
  check(): void {
    for (const { path, inode } of this.#files) {
      if (inodeOf(path) !== inode)
        throw new Error(
          `${path} was removed or replaced while the gateway used it: put the file back, or restart the gateway`,
        );
    }
  }
}

/** Uses stat, because opening and closing the file would drop SQLite's locks. */
function inodeOf(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat ? `${stat.dev}:${stat.ino}` : 'none';
}

/** @throws {OtherFormat} if the database has another schema than this version reads and writes */
export function refuseOtherSchema(file: string, found: number): void {
  if (found === STORE_FORMAT) return;
  throw new OtherFormat(
    `${file} has schema version ${found}, and this gateway knows version ${STORE_FORMAT}: use a gateway version that knows it, or configure another store.path, but then the keys of this file can be paid again`,
  );
}

/** The writer moves the pages of the WAL into the database file when the WAL has this many. */
const CHECKPOINT_PAGES = 1000;
/** A WAL grows while a long read keeps SQLite from reusing it. Afterwards SQLite truncates it to this size. */
const LARGEST_IDLE_WAL_BYTES = 64 * 1024 * 1024;

/**
 * Operators read the columns in the `sqlite3` shell: `select … from records where state = 'in_doubt'`. Columns that end in
 * `at_ms` are Unix times, shown to people; other columns that end in `_ms` are durations. `alive_at` and `expires_at` are
 * running times in milliseconds (see running-time.ts).
 *
 * The columns of `records` have no constraints on their content. Readers check every value, because a disk can damage a
 * value after a constraint has accepted it.
 *
 * `records` is ordered by a row number and not by scope. Scopes are digests, so in a table ordered by scope every insert
 * would change another page.
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
  PRAGMA user_version = ${STORE_FORMAT};
`;

/** One row: the store's mark (see `StoreMark`), and until which running time each mode counts as in use. */
const MARK_TABLE = `
  CREATE TABLE IF NOT EXISTS mark (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store TEXT NOT NULL,
    marks INTEGER NOT NULL,
    protect_until INTEGER NOT NULL,
    observe_until INTEGER NOT NULL
  )`;

/** How many resolutions there were, by what they said and through what they came (see `ResolutionCount`). */
const RESOLUTIONS_TABLE = `
  CREATE TABLE IF NOT EXISTS resolutions (
    resolved_as TEXT NOT NULL,
    source TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (resolved_as, source)
  ) WITHOUT ROWID`;

/**
 * Opens the writer's connection, and makes the tables if the file is new.
 *
 * Throws SQLITE_BUSY while another process opens the same new file, and the caller tries again. SQLite's own busy timeout is
 * off, because it does not cover the change of the journal mode, and because it starves some of the waiting processes.
 */
export function openForWriting(file: string): DatabaseSync {
  const database = new DatabaseSync(file, { timeout: 0 });
  try {
    database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL');
    // Overwrites what is removed with zeros, in pages that are written anyway: otherwise expired responses stay in the free
    // space of pages.
    database.exec('PRAGMA secure_delete = FAST');
    database.exec(`PRAGMA wal_autocheckpoint = ${CHECKPOINT_PAGES}`);
    database.exec(`PRAGMA journal_size_limit = ${LARGEST_IDLE_WAL_BYTES}`);
    if (versionOf(database) === 0) makeTables(database);
    refuseOtherSchema(file, versionOf(database));
    // Files of the same schema version that an earlier gateway made do not have these. It works with them all the same.
    for (const table of [MARK_TABLE, RESOLUTIONS_TABLE]) database.exec(table);
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

/** How long the main thread waits at start-up for another process that recovers the database. */
const OPEN_FOR_READING_WITHIN_MS = 1000;

/** Opens the main thread's connection. It cannot write, and once open it never waits for a lock. */
export function openForReading(file: string): DatabaseSync {
  const database = new DatabaseSync(file, { timeout: OPEN_FOR_READING_WITHIN_MS });
  database.exec('PRAGMA query_only = ON; SELECT count(*) FROM sqlite_schema; PRAGMA busy_timeout = 0');
  return database;
}

function makeTables(database: DatabaseSync): void {
  inTransaction(database, () => {
    // Another process may have made the tables since the version was read.
    if (versionOf(database) !== 0) return;
    const { others } = database.prepare('SELECT count(*) AS others FROM sqlite_schema').get() as {
      others: number;
    };
    if (others > 0)
      throw new StoreUnavailable('the database has tables of another application', { maybeWritten: false });
    database.exec(TABLES);
  });
}

/** IMMEDIATE takes the write lock before the first read, so that what `work` reads cannot change before it writes. */
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

export const SELECT_VERSION = 'PRAGMA user_version';

export const versionOf = (database: DatabaseSync): number => versionIn(database.prepare(SELECT_VERSION));

/** @param select of {@link SELECT_VERSION} */
export const versionIn = (select: StatementSync): number =>
  (select.get() as { user_version: number }).user_version;

/** SQLite's primary result code. 0: the error does not come from SQLite. */
export function resultCodeOf(error: unknown): number {
  const { errcode } = error as { errcode?: number };
  return (errcode ?? 0) & 0xff;
}

export const SQLITE_BUSY = 5;

export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
