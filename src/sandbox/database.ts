import { DatabaseSync, type SQLOutputValue, type StatementSync } from 'node:sqlite';

export type { DatabaseSync, StatementSync };

export type Row = Record<string, SQLOutputValue>;

/** Written into every ledger file. A file with another version is refused. */
const SCHEMA_VERSION = 2;

/**
 * The double-entry ledger. Amounts are integers in minor units.
 *
 * Constraints and triggers enforce the rules, so that tests can trust the ledger even if the code has a bug: a wallet
 * cannot become negative, each entry changes the balance of its account, and what is booked cannot be changed or deleted.
 */
const SCHEMA = `
CREATE TABLE IF NOT EXISTS merchants (
  code          TEXT PRIMARY KEY,
  business_name TEXT NOT NULL,
  currency      TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS accounts (
  id            INTEGER PRIMARY KEY,
  merchant      TEXT NOT NULL REFERENCES merchants (code),
  kind          TEXT NOT NULL CHECK (kind IN ('wallet', 'funding', 'payouts', 'checkout_due', 'checkout_open', 'cards')),
  currency      TEXT NOT NULL,
  balance_minor INTEGER NOT NULL DEFAULT 0,
  UNIQUE (merchant, kind, currency),
  CHECK (kind <> 'wallet' OR balance_minor >= 0)
) STRICT;

CREATE TABLE IF NOT EXISTS transactions (
  sequence        INTEGER PRIMARY KEY AUTOINCREMENT,
  id              TEXT NOT NULL UNIQUE,
  merchant        TEXT NOT NULL REFERENCES merchants (code),
  kind            TEXT NOT NULL CHECK (kind IN ('funding', 'withdraw', 'checkout', 'charge')),
  amount_minor    INTEGER NOT NULL CHECK (amount_minor > 0),
  currency        TEXT NOT NULL,
  bank_code       TEXT,
  account_number  TEXT,
  reference       TEXT,
  idempotency_key TEXT, -- as received; the ledger never deduplicates on it
  request_id      TEXT,
  created_at      TEXT NOT NULL
) STRICT;

CREATE INDEX IF NOT EXISTS transactions_by_key ON transactions (idempotency_key, merchant);

CREATE TABLE IF NOT EXISTS entries (
  transaction_sequence INTEGER NOT NULL REFERENCES transactions (sequence),
  account_id           INTEGER NOT NULL REFERENCES accounts (id),
  amount_minor         INTEGER NOT NULL CHECK (amount_minor <> 0),
  PRIMARY KEY (transaction_sequence, account_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS entries_move_the_balance AFTER INSERT ON entries BEGIN
  UPDATE accounts SET balance_minor = balance_minor + NEW.amount_minor WHERE id = NEW.account_id;
END;

CREATE TRIGGER IF NOT EXISTS entries_are_never_deleted BEFORE DELETE ON entries BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;
CREATE TRIGGER IF NOT EXISTS entries_are_never_changed BEFORE UPDATE ON entries BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;
CREATE TRIGGER IF NOT EXISTS transactions_are_never_deleted BEFORE DELETE ON transactions BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;
CREATE TRIGGER IF NOT EXISTS transactions_are_never_changed BEFORE UPDATE ON transactions BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;

PRAGMA user_version = ${SCHEMA_VERSION};
`;

/** How long a writer waits for another process's transaction before it fails. */
const BUSY_TIMEOUT_MS = 10_000;

const SQLITE_BUSY = 5;

/** Opens the database at `path` (a file or `:memory:`), and creates it if it does not exist. */
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
  // In WAL mode, NORMAL keeps every commit when the process is killed. Only a power failure could lose the last commits,
  // and the sandbox promises nothing about power failures.
  database.exec('PRAGMA synchronous = NORMAL');
  inTransaction(database, () => createSchema(database));
}

/** Repeats the switch to WAL, which ignores the busy timeout, when two processes open a new file at the same time. */
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
  if (version !== 0)
    throw new Error(`the file has ledger version ${version}, but this sandbox needs ${SCHEMA_VERSION}`);
  database.exec(SCHEMA);
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

function isBusy(error: unknown): boolean {
  // SQLite's extended result codes have the primary code in the lower byte.
  return ((error as { errcode?: number }).errcode ?? 0) % 256 === SQLITE_BUSY;
}

function explained(path: string, error: unknown): Error {
  const { code, message } = error as NodeJS.ErrnoException;
  const explanation = new Error(`sandbox: cannot open the ledger at ${path}: ${message}`, { cause: error });
  return Object.assign(explanation, code === undefined ? {} : { code });
}
