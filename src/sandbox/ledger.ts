import { randomUUID } from 'node:crypto';
import { Audit } from './audit.ts';
import { type DatabaseSync, inTransaction, openDatabase, type StatementSync } from './database.ts';
import { type OpeningBalances, type SandboxMerchant, withBalances } from './merchants.ts';
import { toMajor } from './money.ts';
import type { Booking, Order, Transaction, Wallet } from './transaction.ts';

type AccountKind = 'wallet' | 'funding' | 'payouts' | 'checkout_due' | 'checkout_open' | 'cards';

/** Which account gives and which one takes. A checkout session moves no wallet: nobody has paid yet. */
const ROUTES = {
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

type Booked = Omit<Order, 'kind'> & { readonly kind: keyof typeof ROUTES; readonly currency: string };

/** The double-entry ledger: every call books anew, whatever key the request carried. */
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
      for (const merchant of merchants) this.#open(merchant);
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

  /** Seeds a merchant that the file does not know yet; one that it knows keeps what it has. */
  #open({ code, businessName, currency, openingBalance }: SandboxMerchant): void {
    if (this.#statements.addMerchant.run(code, businessName, currency).changes === 0) return;
    this.#account(code, 'wallet', currency);
    const amountMinor = Math.round(openingBalance * 100);
    if (amountMinor > 0) this.#write({ kind: 'funding', merchant: code, amountMinor, currency });
  }

  #write(booked: Booked): Omit<Transaction, 'kind'> {
    const [giver, taker] = ROUTES[booked.kind];
    const { merchant, amountMinor, currency } = booked;
    const { sequence, transaction } = this.#writeTransaction(booked);
    this.#statements.addEntry.run(sequence, this.#account(merchant, giver, currency), -amountMinor);
    this.#statements.addEntry.run(sequence, this.#account(merchant, taker, currency), amountMinor);
    return transaction;
  }

  #writeTransaction(booked: Booked): { sequence: number | bigint; transaction: Omit<Transaction, 'kind'> } {
    const { merchant, kind, amountMinor, currency } = booked;
    const id = `${ID_PREFIX[kind]}_${randomUUID().replaceAll('-', '')}`;
    const created_at = new Date().toISOString();
    // In the order of the columns in SQL.addTransaction.
    const notes = {
      bank_code: booked.bankCode ?? null,
      account_number: booked.accountNumber ?? null,
      reference: booked.reference ?? null,
      idempotency_key: booked.idempotencyKey ?? null,
      request_id: booked.requestId ?? null,
    };
    const { lastInsertRowid: sequence } = this.#statements.addTransaction.run(
      id,
      merchant,
      kind,
      amountMinor,
      currency,
      ...Object.values(notes),
      created_at,
    );
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
