import type { IncomingMessage } from 'node:http';
import { describeFaults } from './faults.ts';
import { errorReply, jsonReply, type SandboxReply } from './reply.ts';
import { numberFrom, requestPath, requestQuery, type SandboxRequests } from './request.ts';
import type { SandboxLedger } from './sandbox-ledger.ts';

export const INSPECTION_PREFIX = '/_sandbox/';

/** The path for `oncegate check --deliver`. The sandbox counts POSTs to it by their marker, and answers 503 or resets them. */
export const DELIVERIES_PATH = `${INSPECTION_PREFIX}deliveries`;

export const markerOf = ({ headers }: IncomingMessage): string => String(headers['x-oncegate-delivery']);

/** The endpoints under /_sandbox/. They only read, and need no secret key, because the sandbox is a test tool. */
export function inspect(
  request: IncomingMessage,
  ledger: SandboxLedger,
  requests: SandboxRequests,
): SandboxReply {
  switch (`${request.method} ${requestPath(request)}`) {
    case `GET ${INSPECTION_PREFIX}ledger`:
      return showLedger(ledger, requestQuery(request));
    case `GET ${DELIVERIES_PATH}`:
      return jsonReply(200, { deliveries: requests.deliveries(markerOf(request)) });
    case `GET ${INSPECTION_PREFIX}faults`:
      return jsonReply(200, describeFaults());
    default:
      return errorReply('not_found', `use GET ${INSPECTION_PREFIX}ledger, or GET ${INSPECTION_PREFIX}faults`);
  }
}

/** The counts cover all transactions that match; `transactions` has the newest `limit` of them, and `notListed` counts the others. */
function showLedger(ledger: SandboxLedger, query: URLSearchParams): SandboxReply {
  const filter = { merchant: query.get('merchant') ?? undefined, key: query.get('key') ?? undefined };
  const limit = numberFrom(query, 'limit', { fallback: 1_000, max: 1_000_000 });
  const [payouts, checkouts, charges] = [
    ledger.payouts(filter),
    ledger.checkouts(filter),
    ledger.charges(filter),
  ];
  const transactions = ledger.transactions(filter, limit);
  const notListed = payouts + checkouts + charges - transactions.length;
  const duplicateKeys = ledger.duplicateKeys(filter);
  return jsonReply(200, { payouts, checkouts, duplicateKeys, charges, notListed, transactions });
}

export const LOOKUP_PATH = '/v1/transactions';

/**
 * GET /v1/transactions?merchant=&key=: the first transaction with this merchant and key, for a gateway that resolves a
 * key in doubt. The body equals the body of the reply to that execution, even if that reply was never delivered.
 */
export function replyToLookup(request: IncomingMessage, ledger: SandboxLedger, token: string): SandboxReply {
  if (request.headers.authorization !== `Bearer ${token}`)
    return errorReply('unauthorized', 'the token for lookups is required: Authorization: Bearer <TOKEN>');
  const query = requestQuery(request);
  const [merchant, key] = [query.get('merchant'), query.get('key')];
  if (!merchant || !key) return errorReply('validation_failed', 'merchant and key are required');
  const data = ledger.dataOf({ merchant, key });
  if (data === undefined) return errorReply('not_found', 'no transaction has this merchant and key');
  return jsonReply(200, { success: true, data: JSON.parse(data) });
}
