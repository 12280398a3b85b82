import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { describeFaults } from './faults.ts';
import type { Audit } from './ledger.ts';
import type { Transaction } from './orders.ts';
import { showTransaction } from './payments.ts';
import { errorReply, jsonReply, type Reply } from './reply.ts';
import { numberFrom, pathOf, queryOf, type RequestLog } from './request.ts';

export const INSPECTION_PREFIX = '/_sandbox/';

export interface Inspected {
  readonly audit: Audit;
  readonly requests: RequestLog;
  readonly faultsEnabled: boolean;
}

/** The endpoints under /_sandbox/. They only read, and need no secret key, because the sandbox is a test tool. */
export function inspect(request: IncomingMessage, inspected: Inspected): Reply {
  const route = ROUTES.get(pathOf(request));
  if (route === undefined)
    return errorReply('not_found', `the endpoints are ${[...ROUTES.keys()].join(', ')}`);
  if (request.method === 'GET' || request.method === 'HEAD') return route(inspected, queryOf(request));
  return errorReply('method_not_allowed', 'only GET and HEAD are allowed', ['Allow', 'GET, HEAD']);
}

type Route = (inspected: Inspected, query: URLSearchParams) => Reply;

const ROUTES: ReadonlyMap<string, Route> = new Map<string, Route>([
  [`${INSPECTION_PREFIX}ledger`, showLedger],
  [`${INSPECTION_PREFIX}requests`, ({ requests }) => jsonReply(200, requests.summary())],
  [
    `${INSPECTION_PREFIX}faults`,
    ({ faultsEnabled }) => jsonReply(200, faultsEnabled ? describeFaults() : {}),
  ],
  [`${INSPECTION_PREFIX}last-upgrade`, showLastUpgrade],
]);

/** The counts cover all transactions that match; `transactions` has the newest `limit` of them. */
function showLedger({ audit }: Inspected, query: URLSearchParams): Reply {
  const filter = { merchant: query.get('merchant') ?? undefined, key: query.get('key') ?? undefined };
  const limit = numberFrom(query, 'limit', { fallback: 1_000, max: 1_000_000 });
  return jsonReply(200, {
    payouts: audit.count('withdraw', filter),
    checkouts: audit.count('checkout', filter),
    duplicateKeys: audit.duplicateKeys(filter),
    balanced: audit.balanced(),
    charges: audit.count('charge', filter),
    transactions: audit.transactions(filter, limit).map(masked),
  });
}

function showLastUpgrade({ requests }: Inspected): Reply {
  if (requests.lastUpgrade === undefined) return errorReply('not_found', 'no upgrade has been requested yet');
  return jsonReply(200, requests.lastUpgrade);
}

function masked(transaction: Transaction): Transaction {
  const { account_number } = transaction;
  return { ...transaction, account_number: account_number?.replace(/.(?=.{4})/g, '*') ?? null };
}

export const LOOKUP_PATH = '/v1/transactions';

/**
 * GET /v1/transactions?merchant=&key=: the first transaction with this merchant and key, for a gateway that resolves a
 * key in doubt. The body equals the body of the reply to that execution, even if that reply was never delivered.
 */
export function lookUp(request: IncomingMessage, audit: Audit, token: string): Reply {
  if (!sameText(request.headers.authorization ?? '', `Bearer ${token}`))
    return errorReply('unauthorized', 'the lookup token is required: Authorization: Bearer <TOKEN>');
  if (request.method !== 'GET')
    return errorReply('method_not_allowed', 'a lookup must be a GET', ['Allow', 'GET']);
  const query = queryOf(request);
  const [merchant, key] = [query.get('merchant'), query.get('key')];
  if (!merchant || !key) return errorReply('validation_failed', 'merchant and key are required');
  const [transaction] = audit.transactions({ merchant, key });
  if (!transaction) return errorReply('not_found', 'no transaction has this merchant and key');
  return jsonReply(200, { success: true, data: showTransaction(transaction) });
}

/** Constant-time comparison. The digests have one length, which `timingSafeEqual` requires. */
function sameText(a: string, b: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(a), digest(b));
}
