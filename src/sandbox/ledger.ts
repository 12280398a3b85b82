import { randomUUID } from 'node:crypto';
import { type DatabaseSync, inTransaction, openDatabase, type Row, type StatementSync } from './database.ts';
import { type OpeningBalances, type SandboxMerchant, withBalances } from './merchants.ts';
import {
  type Booking,
  type Order,
  type Transaction,
  type TransactionKind,
  toMajor,
  type Wallet,
} from './orders.ts';

type AccountKind = 'wallet' | 'funding' | 'payouts' | 'checkout_due' | 'checkout_open' | 'cards';

/**
 * For each kind of transaction: the account that is debited, and the one that is credited. A checkout session is not paid
 * when it is opened, so it does not change the wallet.
 */
const DEBIT_AND_CREDIT = {
  funding: ['funding', 'wallet'],
  withdraw: ['wallet', 'payouts'],
  checkout: ['checkout_open', 'checkout_due'],
  charge: ['cards', 'wallet'],
} as const satisfies Record<string, readonly [AccountKind, AccountKind]>;

const ID_PREFIX = { funding: 'fd', withdraw: 'wd', checkout: 'cs', charge: 'ch' } as const;

const SQL = {
  wallet: `SELECT m.code, m.business_name, m.currency, a.balance_minor FROM merchants m
    JOIN accounts a ON a.merchant = m.code AND a.kind = 'wallet' AND a.currency = m.currency WHERE m.code = ?`,
  addMerchant: 'INSERT OR IGNORE INTO merchants (code, business_name, currency) VALUES (?, ?, ?)',
  addAccount: 'INSERT OR IGNORE INTO accounts (merchant, kind, currency) VALUES (?, ?, ?)',
  account: 'SELECT id FROM accounts WHERE merchant = ? AND kind = ? AND currency = ?',
  addEntry: 'INSERT INTO entries (transaction_sequence, account_id, amount_minor) VALUES (?, ?, ?)',
  addTransaction: `INSERT INTO transactions (id, merchant, kind, amount_minor, currency, bank_code, account_number,
    reference, idempotency_key, request_id, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
} as const;

type Entry = Omit<Order, 'kind'> & {
  readonly kind: keyof typeof DEBIT_AND_CREDIT;
  readonly currency: string;
};

/** The double-entry ledger. Every call books a new transaction, whatever idempotency key the request has. */
export class Ledger {
  readonly audit: Audit;
  readonly #database: DatabaseSync;
  readonly #statements: Record<keyof typeof SQL, StatementSync>;

  constructor(path: string, balances: OpeningBalances = {}) {
    const merchants = withBalances(balances);
    this.#database = openDatabase(path);
    this.#statements = prepareAll(this.#database);
    this.audit = new Audit(this.#database);
    inTransaction(this.#database, () => {
      for (const merchant of merchants) this.#addMerchant(merchant);
    });
  }

  wallet(merchant: string): Wallet {
    const row = this.#statements.wallet.get(merchant);
    if (row === undefined) throw new Error(`the ledger has no merchant ${merchant}`);
    return {
      merchantCode: String(row.code),
      businessName: String(row.business_name),
      currency: String(row.currency),
      balanceMinor: Number(row.balance_minor),
    };
  }

  book(order: Order): Booking {
    return inTransaction(this.#database, () => {
      const { currency, balanceMinor } = this.wallet(order.merchant);
      if (order.kind === 'withdraw' && balanceMinor < order.amountMinor) {
        return { kind: 'insufficient_funds', balanceMinor };
      }
      const transaction = this.#write({ ...order, currency: order.currency ?? currency });
      return { kind: 'booked', transaction: { ...transaction, kind: order.kind } };
    });
  }

  close(): void {
    this.#database.close();
  }

  /** Adds the merchant with its opening balance, unless the ledger's file already has it. */
  #addMerchant({ code, businessName, currency, openingBalance }: SandboxMerchant): void {
    if (this.#statements.addMerchant.run(code, businessName, currency).changes === 0) return;
    this.#account(code, 'wallet', currency);
    const amountMinor = Math.round(openingBalance * 100);
    if (amountMinor > 0) this.#write({ kind: 'funding', merchant: code, amountMinor, currency });
  }

  #write(entry: Entry): Omit<Transaction, 'kind'> {
    const [debited, credited] = DEBIT_AND_CREDIT[entry.kind];
    const { merchant, amountMinor, currency } = entry;
    const { sequence, transaction } = this.#writeTransaction(entry);
    this.#statements.addEntry.run(sequence, this.#account(merchant, debited, currency), -amountMinor);
    this.#statements.addEntry.run(sequence, this.#account(merchant, credited, currency), amountMinor);
    return transaction;
  }

  #writeTransaction(entry: Entry): { sequence: number | bigint; transaction: Omit<Transaction, 'kind'> } {
    const { merchant, kind, amountMinor, currency } = entry;
    const id = `${ID_PREFIX[kind]}_${randomUUID().replaceAll('-', '')}`;
    const created_at = new Date().toISOString();
    // In the order of the columns in SQL.addTransaction.
    const notes = {
      bank_code: entry.bankCode ?? null,
      account_number: entry.accountNumber ?? null,
      reference: entry.reference ?? null,
      idempotency_key: entry.idempotencyKey ?? null,
      request_id: entry.requestId ?? null,
    };
    const values = [id, merchant, kind, amountMinor, currency, ...Object.values(notes), created_at];
    const { lastInsertRowid: sequence } = this.#statements.addTransaction.run(...values);
    return {
      sequence,
      transaction: { id, merchant, amount: toMajor(amountMinor), currency, ...notes, created_at },
    };
  }

  #account(merchant: string, kind: AccountKind, currency: string): number {
    const { account, addAccount } = this.#statements;
    const known = account.get(merchant, kind, currency);
    if (known !== undefined) return Number(known.id);
    return Number(addAccount.run(merchant, kind, currency).lastInsertRowid);
  }
}

function prepareAll(database: DatabaseSync): Record<keyof typeof SQL, StatementSync> {
  const prepared = Object.entries(SQL).map(([name, sql]) => [name, database.prepare(sql)]);
  return Object.fromEntries(prepared) as Record<keyof typeof SQL, StatementSync>;
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

/**
 * Counts mistakes: transactions with fewer than two entries or with a sum other than zero, balances that are not the sum of
 * their entries, and overdrawn wallets.
 */
const COUNT_UNBALANCED = `SELECT
  (SELECT count(*) FROM (SELECT t.sequence FROM transactions t LEFT JOIN entries e ON e.transaction_sequence = t.sequence
    GROUP BY t.sequence HAVING count(e.account_id) < 2 OR sum(e.amount_minor) <> 0)) +
  (SELECT count(*) FROM accounts a WHERE balance_minor <>
    (SELECT coalesce(sum(amount_minor), 0) FROM entries WHERE account_id = a.id)) +
  (SELECT count(*) FROM accounts WHERE kind = 'wallet' AND balance_minor < 0) AS n`;

/** Reads the ledger, and writes nothing: how often something was executed, and whether the books balance. */
export class Audit {
  readonly #database: DatabaseSync;

  constructor(database: DatabaseSync) {
    this.#database = database;
  }

  count(kind: TransactionKind, filter: LedgerFilter = {}): number {
    const [row] = this.#select('SELECT count(*) AS n FROM transactions', { ...filter, kind });
    return Number(row?.n);
  }

  /** The newest `limit` transactions, in the order in which they were booked. */
  transactions(filter: LedgerFilter = {}, limit = -1): Transaction[] {
    const newest = this.#select(
      'SELECT * FROM transactions',
      filter,
      `ORDER BY sequence DESC LIMIT ${limit}`,
    );
    return newest.reverse().map(transactionOf);
  }

  duplicateKeys(filter: LedgerFilter = {}): DuplicateKey[] {
    const rows = this.#select(
      'SELECT merchant, idempotency_key, count(*) AS executions FROM transactions',
      filter,
      'AND idempotency_key IS NOT NULL GROUP BY idempotency_key, merchant HAVING count(*) > 1',
    );
    return rows.map(({ merchant, idempotency_key, executions }) => ({
      merchant: String(merchant),
      key: String(idempotency_key),
      executions: Number(executions),
    }));
  }

  /** Every transaction sums to zero, every balance is the sum of its entries, and no wallet is overdrawn. */
  balanced(): boolean {
    return Number(this.#database.prepare(COUNT_UNBALANCED).get()?.n) === 0;
  }

  /** Adds a condition only for members that are set: with conditions for all, SQLite would not use its index. */
  #select(
    select: string,
    { merchant, key, kind }: LedgerFilter & { kind?: TransactionKind },
    rest = '',
  ): Row[] {
    const where = ["kind <> 'funding'"];
    const values: string[] = [];
    for (const [column, value] of Object.entries({ merchant, idempotency_key: key, kind })) {
      if (value === undefined) continue;
      where.push(`${column} = ?`);
      values.push(value);
    }
    return this.#database.prepare(`${select} WHERE ${where.join(' AND ')} ${rest}`).all(...values);
  }
}

function transactionOf(row: Row): Transaction {
  const { sequence: _, amount_minor, ...columns } = row;
  return { ...columns, amount: toMajor(Number(amount_minor)) } as unknown as Transaction;
}
