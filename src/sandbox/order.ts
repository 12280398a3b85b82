import { MAX_AMOUNT, toMinor } from './money.ts';
import type { Order } from './transaction.ts';

export type Checked<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly message: string };

export type Fields = Readonly<Record<string, unknown>>;

/** The part of an order that the request body says. */
export type OrderFields = Pick<
  Order,
  'amountMinor' | 'currency' | 'bankCode' | 'accountNumber' | 'reference'
>;

const DIGITS = /^[0-9]{1,34}$/;
const CURRENCY = /^[A-Z]{3}$/;
const MAX_REFERENCE_CHARACTERS = 255;

const AMOUNT_RULE = `amount must be a number above 0, at most ${MAX_AMOUNT}, with at most two decimals`;

/** The members of a JSON object, or undefined for any other body. */
export function fieldsOf(body: Buffer): Fields | undefined {
  try {
    const parsed: unknown = JSON.parse(body.toString());
    return typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)
      ? { ...parsed }
      : undefined;
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
