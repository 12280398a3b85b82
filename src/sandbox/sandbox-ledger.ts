import { DatabaseSync, type SQLOutputValue, type StatementSync } from 'node:sqlite';

/** Written into every ledger file. A file with another version is refused. */
const VERSION = 3;

/** Amounts are integers in minor units. */
const TABLE = `
BEGIN;
CREATE TABLE transactions (
  sequence        INTEGER PRIMARY KEY AUTOINCREMENT,
  id              TEXT NOT NULL UNIQUE,
  merchant        TEXT NOT NULL,
  kind            TEXT NOT NULL CHECK (kind IN ('withdraw', 'checkout', 'charge')),
  amount_minor    INTEGER NOT NULL CHECK (amount_minor > 0),
  balance_minor   INTEGER NOT NULL CHECK (balance_minor >= 0), -- of the merchant's wallet, after the transaction
  idempotency_key TEXT, -- as received; the ledger never deduplicates on it
  request_id      TEXT,
  created_at      TEXT NOT NULL,
  data            TEXT NOT NULL -- of the reply, JSON
) STRICT;
CREATE INDEX transactions_by_merchant ON transactions (merchant, sequence);
CREATE INDEX transactions_by_key ON transactions (idempotency_key, merchant);
PRAGMA user_version = ${VERSION};
COMMIT;
`;

/** The columns of a {@link Transaction}. */
const SHOWN = 'id, merchant, kind, amount_minor / 100.0 AS amount, idempotency_key, request_id, created_at';

export type TransactionKind = 'withdraw' | 'checkout' | 'charge';

/** The sign of the amount that a transaction adds to the wallet. A checkout session is not paid when it is opened. */
const SIGN: Record<TransactionKind, number> = { withdraw: -1, checkout: 0, charge: 1 };

const OPENING_BALANCE_MINOR = 100_000_000;

/** One execution. Its id is always new, so the reply to a second execution has other bytes. */
export interface Transaction {
  readonly id: string;
  readonly merchant: string;
  readonly kind: TransactionKind;
  /** Major units. */
  readonly amount: number;
  /** The header as it was received. */
  readonly idempotency_key: string | null;
  readonly request_id: string | null;
  readonly created_at: string;
}

/** Selects transactions. A member that is left out selects all. The key is compared with the header as it was received. */
export interface LedgerFilter {
  readonly merchant?: string | undefined;
  readonly key?: string | undefined;
}

/** A key that one merchant used and that was executed more than once. */
export interface DuplicateKey {
  readonly merchant: string;
  readonly key: string;
  readonly executions: number;
}

type Row = Record<string, SQLOutputValue>;

/** One row for each execution, whatever idempotency key its request has. */
export class SandboxLedger {
  readonly #database: DatabaseSync;
  readonly #balance: StatementSync;
  readonly #insert: StatementSync;

  /** @param path a file, which is created if it does not exist, or `:memory:` */
  constructor(path: string) {
    this.#database = open(path);
    this.#balance = this.#database.prepare(
      'SELECT balance_minor FROM transactions WHERE merchant = ? ORDER BY sequence DESC LIMIT 1',
    );
    this.#insert = this.#database.prepare(
      `INSERT INTO transactions (id, merchant, kind, amount_minor, balance_minor, idempotency_key, request_id, created_at, data)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
  }

  /** The balance of the wallet, in major units. */
  balance(merchant: string): number {
    return this.#balanceMinor(merchant) / 100;
  }

  /** @param data the member `data` of the reply */
  book(transaction: Transaction, data: object): 'booked' | 'insufficient_funds' {
    const { id, merchant, kind, amount, ...notes } = transaction;
    const amountMinor = Math.round(amount * 100);
    const balanceMinor = this.#balanceMinor(merchant) + SIGN[kind] * amountMinor;
    if (balanceMinor < 0) return 'insufficient_funds';
    const { idempotency_key, request_id, created_at } = notes;
    const noted = [idempotency_key, request_id, created_at, JSON.stringify(data)];
    this.#insert.run(id, merchant, kind, amountMinor, balanceMinor, ...noted);
    return 'booked';
  }

  payouts = (filter?: LedgerFilter): number => this.#count('withdraw', filter);

  checkouts = (filter?: LedgerFilter): number => this.#count('checkout', filter);

  charges = (filter?: LedgerFilter): number => this.#count('charge', filter);

  /** The newest `limit` transactions, oldest first. */
  transactions(filter?: LedgerFilter, limit = -1): Transaction[] {
    const newest = this.#select(SHOWN, filter, `ORDER BY sequence DESC LIMIT ${limit}`);
    return newest.reverse().map((row) => ({ ...row }) as unknown as Transaction);
  }

  duplicateKeys(filter?: LedgerFilter): DuplicateKey[] {
    const rows = this.#select(
      'merchant, idempotency_key AS key, count(*) AS executions',
      filter,
      'AND idempotency_key IS NOT NULL GROUP BY idempotency_key, merchant HAVING count(*) > 1',
    );
    return rows.map((row) => ({ ...row }) as unknown as DuplicateKey);
  }

  /** The `data` of the reply to the first execution, as JSON. */
  dataOf(filter: LedgerFilter): string | undefined {
    const [first] = this.#select('data', filter, 'ORDER BY sequence LIMIT 1');
    return first && String(first.data);
  }

  close(): void {
    this.#database.close();
  }

  #balanceMinor(merchant: string): number {
    return Number(this.#balance.get(merchant)?.balance_minor ?? OPENING_BALANCE_MINOR);
  }

  #count(kind: TransactionKind, filter?: LedgerFilter): number {
    return Number(this.#select('count(*) AS n', filter, `AND kind = '${kind}'`)[0]?.n);
  }

  /** Adds a condition only for members that are set: with conditions for all, SQLite would not use its index. */
  #select(columns: string, filter: LedgerFilter = {}, rest = ''): Row[] {
    const { merchant, key } = filter;
    const where = ['true'];
    const values: string[] = [];
    for (const [column, value] of Object.entries({ merchant, idempotency_key: key })) {
      if (value === undefined) continue;
      where.push(`${column} = ?`);
      values.push(value);
    }
    const sql = `SELECT ${columns} FROM transactions WHERE ${where.join(' AND ')} ${rest}`;
    return this.#database.prepare(sql).all(...values);
  }
}

function open(path: string): DatabaseSync {
  let database: DatabaseSync | undefined;
  try {
    database = new DatabaseSync(path);
    // With a WAL, NORMAL keeps every commit when the process is killed. Only a power failure could lose the last ones.
    database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL');
    const version = Number(database.prepare('PRAGMA user_version').get()?.user_version);
    if (version === 0) database.exec(TABLE);
    else if (version !== VERSION)
      throw new Error(`the file has ledger version ${version}, but this sandbox needs ${VERSION}`);
    return database;
  } catch (error) {
    database?.close();
    throw new Error(`sandbox: cannot open the ledger at ${path}: ${(error as Error).message}`, {
      cause: error,
    });
  }
}
