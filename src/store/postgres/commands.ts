import type { RecordId } from '../../lib/brands.ts';
import { encodeRecord } from '../codec.ts';
import type { KeyRecord } from '../types.ts';

/** A command for the functions of the schema, as JSON. */
export const commandOf = (kind: string, id: RecordId, members: object): string =>
  JSON.stringify({ kind, id: `\\x${id}`, ...members });

/** The record, and its columns for people. A text of PostgreSQL holds no NUL. */
export function columnsOf(record: KeyRecord) {
  const { state, merchant, operation, key, cause, createdAtMs, revision } = record;
  const text = (value: string) => value.replaceAll('\0', '\ufffd');
  return {
    revision: bytesOf(revision),
    record: bytesOf(encodeRecord(record)),
    state,
    merchant: text(merchant),
    operation: text(operation),
    idempotency_key: text(key),
    cause: text(cause),
    created_at_ms: Math.trunc(createdAtMs),
  };
}

export const bytesOf = (bytes: Buffer | undefined): string | undefined =>
  bytes && `\\x${bytes.toString('hex')}`;
