import { randomUUID } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { merchantOf, type SandboxMerchant } from './merchants.ts';
import { type Execute, errorReply, jsonReply, type SandboxReply } from './reply.ts';
import { keyOf, MAX_BODY_BYTES, readBody } from './request.ts';
import type { SandboxLedger, TransactionKind } from './sandbox-ledger.ts';

/** The members of a request body. */
type Fields = Readonly<Record<string, unknown>>;

/** A request of a merchant whose secret key is valid. */
interface Call {
  readonly request: IncomingMessage;
  readonly merchant: SandboxMerchant;
  /** The members of the body, if it is a JSON object or a form. */
  readonly fields: Fields | undefined;
  readonly ledger: SandboxLedger;
}

const endpoint =
  (execute: (call: Call) => SandboxReply) =>
  async (request: IncomingMessage, ledger: SandboxLedger): Promise<Execute> => {
    const body = await readBody(request);
    const { 'content-type': contentType = '', authorization } = request.headers;
    const fields = body && (await fieldsOf(body, contentType));
    return () => {
      if (!body)
        return errorReply('body_too_large', `the request body is larger than ${MAX_BODY_BYTES} bytes`);
      const merchant = merchantOf(authorization);
      return merchant ? execute({ request, merchant, fields, ledger }) : unauthorized();
    };
  };

/** GET /v2/get_balance */
export const balanceRoute = endpoint(({ merchant: { code, businessName, currency }, ledger }) => {
  const balance = ledger.balance(code);
  const data = { business_name: businessName, merchant_code: code, balance, currency };
  return jsonReply(200, { success: true, data });
});

/** POST /v1/index.php with an `action`. */
export const actionRoute = endpoint((call) => {
  const { fields } = call;
  if (!fields) return errorReply('invalid_json', 'the request body must be a JSON object or a form');
  if (fields.action === 'withdraw') return withdraw(call, fields);
  if (fields.action === 'checkout') return checkout(call, fields);
  return errorReply('unknown_action', 'action must be one of withdraw, checkout');
});

/** A charge of one unit, for clients of other payment APIs. On any path; the body is ignored. */
export const chargeRoute = endpoint((call) => {
  const { currency } = call.merchant;
  return book(call, 'charge', 1, (id, created_at) => {
    return { transaction_id: id, action: 'charge', amount: 1, currency, status: 'accepted', created_at };
  });
});

const DIGITS = /^[0-9]{1,34}$/;
const CURRENCY = /^[A-Z]{3}$/;

function withdraw(call: Call, { amount, bank_code, account_number }: Fields): SandboxReply {
  if (!isAmount(amount)) return refused(AMOUNT_RULE);
  if (!matches(DIGITS, bank_code)) return refused('bank_code must be a string of digits');
  if (!matches(DIGITS, account_number)) return refused('account_number must be a string of digits');
  const { currency } = call.merchant;
  return book(call, 'withdraw', amount, (id, created_at) => {
    const what = { transaction_id: id, action: 'withdraw', amount, currency, bank_code, account_number };
    return { ...what, status: 'accepted', created_at };
  });
}

function checkout(call: Call, fields: Fields): SandboxReply {
  const { amount, currency = call.merchant.currency, reference = null } = fields;
  if (!isAmount(amount)) return refused(AMOUNT_RULE);
  if (!matches(CURRENCY, currency)) return refused('currency must be a code of three capital letters');
  if (reference !== null && !matches(/^.{1,255}$/s, reference))
    return refused('reference must be 1 to 255 characters');
  return book(call, 'checkout', amount, (id, created_at) => {
    // The .invalid domain is reserved (RFC 2606), so that the address never leads to a page.
    const url = `https://checkout.sandbox.invalid/${id}`;
    const what = { session_id: id, action: 'checkout', url, amount, currency, reference };
    return { ...what, status: 'open', created_at };
  });
}

const ID_PREFIX: Record<TransactionKind, string> = { withdraw: 'wd', checkout: 'cs', charge: 'ch' };

/** @param show returns the `data` of the reply */
function book(
  { request: { headers }, merchant, ledger }: Call,
  kind: TransactionKind,
  amount: number,
  show: (id: string, createdAt: string) => object,
): SandboxReply {
  const id = `${ID_PREFIX[kind]}_${randomUUID().replaceAll('-', '')}`;
  const created_at = new Date().toISOString();
  const idempotency_key = keyOf(headers) ?? null;
  const request_id = headers['x-request-id']?.toString() ?? null;
  const data = show(id, created_at);
  const notes = { idempotency_key, request_id, created_at };
  const booking = ledger.book({ id, merchant: merchant.code, kind, amount, ...notes }, data);
  if (booking === 'booked') return jsonReply(201, { success: true, data });
  return errorReply(booking, `the wallet has only ${ledger.balance(merchant.code)}`);
}

/** The largest amount that is accepted, in major units. Adjacent doubles of this size are still less than a cent apart. */
const MAX_AMOUNT = 1_000_000_000_000;

const AMOUNT_RULE = `amount must be a number above 0, at most ${MAX_AMOUNT}, with at most two decimals`;

const isAmount = (amount: unknown): amount is number =>
  typeof amount === 'number' && amount > 0 && amount <= MAX_AMOUNT && Number(amount.toFixed(2)) === amount;

const matches = (pattern: RegExp, value: unknown): boolean =>
  typeof value === 'string' && pattern.test(value);

const refused = (message: string): SandboxReply => errorReply('validation_failed', message);

function unauthorized(): SandboxReply {
  const message = 'a valid secret key is required: Authorization: Bearer <SECRET_KEY>';
  return errorReply('unauthorized', message, ['WWW-Authenticate', 'Bearer realm="sandbox"']);
}

/** The members of a JSON object, or of a form, because legacy backends accept both. Undefined for any other body. */
async function fieldsOf(body: Buffer, contentType: string): Promise<Fields | undefined> {
  try {
    const parsed: unknown = JSON.parse(body.toString());
    return typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)
      ? { ...parsed }
      : undefined;
  } catch {
    const sent = new Response(new Uint8Array(body), { headers: { 'Content-Type': contentType } });
    const form = await sent.formData().catch(() => []);
    const fields = [...form].map(([name, value]) => [name, name === 'amount' ? Number(value) : value]);
    return fields.length === 0 ? undefined : Object.fromEntries(fields);
  }
}
