import type { DatabaseSync, Row } from './database.ts';
import { toMajor } from './money.ts';
import type { Transaction, TransactionKind } from './transaction.ts';

/**
 * Narrows what is counted; a member left out narrows nothing. The key is compared with the header as it was
 * received.
 */
export interface LedgerFilter {
  readonly merchant?: string | undefined;
  readonly key?: string | undefined;
}

/** A key under which one merchant's backend executed more than once. */
export interface DuplicateKey {
  readonly merchant: string;
  readonly key: string;
  readonly executions: number;
}

const UNBALANCED = `SELECT
  (SELECT count(*) FROM (SELECT t.sequence FROM transactions t LEFT JOIN entries e ON e.transaction_sequence = t.sequence
    GROUP BY t.sequence HAVING count(e.account_id) < 2 OR sum(e.amount_minor) <> 0)) +
  (SELECT count(*) FROM accounts a WHERE balance_minor <>
    (SELECT coalesce(sum(amount_minor), 0) FROM entries WHERE account_id = a.id)) +
  (SELECT count(*) FROM accounts WHERE kind = 'wallet' AND balance_minor < 0) AS n`;

/** What a witness asks of the ledger. It only reads. */
export class Audit {
  readonly #database: DatabaseSync;

  constructor(database: DatabaseSync) {
    this.#database = database;
  }

  count(kind: TransactionKind, filter: LedgerFilter = {}): number {
    const [row] = this.#ask('SELECT count(*) AS n FROM transactions', { ...filter, kind });
    return Number(row?.n);
  }

  /** The newest `limit` transactions, oldest of them first. */
  transactions(filter: LedgerFilter = {}, limit = -1): Transaction[] {
    const newest = this.#ask('SELECT * FROM transactions', filter, `ORDER BY sequence DESC LIMIT ${limit}`);
    return newest.reverse().map(transactionOf);
  }

  duplicateKeys(filter: LedgerFilter = {}): DuplicateKey[] {
    const rows = this.#ask(
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
    return Number(this.#database.prepare(UNBALANCED).get()?.n) === 0;
  }

  /** Only what narrows is put into the query, so that asking for one key stays quick in a large ledger. */
  #ask(select: string, { merchant, key, kind }: LedgerFilter & { kind?: TransactionKind }, rest = ''): Row[] {
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
