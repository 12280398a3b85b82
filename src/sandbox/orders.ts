/** The largest amount that is accepted, in major units. Adjacent doubles of this size are still less than a cent apart. */
export const MAX_AMOUNT = 1_000_000_000_000;

/**
 * Converts major units, as clients send them, to integer minor units, as the ledger stores them. Undefined for anything
 * but a positive number with at most two decimals: rounding would book another amount than the client asked for.
 */
export function toMinor(amount: unknown): number | undefined {
  if (typeof amount !== 'number' || !Number.isFinite(amount)) return undefined;
  if (amount <= 0 || amount > MAX_AMOUNT) return undefined;
  const minor = Math.round(amount * 100);
  return minor / 100 === amount ? minor : undefined;
}

export function toMajor(minor: number): number {
  return minor / 100;
}

export type TransactionKind = 'withdraw' | 'checkout' | 'charge';

/** What a request asks the ledger to book. */
export interface Order {
  readonly kind: TransactionKind;
  readonly merchant: string;
  readonly amountMinor: number;
  readonly currency?: string | undefined;
  readonly bankCode?: string | undefined;
  readonly accountNumber?: string | undefined;
  readonly reference?: string | undefined;
  /** The header as it was received. The ledger stores it and never deduplicates on it. */
  readonly idempotencyKey?: string | undefined;
  readonly requestId?: string | undefined;
}

/** One execution. Its id is always new, so the reply to a second execution has other bytes. */
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

/** The members of a request body. */
export type Fields = Readonly<Record<string, unknown>>;

/** The part of an order that is in the request body. */
export type OrderFields = Pick<
  Order,
  'amountMinor' | 'currency' | 'bankCode' | 'accountNumber' | 'reference'
>;

export type Checked<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly message: string };

const DIGITS = /^[0-9]{1,34}$/;
const CURRENCY = /^[A-Z]{3}$/;
const MAX_REFERENCE_CHARACTERS = 255;

const AMOUNT_RULE = `amount must be a number above 0, at most ${MAX_AMOUNT}, with at most two decimals`;

/** The members of a JSON object, or of a form, because legacy backends accept both. Undefined for any other body. */
export async function fieldsOf(body: Buffer, contentType: string): Promise<Fields | undefined> {
  return fieldsOfJson(body) ?? (await fieldsOfForm(body, contentType));
}

function fieldsOfJson(body: Buffer): Fields | undefined {
  try {
    const parsed: unknown = JSON.parse(body.toString());
    return typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)
      ? { ...parsed }
      : undefined;
  } catch {
    return undefined;
  }
}

async function fieldsOfForm(body: Buffer, contentType: string): Promise<Fields | undefined> {
  const headers = { 'Content-Type': contentType };
  try {
    const form = await new Response(new Uint8Array(body), { headers }).formData();
    const fields = [...form].map(([name, value]) => [name, name === 'amount' ? Number(value) : value]);
    return Object.fromEntries(fields) as Fields;
  } catch {
    return undefined;
  }
}

export function checkWithdraw(fields: Fields): Checked<OrderFields> {
  const { amount, bank_code: bankCode, account_number: accountNumber } = fields;
  const amountMinor = toMinor(amount);
  if (amountMinor === undefined) return refused(AMOUNT_RULE);
  if (!isDigits(bankCode)) return refused('bank_code must be a string of digits');
  if (!isDigits(accountNumber)) return refused('account_number must be a string of digits');
  return { ok: true, value: { amountMinor, bankCode, accountNumber } };
}

export function checkCheckout({ amount, currency, reference }: Fields): Checked<OrderFields> {
  const amountMinor = toMinor(amount);
  if (amountMinor === undefined) return refused(AMOUNT_RULE);
  if (!isCurrency(currency)) return refused('currency must be a code of three capital letters');
  if (!isReference(reference))
    return refused(`reference must be 1 to ${MAX_REFERENCE_CHARACTERS} characters`);
  return { ok: true, value: { amountMinor, currency, reference } };
}

function refused(message: string): { ok: false; message: string } {
  return { ok: false, message };
}

function isDigits(value: unknown): value is string {
  return typeof value === 'string' && DIGITS.test(value);
}

function isCurrency(value: unknown): value is string | undefined {
  return value === undefined || (typeof value === 'string' && CURRENCY.test(value));
}

function isReference(value: unknown): value is string | undefined {
  if (value === undefined) return true;
  return typeof value === 'string' && value.length > 0 && value.length <= MAX_REFERENCE_CHARACTERS;
}
