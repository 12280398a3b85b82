import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import type { Ledger } from './ledger.ts';
import { merchantOf } from './merchants.ts';
import {
  type Booking,
  type Checked,
  checkCheckout,
  checkWithdraw,
  type Fields,
  fieldsOf,
  type Order,
  type OrderFields,
  type Transaction,
  type TransactionKind,
  toMajor,
} from './orders.ts';
import { type Execution, errorReply, jsonReply, type Reply } from './reply.ts';
import { keyOf, MAX_BODY_BYTES, readBody } from './request.ts';

/** GET /v2/get_balance */
export async function balanceRoute(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const body = await readBody(request);
  if (body === undefined) return tooLarge;
  return () => {
    const merchant = merchantOf(request.headers.authorization);
    return merchant === undefined ? unauthorized() : balance(ledger, merchant);
  };
}

/** POST /v1/index.php with an `action`. */
export async function actionRoute(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const body = await readBody(request);
  if (body === undefined) return tooLarge;
  const fields = await fieldsOf(body, request.headers['content-type'] ?? '');
  return () => act(request, fields, ledger);
}

/** A charge of one unit, for clients of other payment APIs. The path can be any, and the body is ignored. */
export async function chargeRoute(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const body = await readBody(request);
  if (body === undefined) return tooLarge;
  return () => {
    const merchant = merchantOf(request.headers.authorization);
    if (merchant === undefined) return unauthorized();
    const order = { ...notesOf(request.headers), kind: 'charge', merchant, amountMinor: 100 } as const;
    return replyTo(ledger.book(order), showCharge);
  };
}

function balance(ledger: Ledger, merchant: string): Reply {
  const { businessName, merchantCode, balanceMinor, currency } = ledger.wallet(merchant);
  const data = {
    business_name: businessName,
    merchant_code: merchantCode,
    balance: toMajor(balanceMinor),
    currency,
  };
  return jsonReply(200, { success: true, data });
}

/** Returns the `data` of the reply to a transaction. */
type Show = (transaction: Transaction) => Record<string, unknown>;

interface Action {
  readonly kind: TransactionKind;
  readonly check: (fields: Fields) => Checked<OrderFields>;
  readonly show: Show;
}

const ACTIONS: ReadonlyMap<unknown, Action> = new Map<unknown, Action>([
  ['withdraw', { kind: 'withdraw', check: checkWithdraw, show: showWithdraw }],
  ['checkout', { kind: 'checkout', check: checkCheckout, show: showCheckout }],
]);

function act(request: IncomingMessage, fields: Fields | undefined, ledger: Ledger): Reply {
  const merchant = merchantOf(request.headers.authorization);
  if (merchant === undefined) return unauthorized();
  if (fields === undefined)
    return errorReply('invalid_json', 'the request body must be a JSON object or a form');
  const action = ACTIONS.get(fields.action);
  if (action === undefined) {
    return errorReply('unknown_action', `action must be one of ${[...ACTIONS.keys()].join(', ')}`);
  }
  const order = action.check(fields);
  if (!order.ok) return errorReply('validation_failed', order.message);
  const booking = ledger.book({ ...order.value, ...notesOf(request.headers), kind: action.kind, merchant });
  return replyTo(booking, action.show);
}

/** Headers that the ledger stores with a transaction. They do not change what is booked. */
function notesOf(headers: IncomingHttpHeaders): Pick<Order, 'idempotencyKey' | 'requestId'> {
  return { idempotencyKey: keyOf(headers), requestId: headers['x-request-id']?.toString() };
}

function replyTo(booking: Booking, show: Show): Reply {
  if (booking.kind === 'booked') return jsonReply(201, { success: true, data: show(booking.transaction) });
  return errorReply('insufficient_funds', `the wallet has only ${toMajor(booking.balanceMinor)}`);
}

/** The `data` of the reply to the execution of this transaction. */
export function showTransaction(transaction: Transaction): Record<string, unknown> {
  return SHOWS[transaction.kind](transaction);
}

function showWithdraw(transaction: Transaction): Record<string, unknown> {
  const { id, amount, currency, bank_code, account_number, created_at } = transaction;
  const what = { transaction_id: id, action: 'withdraw', amount, currency, bank_code, account_number };
  return { ...what, status: 'accepted', created_at };
}

function showCheckout({ id, amount, currency, reference, created_at }: Transaction): Record<string, unknown> {
  // The .invalid domain is reserved (RFC 2606), so that the address never leads to a page.
  const url = `https://checkout.sandbox.invalid/${id}`;
  return { session_id: id, action: 'checkout', url, amount, currency, reference, status: 'open', created_at };
}

function showCharge({ id, amount, currency, created_at }: Transaction): Record<string, unknown> {
  return { transaction_id: id, action: 'charge', amount, currency, status: 'accepted', created_at };
}

const SHOWS: Record<TransactionKind, Show> = {
  withdraw: showWithdraw,
  checkout: showCheckout,
  charge: showCharge,
};

function tooLarge(): Reply {
  return errorReply('body_too_large', `the request body is larger than ${MAX_BODY_BYTES} bytes`);
}

function unauthorized(): Reply {
  const challenge = ['WWW-Authenticate', 'Bearer realm="sandbox"'];
  return errorReply(
    'unauthorized',
    'a valid secret key is required: Authorization: Bearer <SECRET_KEY>',
    challenge,
  );
}
