import type { SQLOutputValue, StatementSync } from 'node:sqlite';
import type { Fingerprint, Token } from '../../lib/brands.ts';
import { type Mode, UnreadableRecord, type UsedMark } from '../contract.ts';
import type { KeyRecord } from '../register.ts';
import type { StoredCompletion } from '../response-cipher.ts';
import type { Value } from './batch.ts';

/** The columns that hold a record, in the order of {@link valuesOf} and of {@link readRow}. */
export const RECORD_COLUMNS = [
  ...['revision', 'state', 'token', 'fingerprint', 'merchant', 'operation', 'idempotency_key', 'request_id'],
  ...['gateway_id', 'cause', 'created_at_ms', 'changed_at_ms', 'lease_ms', 'retention_ms'],
  ...['in_doubt_retention_ms', 'was_in_doubt', 'owner_gave_up', 'restarted', 'status', 'headers', 'body'],
  ...['encryption_key_id', 'extension'],
];

/** With the expiry, and until when there is a lease. Of a completed record nobody asks for the lease. */
const SELECT = `SELECT ${RECORD_COLUMNS}, expires_at,
  CASE state WHEN 'completed' THEN NULL ELSE (SELECT expires_at FROM leases WHERE leases.record_id = records.record_id) END
  FROM records`;

export const SELECT_RECORD = `${SELECT} WHERE record_id = ?`;

/** By row number and with an empty body, so that the statement need not load a large one. */
export const SELECT_HEAD = `${SELECT} WHERE id = ?`.replace(
  ',body,',
  ",CASE typeof(body) WHEN 'blob' THEN zeroblob(0) ELSE body END,",
);

/** @throws {RangeError} for a text that cannot be stored */
export function valuesOf(record: KeyRecord): Value[] {
  const { merchant, operation, key, requestId, gatewayId, cause, lifetimes, completion } = record;
  const texts = [merchant, operation, key, requestId, gatewayId, cause];
  if (texts.some(({ length }) => length > LONGEST_TEXT))
    throw new RangeError(`a text of the record is longer than ${LONGEST_TEXT} characters`);
  const response = completion?.kind === 'response' ? completion.response : undefined;
  const sealed = completion?.kind === 'sealed' ? completion : undefined;
  return [
    ...[record.revision, record.state, record.token, record.fingerprint, ...texts],
    ...[Math.trunc(record.createdAtMs), Math.trunc(record.changedAtMs)],
    ...[lifetimes.leaseMs, lifetimes.retentionMs, lifetimes.inDoubtRetentionMs],
    ...[Number(record.wasInDoubt), Number(record.ownerGaveUp), Number(record.restarted)],
    completion ? (response ?? (completion as { status: number })).status : null,
    response ? JSON.stringify(response.headers) : null,
    response?.body ?? sealed?.bytes ?? null,
    sealed?.keyId ?? null,
    record.extension ?? null,
  ];
}

/** A row whose values are all valid. Times are running times in milliseconds (see running-time.ts). */
export interface Row {
  record: KeyRecord;
  expiresAt: number;
  /** Undefined: nobody has taken the lease. */
  leasedUntil: number | undefined;
}

/**
 * Runs {@link SELECT_RECORD} or {@link SELECT_HEAD}, and checks the values. Undefined: there is no row.
 *
 * @throws {UnreadableRecord} if any value is one that this version does not write
 */
export function readSelected(select: StatementSync, key: Uint8Array | number): Row | undefined {
  let values: SQLOutputValue[] | undefined;
  try {
    values = select.get(key) as unknown as SQLOutputValue[] | undefined;
  } catch (error) {
    // An integer beyond 2^53.
    if ((error as NodeJS.ErrnoException).code === 'ERR_OUT_OF_RANGE')
      throw new UnreadableRecord('a number is too large');
    throw error;
  }
  return values && readRow(values);
}

function readRow(values: SQLOutputValue[]): Row {
  const state = values[1];
  if (state !== 'executing' && state !== 'completed' && state !== 'in_doubt') throw bad('state');
  const record: KeyRecord = {
    revision: bytes(values[0], 16, 'revision'),
    state,
    token: bytes(values[2], 16, 'token') as Token,
    fingerprint: bytes(values[3], 32, 'fingerprint') as Fingerprint,
    merchant: text(values[4], 'merchant'),
    operation: text(values[5], 'operation'),
    key: text(values[6], 'idempotency_key'),
    requestId: text(values[7], 'request_id'),
    gatewayId: text(values[8], 'gateway_id'),
    cause: text(values[9], 'cause'),
    createdAtMs: integer(values[10], 'created_at_ms', Number.MIN_SAFE_INTEGER),
    changedAtMs: integer(values[11], 'changed_at_ms', Number.MIN_SAFE_INTEGER),
    lifetimes: {
      leaseMs: integer(values[12], 'lease_ms', 1),
      retentionMs: integer(values[13], 'retention_ms', 1),
      inDoubtRetentionMs: integer(values[14], 'in_doubt_retention_ms', 1),
    },
    wasInDoubt: flag(values[15], 'was_in_doubt'),
    ownerGaveUp: flag(values[16], 'owner_gave_up'),
    restarted: flag(values[17], 'restarted'),
  };
  if (state === 'completed') record.completion = completion(values);
  else if (values[18] !== null || values[19] !== null || values[20] !== null || values[21] !== null)
    throw bad('status');
  if (values[22] !== null) record.extension = bytes(values[22], undefined, 'extension');
  return {
    record,
    expiresAt: integer(values[23], 'expires_at', Number.MIN_SAFE_INTEGER),
    leasedUntil:
      values[24] === null ? undefined : integer(values[24], 'lease_until', Number.MIN_SAFE_INTEGER),
  };
}

function completion(values: SQLOutputValue[]): StoredCompletion {
  const status = integer(values[18], 'status', 0);
  if (status > 999) throw bad('status');
  const [headers, body, keyId] = [values[19], values[20], values[21]];
  if (headers === null && body === null && keyId === null) return { kind: 'tombstone', status };
  const stored = bytes(body, undefined, 'body');
  if (keyId === null)
    return { kind: 'response', response: { status, headers: readHeaders(headers), body: stored } };
  if (headers !== null) throw bad('headers');
  return { kind: 'sealed', status, keyId: text(keyId, 'encryption_key_id'), bytes: stored };
}

function readHeaders(json: SQLOutputValue | undefined): string[] {
  try {
    const headers: unknown = JSON.parse(json as string);
    if (Array.isArray(headers) && headers.length % 2 === 0 && headers.every((one) => typeof one === 'string'))
      return headers;
  } catch {
    // The value is not a text, or not JSON.
  }
  throw bad('headers');
}

/** @param length undefined: any */
function bytes(value: SQLOutputValue | undefined, length: number | undefined, name: string): Buffer {
  if (!(value instanceof Uint8Array) || (length !== undefined && value.length !== length)) throw bad(name);
  return Buffer.from(value.buffer as ArrayBuffer, value.byteOffset, value.byteLength);
}

const LONGEST_TEXT = 255;

function text(value: SQLOutputValue | undefined, name: string): string {
  if (typeof value !== 'string' || value.length > LONGEST_TEXT) throw bad(name);
  return value;
}

function integer(value: SQLOutputValue | undefined, name: string, min: number): number {
  if (!Number.isSafeInteger(value) || (value as number) < min) throw bad(name);
  return value as number;
}

function flag(value: SQLOutputValue | undefined, name: string): boolean {
  if (value !== 0 && value !== 1) throw bad(name);
  return value === 1;
}

const bad = (name: string) => new UnreadableRecord(`the value in column ${name} is not valid`);

export const SELECT_MARK = 'SELECT mark, marks, protect_until, observe_until FROM store';

/** Reads a row of {@link SELECT_MARK}. Undefined: no gateway has written a mark. */
export function markOf(row: unknown, mode: Mode, runningMs: number): UsedMark | undefined {
  const [id, count, protectUntil, observeUntil] = row as [string | null, number, number, number];
  if (id === null) return undefined;
  return { id, count, otherMode: (mode === 'protect' ? observeUntil : protectUntil) > runningMs };
}
