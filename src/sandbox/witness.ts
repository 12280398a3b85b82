import type { IncomingMessage } from 'node:http';
import type { Audit } from './audit.ts';
import { describeFaults } from './faults.ts';
import { errorReply, jsonReply, type Reply } from './reply.ts';
import type { RequestLog } from './requests.ts';
import { numberFrom, pathOf, queryOf } from './target.ts';
import type { Transaction } from './transaction.ts';

export const WITNESS_PREFIX = '/_sandbox/';

export interface Witnessed {
  readonly audit: Audit;
  readonly requests: RequestLog;
  readonly faultsEnabled: boolean;
}

/**
 * The endpoints under /_sandbox/: without authentication, for this is a tool for the loopback. They change
 * nothing.
 */
export function witness(request: IncomingMessage, witnessed: Witnessed): Reply {
  const route = ROUTES.get(pathOf(request));
  if (route === undefined) return errorReply('not_found', `there is only ${[...ROUTES.keys()].join(', ')}`);
  if (request.method === 'GET' || request.method === 'HEAD') return route(witnessed, queryOf(request));
  return errorReply('method_not_allowed', 'a witness only answers GET', ['Allow', 'GET, HEAD']);
}

type Witness = (witnessed: Witnessed, query: URLSearchParams) => Reply;

const ROUTES: ReadonlyMap<string, Witness> = new Map<string, Witness>([
  [`${WITNESS_PREFIX}ledger`, ledger],
  [`${WITNESS_PREFIX}requests`, ({ requests }) => jsonReply(200, requests.summary())],
  [`${WITNESS_PREFIX}faults`, ({ faultsEnabled }) => jsonReply(200, faultsEnabled ? describeFaults() : {})],
  [`${WITNESS_PREFIX}last-upgrade`, lastUpgrade],
]);

/** Counts speak for everything that matches; the transactions are the newest `limit` of it. */
function ledger({ audit }: Witnessed, query: URLSearchParams): Reply {
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

function lastUpgrade({ requests }: Witnessed): Reply {
  if (requests.lastUpgrade === undefined) return errorReply('not_found', 'no upgrade has been requested yet');
  return jsonReply(200, requests.lastUpgrade);
}

function masked(transaction: Transaction): Transaction {
  const { account_number } = transaction;
  return { ...transaction, account_number: account_number?.replace(/.(?=.{4})/g, '*') ?? null };
}
