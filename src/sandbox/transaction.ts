export type TransactionKind = 'withdraw' | 'checkout' | 'charge';

/**
 * What is asked of the ledger. The idempotency key is the header as it was received: a note, nothing else.
 */
export interface Order {
  readonly kind: TransactionKind;
  readonly merchant: string;
  readonly amountMinor: number;
  readonly currency?: string | undefined;
  readonly bankCode?: string | undefined;
  readonly accountNumber?: string | undefined;
  readonly reference?: string | undefined;
  readonly idempotencyKey?: string | undefined;
  readonly requestId?: string | undefined;
}

/** One execution. Its id is new every time, so a second execution shows in the bytes of its answer. */
export interface Transaction {
  readonly id: string;
  readonly merchant: string;
  readonly kind: TransactionKind;
  /** Major units. */
  readonly amount: number;
  readonly currency: string;
  readonly bank_code: string | null;
  readonly account_number: string | null;
  readonly reference: string | null;
  readonly idempotency_key: string | null;
  readonly request_id: string | null;
  readonly created_at: string;
}

export interface Wallet {
  readonly merchantCode: string;
  readonly businessName: string;
  readonly currency: string;
  readonly balanceMinor: number;
}

export type Booking =
  | { readonly kind: 'booked'; readonly transaction: Transaction }
  | { readonly kind: 'insufficient_funds'; readonly balanceMinor: number };
