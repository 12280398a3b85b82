import type { SQLOutputValue, StatementSync } from 'node:sqlite';
import type { Fingerprint, Scope, Token } from '../../lib/brands.ts';
import { type Mode, UnreadableRecord, type UsedMark } from '../contract.ts';
import type { Held, KeyRecord } from '../register.ts';
import type { StoredCompletion } from '../response-cipher.ts';
import type { Value } from './batch.ts';

/** The columns that hold a record, in the order of {@link valuesOf} and of {@link readRow}. */
export const RECORD_COLUMNS = [
  ...['revision', 'token', 'fingerprint', 'state', 'merchant', 'operation', 'idempotency_key', 'request_id'],
  ...['gateway_id', 'cause', 'created_at_ms', 'changed_at_ms', 'lease_ms', 'retention_ms'],
  ...['in_doubt_retention_ms', 'was_in_doubt', 'owner_gave_up', 'restarted', 'status', 'headers', 'body'],
  ...['encryption_key_id', 'extension'],
];

const NAMES = { revision: 16, token: 16, fingerprint: 32 };
const NAMES_BYTES = 64;
const ARE_NAMES = Object.entries(NAMES).map(
  ([name, n]) => `typeof(${name}) = 'blob' AND length(${name}) = ${n}`,
);

/** What {@link readRow} reads. The blobs are one value, because each value that is a blob costs as much as six others. */
const selecting = (
  blobs: string,
) => `SELECT CASE WHEN ${ARE_NAMES.join(' AND ')} THEN CAST(${blobs} AS BLOB) END,
  ${RECORD_COLUMNS.slice(3).join().replace('body', 'typeof(body)')}, expires_at, lease_until FROM records`;

export const SELECT_RECORD = `${selecting("revision || token || fingerprint || ifnull(body, '')")} WHERE record_id = ?`;

/** By row number and with an empty body, so that the statement need not load a large one. */
export const SELECT_HEAD = `${selecting('revision || token || fingerprint')} WHERE id = ?`;

const ID = Buffer.alloc(32);

/** The bytes of a record id, until the next call: SQLite and a batch copy them at once. A new buffer each time costs more than the copy. */
export function idBytes(id: Scope): Buffer {
  ID.write(id, 'hex');
  return ID;
}

/** Appends the values of {@link RECORD_COLUMNS}. */
export function pushValues(values: Value[], record: KeyRecord): void {
  const { lifetimes, completion } = record;
  values.push(record.revision, record.token, record.fingerprint, record.state);
  values.push(
    record.merchant,
    record.operation,
    record.key,
    record.requestId,
    record.gatewayId,
    record.cause,
  );
  values.push(Math.trunc(record.createdAtMs), Math.trunc(record.changedAtMs));
  values.push(lifetimes.leaseMs, lifetimes.retentionMs, lifetimes.inDoubtRetentionMs);
  values.push(record.wasInDoubt ? 1 : 0, record.ownerGaveUp ? 1 : 0, record.restarted ? 1 : 0);
  if (completion?.kind === 'response') {
    const { status, headers, body } = completion.response;
    values.push(status, JSON.stringify(headers), body, null);
  } else if (completion?.kind === 'sealed')
    values.push(completion.status, null, completion.bytes, completion.keyId);
  else values.push(completion?.status ?? null, null, null, null);
  values.push(record.extension ?? null);
}

/**
 * Runs {@link SELECT_RECORD} or {@link SELECT_HEAD}, and checks the values. Undefined: there is no row, or it has expired.
 *
 * @param runningMs see running-time.ts, as are the times in the row
 * @throws {UnreadableRecord} if any value is one that this version does not write
 */
export function readSelected(
  select: StatementSync,
  key: Uint8Array | number,
  runningMs: number,
): Held | undefined {
  let values: SQLOutputValue[] | undefined;
  try {
    values = select.get(key) as unknown as SQLOutputValue[] | undefined;
  } catch (error) {
    // An integer beyond 2^53.
    if ((error as NodeJS.ErrnoException).code === 'ERR_OUT_OF_RANGE')
      throw new UnreadableRecord('a number is too large');
    throw error;
  }
  const held = values && readRow(values, runningMs);
  return held && held.expiresInMs > 0 ? held : undefined;
}

function readRow(values: SQLOutputValue[], runningMs: number): Held {
  const [blobs, state] = values;
  if (!(blobs instanceof Uint8Array)) throw bad('revision, token or fingerprint');
  const bytes = blobs.buffer as ArrayBuffer;
  if (state !== 'executing' && state !== 'completed' && state !== 'in_doubt') throw bad('state');
  const record: KeyRecord = {
    revision: Buffer.from(bytes, 0, 16),
    state,
    token: Buffer.from(bytes, 16, 16) as Token,
    fingerprint: Buffer.from(bytes, 32, 32) as Fingerprint,
    merchant: text(values[2], 'merchant'),
    operation: text(values[3], 'operation'),
    key: text(values[4], 'idempotency_key'),
    requestId: text(values[5], 'request_id'),
    gatewayId: text(values[6], 'gateway_id'),
    cause: text(values[7], 'cause'),
    createdAtMs: integer(values[8], 'created_at_ms', Number.MIN_SAFE_INTEGER),
    changedAtMs: integer(values[9], 'changed_at_ms', Number.MIN_SAFE_INTEGER),
    lifetimes: {
      leaseMs: integer(values[10], 'lease_ms', 1),
      retentionMs: integer(values[11], 'retention_ms', 1),
      inDoubtRetentionMs: integer(values[12], 'in_doubt_retention_ms', 1),
    },
    wasInDoubt: flag(values[13], 'was_in_doubt'),
    ownerGaveUp: flag(values[14], 'owner_gave_up'),
    restarted: flag(values[15], 'restarted'),
  };
  const [status, headers, typeOfBody, keyId, extension, expiresAt, leasedUntil] = values.slice(16);
  const body = typeOfBody === 'blob' ? Buffer.from(bytes, NAMES_BYTES) : undefined;
  if (state === 'completed') record.completion = completion(status, headers, body, keyId);
  else if (status !== null || headers !== null || body || keyId !== null) throw bad('status');
  if (!body && typeOfBody !== 'null') throw bad('body');
  if (extension !== null) record.extension = blob(extension, 'extension');
  const expiresInMs = integer(expiresAt, 'expires_at', Number.MIN_SAFE_INTEGER) - runningMs;
  const isLeased = leasedUntil !== null && integer(leasedUntil, 'lease_until', 0) > runningMs;
  return { record, expiresInMs, isLeased };
}

type Selected = SQLOutputValue | undefined;

function completion(
  status: Selected,
  headers: Selected,
  body: Buffer | undefined,
  keyId: Selected,
): StoredCompletion {
  const code = integer(status, 'status', 0);
  if (code > 999) throw bad('status');
  if (headers === null && !body && keyId === null) return { kind: 'tombstone', status: code };
  if (!body) throw bad('body');
  if (keyId === null)
    return { kind: 'response', response: { status: code, headers: readHeaders(headers), body } };
  if (headers !== null) throw bad('headers');
  return { kind: 'sealed', status: code, keyId: text(keyId, 'encryption_key_id'), bytes: body };
}

function readHeaders(json: Selected): string[] {
  try {
    const headers: unknown = JSON.parse(json as string);
    if (Array.isArray(headers) && headers.length % 2 === 0 && headers.every((one) => typeof one === 'string'))
      return headers;
  } catch {
    // The value is not a text, or not JSON.
  }
  throw bad('headers');
}

function blob(value: Selected, name: string): Buffer {
  if (!(value instanceof Uint8Array)) throw bad(name);
  return Buffer.from(value.buffer as ArrayBuffer, value.byteOffset, value.byteLength);
}

const LONGEST_TEXT = 255;

function text(value: Selected, name: string): string {
  if (typeof value !== 'string' || value.length > LONGEST_TEXT) throw bad(name);
  return value;
}

function integer(value: Selected, name: string, min: number): number {
  if (!Number.isSafeInteger(value) || (value as number) < min) throw bad(name);
  return value as number;
}

function flag(value: Selected, name: string): boolean {
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
