/** Written into every ledger file; a file with another number was made by another version of the sandbox. */
export const SCHEMA_VERSION = 2;

/**
 * The double-entry ledger. Amounts are integers in minor units.
 *
 * The rules stand in the database and not only in the code, so that the ledger stays a witness even where the
 * code is wrong: a wallet cannot go below zero, an entry moves its account's balance, and what is booked can
 * be neither changed nor removed.
 */
export const SCHEMA = `
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
  idempotency_key TEXT, -- a note for witnesses; nothing in here is ever deduplicated on it
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

CREATE TRIGGER IF NOT EXISTS entries_stay BEFORE DELETE ON entries BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;
CREATE TRIGGER IF NOT EXISTS entries_stay_as_they_are BEFORE UPDATE ON entries BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;
CREATE TRIGGER IF NOT EXISTS transactions_stay BEFORE DELETE ON transactions BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;
CREATE TRIGGER IF NOT EXISTS transactions_stay_as_they_are BEFORE UPDATE ON transactions BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only');
END;

PRAGMA user_version = ${SCHEMA_VERSION};
`;
