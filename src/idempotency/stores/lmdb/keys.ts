/**
 * The keys of the database, which are told apart by their length: of a settled record the scope's digest; of one that is not settled
 * yet 16 zero bytes before it; of an audit record the digest and a u32 (big-endian) that counts up.
 *
 * A payout writes its record three times. Digests are evenly spread, so that each of these writes would be a page of its own;
 * what is not settled yet stands together on few pages, in front, and only the settlement goes to where it is to stay.
 */
import type { Scope } from '../../../kernel/brands.ts';
import type { IdempotencyRecord } from '../../record.ts';

export const SCOPE_BYTES = 32;
const COUNT_BYTES = 4;
const UNSETTLED = Buffer.alloc(16);

export const settledKey = (scope: Scope): Buffer => Buffer.from(scope, 'hex');

export const unsettledKey = (scope: Scope): Buffer => Buffer.concat([UNSETTLED, settledKey(scope)]);

/** Where a record in this state stands. */
export const recordKey = (scope: Scope, state: IdempotencyRecord['state']): Buffer =>
  state === 'settled' ? settledKey(scope) : unsettledKey(scope);

/** Undefined for an audit record's key. */
export function scopeOfRecord(key: Buffer): Scope | undefined {
  if (isAuditKey(key)) return undefined;
  return key.subarray(-SCOPE_BYTES).toString('hex') as Scope;
}

export function auditKey(scope: Scope, count: number): Buffer {
  const key = Buffer.alloc(SCOPE_BYTES + COUNT_BYTES);
  key.write(scope, 'hex');
  key.writeUInt32BE(count, SCOPE_BYTES);
  return key;
}

export const isAuditKey = (key: Buffer): boolean => key.length === SCOPE_BYTES + COUNT_BYTES;

export const auditCount = (key: Buffer): number => key.readUInt32BE(SCOPE_BYTES);
