import { RECORD_ID_DIGITS, type RecordId, type Token } from '../lib/brands.ts';
import { digest } from '../lib/digest.ts';
import type { Execution } from '../store/types.ts';

/** The name of a layer; the option `layer` says what it is for. */
export const LAYER = /^[a-z0-9-]{1,32}$/;

export const LAYER_RULE = 'must be 1 to 32 characters: a-z, 0-9 and -';

/** The names of a gateway and of an embedded `idempotency`, unless their options say otherwise. */
export const DEFAULT_LAYERS = { gateway: 'gateway', middleware: 'middleware' } as const;

/**
 * Names the record of a key. The layer is in it, so that a gateway and an application behind it can use one store for the same key. The
 * secret key is not: a rotated one must still find its old payouts.
 */
export function recordIdOf(layer: string, merchantCode: string, idempotencyKey: string): RecordId {
  return digest([layer, merchantCode, idempotencyKey]).slice(0, RECORD_ID_DIGITS) as RecordId;
}

/** Names an attempt to execute the request of a key: by a new token. */
export function newExecution(call: Omit<Execution, 'token'>, token: Token): Execution {
  const { recordId, fingerprint, merchant, operation, key, requestId } = call;
  return { recordId, token, memory: undefined, fingerprint, merchant, operation, key, requestId };
}
