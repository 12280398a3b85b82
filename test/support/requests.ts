import { randomUUID } from 'node:crypto';
import { fingerprintOf } from '../../src/idempotency/fingerprint.ts';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import type { Completion } from '../../src/lib/exchange.ts';
import { systemRandom } from '../../src/lib/random.ts';
import type { Execution } from '../../src/store/types.ts';

export interface RequestParts {
  merchant?: string;
  operation?: string;
  /** Default: a key that no other request has. */
  key?: string;
  body?: string;
  /** Default: an id that no other request has. */
  requestId?: string;
}

/** An execution of a new record id under a new token. */
export function newRequest(parts: RequestParts = {}): Execution {
  const { merchant = 'M-1', operation = 'withdraw', key = randomUUID() } = parts;
  const { body = '{"amount":100}', requestId = randomUUID() } = parts;
  return {
    recordId: recordIdOf('gateway', merchant, key),
    token: systemRandom.token(),
    fingerprint: fingerprintOf('POST', '/v1/index.php', Buffer.from(body)),
    merchant,
    operation,
    key,
    requestId,
  };
}

/** The same request, sent again: the same record id and fingerprint, another token and another request id. */
export function duplicateOf(request: Execution): Execution {
  return { ...request, token: systemRandom.token(), memory: undefined, requestId: randomUUID() };
}

/** Another request under the same key. */
export function otherOf(request: Execution): Execution {
  return {
    ...duplicateOf(request),
    fingerprint: fingerprintOf('POST', '/v1/index.php', Buffer.from('other')),
  };
}

/** A completion whose body names `id`. */
export function paid(id = 'p-1'): Completion & { kind: 'response' } {
  const body = Buffer.from(JSON.stringify({ success: true, data: { id } }));
  return { kind: 'response', response: { status: 201, headers: ['Content-Type', 'application/json'], body } };
}
