import type { SQLOutputValue, StatementSync } from 'node:sqlite';
import { RECORD_ID_DIGITS, type RecordId } from '../../lib/brands.ts';
import { decodeHead, encodeRecord, LONGEST_RETENTION_MS } from '../codec.ts';
import type { Held } from '../register.ts';
import {
  type IdentityInUse,
  type KeyRecord,
  type Mode,
  type StoredCompletion,
  UnreadableRecord,
} from '../types.ts';
import type { Value } from './batch.ts';

/** The columns that hold a record, in the order of {@link rowOf}. */
export const RECORD_COLUMNS = [
  ...['state', 'merchant', 'operation', 'idempotency_key', 'cause', 'created_at_ms', 'status'],
  ...['record', 'encryption_key_id', 'headers', 'body'],
];

/** What {@link readRow} reads. The blobs are one value, because each value that is a blob costs as much as six others. */
const selecting = (
  blobs: string,
) => `SELECT CAST(${blobs} AS BLOB), length(record), encryption_key_id, headers,
  typeof(body), expires_at, lease_until FROM records`;

export const SELECT_RECORD = `${selecting("record || ifnull(body, '')")} WHERE record_id = ?`;

/** Selects by row number and with an empty body, so that the statement need not load a large one. */
export const SELECT_HEAD = `${selecting('record')} WHERE id = ?`;

/** The value of `lease_until` after a reboot: the owner of an open record is dead. */
export const OWNER_IS_DEAD = -1;

const ID = Buffer.alloc(RECORD_ID_DIGITS / 2);

/**
 * The bytes of a record id, in a buffer that the next call overwrites. SQLite and a batch copy them at once, and a new buffer for each
 * call would cost more than the copy.
 */
export function idBytes(id: RecordId): Buffer {
  ID.write(id, 'hex');
  return ID;
}

/** The values of {@link RECORD_COLUMNS}. The column `record` has a response as if it were a tombstone; the others have its content. */
export function rowOf(record: KeyRecord): Value[] {
  const { state, merchant, operation, key, cause, createdAtMs, completion } = record;
  const status = completion?.kind === 'response' ? completion.response.status : completion?.status;
  const head = encodeRecord(record, status === undefined ? undefined : { kind: 'tombstone', status });
  const values: Value[] = [state, merchant, operation, key, cause];
  values.push(Math.trunc(createdAtMs), status ?? null, head);
  if (completion?.kind === 'response')
    values.push(null, JSON.stringify(completion.response.headers), completion.response.body);
  else if (completion?.kind === 'encrypted') values.push(completion.keyId, null, completion.bytes);
  else values.push(null, null, null);
  return values;
}

/**
 * Runs {@link SELECT_RECORD} or {@link SELECT_HEAD}, and checks the values. A row that has expired counts as none.
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
  const [blobs, length, keyId, headers, typeOfBody, expiresAt, leasedUntil] = values;
  if (!(blobs instanceof Uint8Array)) throw bad('record');
  const bytes = Buffer.from(blobs.buffer as ArrayBuffer);
  const { head: record, status, end } = decodeHead(bytes);
  if (end !== length) throw bad('record');
  const body = typeOfBody === 'blob' ? bytes.subarray(end) : undefined;
  if (!body && typeOfBody !== 'null') throw bad('body');
  if (record.state === 'completed') record.completion = completion(status, headers, body, keyId);
  else if (headers !== null || body || keyId !== null) throw bad('body');
  const expiresInMs = integer(expiresAt, 'expires_at', Number.MIN_SAFE_INTEGER) - runningMs;
  const lease = leasedUntil === null ? 0 : integer(leasedUntil, 'lease_until', OWNER_IS_DEAD);
  // Makes the record at least one lease old, so that its owner counts as dead.
  if (lease === OWNER_IS_DEAD) {
    const { leaseMs, inDoubtRetentionMs } = record.lifetimes;
    // A damaged `expires_at` may be larger than a record can hold.
    const leftMs = Math.min(Math.ceil(expiresInMs) + leaseMs, LONGEST_RETENTION_MS);
    record.lifetimes = { ...record.lifetimes, inDoubtRetentionMs: Math.max(inDoubtRetentionMs, leftMs) };
  }
  return { record, expiresInMs, isLeased: lease > runningMs };
}

type Selected = SQLOutputValue | undefined;

function completion(
  status: number,
  headers: Selected,
  body: Buffer | undefined,
  keyId: Selected,
): StoredCompletion {
  if (headers === null && !body && keyId === null) return { kind: 'tombstone', status };
  if (!body) throw bad('body');
  if (keyId === null) return { kind: 'response', response: { status, headers: readHeaders(headers), body } };
  if (headers !== null) throw bad('headers');
  if (typeof keyId !== 'string') throw bad('encryption_key_id');
  return { kind: 'encrypted', status, keyId, bytes: body };
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

function integer(value: Selected, name: string, min: number): number {
  if (!Number.isSafeInteger(value) || (value as number) < min) throw bad(name);
  return value as number;
}

const bad = (name: string) => new UnreadableRecord(`the value in column ${name} is not valid`);

export const SELECT_IDENTITY = 'SELECT mark, marks, protect_until, observe_until FROM store';

/** The identity in a row of {@link SELECT_IDENTITY}, if a gateway has written one. */
export function storedIdentity(row: unknown, mode: Mode, runningMs: number): IdentityInUse | undefined {
  const [id, count, protectUntil, observeUntil] = row as [string | null, number, number, number];
  if (id === null) return undefined;
  return { id, count, otherMode: (mode === 'protect' ? observeUntil : protectUntil) > runningMs };
}
