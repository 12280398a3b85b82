import type { IncomingMessage } from 'node:http';
import { MAX_BODY_BYTES, readBody } from './body.ts';
import type { Ledger } from './ledger.ts';
import { merchantOf } from './merchants.ts';
import { toMajor } from './money.ts';
import { notesOf } from './notes.ts';
import {
  type Checked,
  checkCheckout,
  checkWithdraw,
  type Fields,
  fieldsOf,
  type OrderFields,
} from './order.ts';
import { type Execution, errorReply, jsonReply, type Reply } from './reply.ts';
import type { Booking, Transaction, TransactionKind } from './transaction.ts';

const TOO_LARGE = `the request body is larger than ${MAX_BODY_BYTES} bytes`;

/** GET /v2/get_balance */
export async function balanceRoute(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const body = await readBody(request);
  if (body === undefined) return () => errorReply('body_too_large', TOO_LARGE);
  return () => {
    const merchant = merchantOf(request.headers.authorization);
    return merchant === undefined ? unauthorized() : balance(ledger, merchant);
  };
}

/** POST /v1/index.php */
export async function actionRoute(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const body = await readBody(request);
  if (body === undefined) return () => errorReply('body_too_large', TOO_LARGE);
  const fields = fieldsOf(body) ?? (await fieldsOfForm(request, body));
  return () => act(request, fields, ledger);
}

/** Legacy backends take forms too. Undefined: the body is none. */
async function fieldsOfForm({ headers }: IncomingMessage, body: Buffer): Promise<Fields | undefined> {
  const type = headers['content-type'] ?? '';
  try {
    const form = await new Response(new Uint8Array(body), { headers: { 'Content-Type': type } }).formData();
    const fields = [...form].map(([name, value]) => [name, name === 'amount' ? Number(value) : value]);
    return Object.fromEntries(fields) as Fields;
  } catch {
    return undefined;
  }
}

/** A charge of one unit, on any path and with any body, for clients of other payment APIs: the body is not looked at. */
export async function chargeRoute(request: IncomingMessage, ledger: Ledger): Promise<Execution> {
  const body = await readBody(request);
  if (body === undefined) return () => errorReply('body_too_large', TOO_LARGE);
  return () => {
    const merchant = merchantOf(request.headers.authorization);
    if (merchant === undefined) return unauthorized();
    const order = { ...notesOf(request.headers), kind: 'charge', merchant, amountMinor: 100 } as const;
    return bookedReply(ledger.book(order), showCharge);
  };
}

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
  return bookedReply(booking, action.show);
}

function bookedReply(booking: Booking, show: Show): Reply {
  if (booking.kind === 'booked') return jsonReply(201, { success: true, data: show(booking.transaction) });
  return errorReply('insufficient_funds', `the wallet holds ${toMajor(booking.balanceMinor)}`);
}

/** The `data` of an answer. */
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

/** The `data` with which a transaction was answered. */
export function showTransaction(transaction: Transaction): Record<string, unknown> {
  return SHOWS[transaction.kind](transaction);
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

function showWithdraw(transaction: Transaction): Record<string, unknown> {
  const { id, amount, currency, bank_code, account_number, created_at } = transaction;
  const what = { transaction_id: id, action: 'withdraw', amount, currency, bank_code, account_number };
  return { ...what, status: 'accepted', created_at };
}

function showCheckout({ id, amount, currency, reference, created_at }: Transaction): Record<string, unknown> {
  // The reserved .invalid domain: the page behind it does not exist and never will.
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

function unauthorized(): Reply {
  const challenge = ['WWW-Authenticate', 'Bearer realm="sandbox"'];
  return errorReply(
    'unauthorized',
    'a valid secret key is required: Authorization: Bearer <SECRET_KEY>',
    challenge,
  );
}
