import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { showTransaction } from './actions.ts';
import type { Audit } from './audit.ts';
import { errorReply, jsonReply, type Reply } from './reply.ts';
import { queryOf } from './target.ts';

export const LOOKUP_PATH = '/v1/transactions';

/**
 * GET /v1/transactions?merchant=&key=: what became of a transaction, for a gateway with a credential of its own. The body
 * is the one that the first execution was answered, or was to be.
 */
export function lookUp(request: IncomingMessage, audit: Audit, token: string): Reply {
  if (!sameText(request.headers.authorization ?? '', `Bearer ${token}`))
    return errorReply('unauthorized', 'the lookup token is required: Authorization: Bearer <TOKEN>');
  if (request.method !== 'GET')
    return errorReply('method_not_allowed', 'a lookup is a GET', ['Allow', 'GET']);
  const query = queryOf(request);
  const [merchant, key] = [query.get('merchant'), query.get('key')];
  if (!merchant || !key) return errorReply('validation_failed', 'merchant and key are required');
  const [transaction] = audit.transactions({ merchant, key });
  if (!transaction) return errorReply('not_found', 'there is no such transaction');
  return jsonReply(200, { success: true, data: showTransaction(transaction) });
}

/** In a time that tells nothing of the texts. */
function sameText(a: string, b: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(a), digest(b));
}
