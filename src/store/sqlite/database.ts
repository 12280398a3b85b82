import { accessSync, closeSync, constants, openSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { makeFolder } from '../../lib/files.ts';
import { OtherFormat, STORE_FORMAT, StoreUnavailable } from '../types.ts';

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

/** What the commands of a store need of a connection. */
export type Tables = Pick<DatabaseSync, 'prepare' | 'exec' | 'close'>;

const FILES = ['', '-wal', '-shm'];

/** The device and inode numbers of SQLite's files. Uses stat, because opening and closing a file would drop SQLite's locks. */
export const inodesOf = (file: string): string[] =>
  FILES.map((end) => {
    const stat = statSync(file + end, { throwIfNoEntry: false });
    return stat ? `${stat.dev}:${stat.ino}` : 'none';
  });

/**
 * Of files that were just opened.
 *
 * @throws if the database is mounted without its folder: where it is mounted again, it has another WAL, and neither sees the other's keys
 */
export function inodesOfOpened(file: string): string[] {
  const inodes = inodesOf(file);
  const [device] = (inodes[0] as string).split(':');
  if (inodes.some((inode) => inode !== 'none' && !inode.startsWith(`${device}:`)))
    throw new Error(
      `${file} is on another file system than its WAL: mount its folder, and not the file alone`,
    );
  return inodes;
}

/** @throws if a path names another file now: other processes would never see what this process writes to the old one */
export function checkInodes(file: string, inodes: readonly string[]): void {
  const changed = inodesOf(file).findIndex((inode, i) => inode !== inodes[i]);
  if (changed !== -1)
    throw new Error(
      `${file}${FILES[changed]} was removed or replaced while the gateway used it: put the file back, or restart the gateway`,
    );
}

/** The writer moves the pages of the WAL into the database file when the WAL has this many. */
const CHECKPOINT_PAGES = 1000;
/** A WAL grows while a long read keeps SQLite from reusing it. Afterwards SQLite truncates it to this size. */
const LARGEST_IDLE_WAL_BYTES = 64 * 1024 * 1024;

/**
 * A record is in the columns `record`, as in Redis (codec.ts), `encryption_key_id`, `headers` and `body`. Those before `expires_at`
 * repeat it for operators, who read them in the `sqlite3` shell (`select … from records where state = 'in_doubt'`), and for counts.
 * `created_at_ms` is a Unix time. `expires_at` and columns that end in `until` are running times in milliseconds (see
 * running-time.ts).
 *
 * The columns of `records` have no constraints on their content. Readers check every value, because a disk can damage a
 * value after a constraint has accepted it. `due` is when a row expires, as a number in any case, so that no damaged row is
 * missing in an index.
 *
 * `records` is ordered by a row number and not by record id. Record ids are digests, so in a table ordered by them every insert
 * would change another page. A row is in one of two indexes, because each entry that a payout writes costs time.
 *
 * `store` has one row: the clock (running-time.ts), the store's identity (`mark`, `marks`) with the running times until which each mode
 * counts as in use, and the progress of a copy (`copy_mark`).
 */
export const TABLES = `
  CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    record_id BLOB NOT NULL UNIQUE,
    state TEXT,
    merchant TEXT,
    operation TEXT,
    idempotency_key TEXT,
    cause TEXT,
    created_at_ms INTEGER,
    status INTEGER,
    expires_at INTEGER,
    due INTEGER AS (CAST(ifnull(expires_at, 0) AS INTEGER)) VIRTUAL,
    lease_token BLOB,
    lease_until INTEGER,
    record BLOB,
    encryption_key_id TEXT,
    headers TEXT,
    body BLOB
  );
  CREATE INDEX records_open ON records (due) WHERE state IS NOT 'completed';
  CREATE INDEX records_completed ON records (due) WHERE state = 'completed';
  CREATE TABLE void_tokens (token BLOB PRIMARY KEY, expires_at INTEGER NOT NULL) WITHOUT ROWID;
  CREATE INDEX void_tokens_expiry ON void_tokens (expires_at);
  CREATE TABLE audit (id INTEGER PRIMARY KEY, record_id BLOB NOT NULL, entry TEXT NOT NULL, expires_at INTEGER NOT NULL);
  CREATE INDEX audit_record ON audit (record_id);
  CREATE INDEX audit_expiry ON audit (expires_at);
  CREATE TABLE resolutions (
    resolved_as TEXT NOT NULL,
    source TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (resolved_as, source)
  ) WITHOUT ROWID;
  CREATE TABLE store (
    boot BLOB,
    offset_ms REAL,
    observed_at INTEGER,
    mark TEXT,
    marks INTEGER NOT NULL,
    protect_until INTEGER NOT NULL,
    observe_until INTEGER NOT NULL,
    copy_mark TEXT
  );
  CREATE TABLE probe (id INTEGER PRIMARY KEY, content BLOB);
  INSERT INTO store (marks, protect_until, observe_until) VALUES (0, 0, 0);
`;

/**
 * Opens the writer's connection, and makes the tables if the file is new.
 *
 * Throws SQLITE_BUSY while another process opens the same new file, and the caller tries again. SQLite's own busy timeout is
 * off, because it does not cover the change of the journal mode, and because it starves some of the waiting processes.
 *
 * @throws {OtherFormat}
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
    refuseOtherFormat(file, versionOf(database));
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

function makeTables(database: DatabaseSync): void {
  // IMMEDIATE takes the write lock before the first read, so that what is read cannot change.
  database.exec('BEGIN IMMEDIATE');
  // Another process may have made the tables since the version was read.
  if (versionOf(database) === 0) {
    if (database.prepare('SELECT 1 FROM sqlite_schema').get())
      throw new OtherFormat('the database has tables of another application');
    database.exec(`${TABLES} PRAGMA user_version = ${STORE_FORMAT}`);
  }
  database.exec('COMMIT');
}

/** How long the main thread waits at start-up for another process that recovers the database. */
const OPEN_FOR_READING_WITHIN_MS = 1000;

/** Opens the main thread's connection. It cannot write, and once open it never waits for a lock. */
export function openForReading(file: string): DatabaseSync {
  const database = new DatabaseSync(file, { timeout: OPEN_FOR_READING_WITHIN_MS });
  database.exec('PRAGMA query_only = ON; SELECT count(*) FROM sqlite_schema; PRAGMA busy_timeout = 0');
  return database;
}

export const SELECT_VERSION = 'PRAGMA user_version';

export const versionOf = (database: DatabaseSync): number =>
  (database.prepare(SELECT_VERSION).get() as { user_version: number }).user_version;

/** @throws {OtherFormat} if the database has another format than this version reads and writes */
export function refuseOtherFormat(file: string, found: number): void {
  if (found === STORE_FORMAT) return;
  throw new OtherFormat(
    `${file} has schema version ${found}, and this gateway knows version ${STORE_FORMAT}: use a gateway version that knows it, or configure another store.path, but then the keys of this file can be paid again`,
  );
}

/** Whether the primary result code of an error is SQLITE_BUSY. */
export const isBusy = (error: unknown): boolean => resultCodeOf(error) === 5;

/** Whether it is SQLITE_CONSTRAINT. */
export const isConstraint = (error: unknown): boolean => resultCodeOf(error) === 19;

/**
 * Whether SQLite may have ended the transaction for this error: SQLITE_BUSY, NOMEM, INTERRUPT, IOERR or FULL, or, with
 * `ON CONFLICT ROLLBACK`, SQLITE_CONSTRAINT. All others, such as that of a COMMIT without a transaction, leave it as it was.
 */
export const mayRollBack = (error: unknown): boolean => [5, 7, 9, 10, 13, 19].includes(resultCodeOf(error));

const resultCodeOf = (error: unknown): number =>
  ((error as { errcode?: number } | null)?.errcode ?? 0) & 0xff;

export const unavailable = (message: string, maybeWritten = false, cause?: unknown): StoreUnavailable =>
  new StoreUnavailable(`sqlite: ${message}`, { maybeWritten, cause });
