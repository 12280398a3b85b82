import { randomUUID } from 'node:crypto';
import { fingerprintOf, newToken, scopeOf } from '../../src/idempotency/fingerprint.ts';
import type { Settlement } from '../../src/idempotency/record.ts';
import type { ClaimRequest } from '../../src/idempotency/store.ts';

export interface RequestParts {
  merchant?: string;
  operation?: string;
  /** Default: one that nobody has used. */
  key?: string;
  body?: string;
}

/** A claim on a new scope under a new token. */
export function newRequest(parts: RequestParts = {}): ClaimRequest {
  const { merchant = 'M-1', operation = 'withdraw', key = randomUUID(), body = '{"amount":100}' } = parts;
  return {
    scope: scopeOf(merchant, key),
    token: newToken(),
    fingerprint: fingerprintOf('POST', '/v1/index.php', Buffer.from(body)),
    merchant,
    operation,
    key,
  };
}

/** The same request again, sent by somebody else: the same scope and fingerprint, a token of its own. */
export function duplicateOf(request: ClaimRequest): ClaimRequest {
  return { ...request, token: newToken() };
}

/** Another request under the same key. */
export function otherOf(request: ClaimRequest): ClaimRequest {
  return {
    ...duplicateOf(request),
    fingerprint: fingerprintOf('POST', '/v1/index.php', Buffer.from('other')),
  };
}

/** A result of its own for each `id`. */
export function paid(id = 'p-1'): Settlement {
  const body = Buffer.from(JSON.stringify({ success: true, data: { id } }));
  return { kind: 'response', response: { status: 201, headers: ['Content-Type', 'application/json'], body } };
}
