import type { DatabaseSync, SQLOutputValue } from 'node:sqlite';
import type { Fingerprint, Scope, Token } from '../../../lib/brands.ts';
import {
  type ExistingAnswer,
  type IdempotencyRecord,
  type Mode,
  type RecordHead,
  UnreadableRecord,
  type UsedMark,
} from '../../contract.ts';
import type { StoredCompletion, StoredRecord } from '../../response-cipher.ts';
import type { Now } from './running-time.ts';

const HEAD_COLUMNS = `id, state, token, fingerprint, merchant, operation, idempotency_key, request_id, gateway_id,
  encryption_key_id, created_at_ms, changed_at_ms, lease_ms, retention_ms, in_doubt_retention_ms,
  was_in_doubt, owner_gave_up, alive_at, expires_at, status, headers`;

/** {@link readRow} expects the values in this order, so select them with `setReturnArrays(true)`. */
export const ROW_COLUMNS = `${HEAD_COLUMNS}, body`;

/** As {@link ROW_COLUMNS}, but with an empty body, so that the statement need not load a large one. */
export const ROW_COLUMNS_WITHOUT_BODY = `${HEAD_COLUMNS},
  CASE typeof(body) WHEN 'blob' THEN zeroblob(0) ELSE body END`;

/** About as much as a payout writes: on a nearly full disk a smaller probe could succeed where a payout fails. */
const PROBE_BYTES = 16_384;

/** The statements that the writer runs, prepared once per connection. */
export function prepareWrites(database: DatabaseSync) {
  const select = database.prepare(`SELECT ${ROW_COLUMNS_WITHOUT_BODY} FROM records WHERE scope = ?`);
  select.setReturnArrays(true);
  return {
    select,
    insert: database.prepare(
      `INSERT INTO records (scope, state, token, fingerprint, merchant, operation, idempotency_key, request_id, gateway_id,
         created_at_ms, changed_at_ms, lease_ms, retention_ms, in_doubt_retention_ms, was_in_doubt, owner_gave_up,
         alive_at, expires_at, status, headers, body, encryption_key_id)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (scope) DO NOTHING`,
    ),
    removeScope: database.prepare('DELETE FROM records WHERE scope = ?'),
    remove: database.prepare('DELETE FROM records WHERE id = ?'),
    markDead: database.prepare(
      "UPDATE records SET state = 'in_doubt', was_in_doubt = 1, changed_at_ms = ? WHERE id = ?",
    ),
    giveUp: database.prepare(
      "UPDATE records SET state = 'in_doubt', was_in_doubt = 1, owner_gave_up = 1, changed_at_ms = ? WHERE id = ?",
    ),
    restart: database.prepare(
      `UPDATE records SET state = 'executing', was_in_doubt = 1, owner_gave_up = 0, token = ?, gateway_id = ?,
         changed_at_ms = ?, lease_ms = ?, retention_ms = ?, in_doubt_retention_ms = ?, alive_at = ?, expires_at = ?
       WHERE id = ?`,
    ),
    renew: database.prepare(
      'UPDATE records SET owner_gave_up = 0, was_in_doubt = ?, alive_at = ? WHERE id = ?',
    ),
    complete: database.prepare(
      `UPDATE records SET state = 'completed', token = ?, changed_at_ms = ?, was_in_doubt = ?, expires_at = ?,
         status = ?, headers = ?, body = ?, encryption_key_id = ?
       WHERE id = ?`,
    ),
    voided: database.prepare('SELECT 1 FROM voided_tokens WHERE token = ? AND expires_at > ?'),
    void: database.prepare('INSERT OR REPLACE INTO voided_tokens (token, expires_at) VALUES (?, ?)'),
    makeMark: database.prepare(
      `INSERT INTO mark (id, store, marks, protect_until, observe_until) VALUES (1, ?, 0, 0, 0)
       ON CONFLICT (id) DO NOTHING`,
    ),
    countMark: database.prepare('UPDATE mark SET marks = marks + 1'),
    protectUntil: database.prepare('UPDATE mark SET protect_until = ?'),
    observeUntil: database.prepare('UPDATE mark SET observe_until = ?'),
    readMark: database.prepare(SELECT_MARK),
    probe: database.prepare(
      `INSERT OR REPLACE INTO probe (id, content) VALUES (1, randomblob(${PROBE_BYTES}))`,
    ),
  };
}

export const SELECT_MARK = 'SELECT store, marks, protect_until, observe_until FROM mark';

/** Reads a row of {@link SELECT_MARK}. */
export function markOf(
  row: Record<string, SQLOutputValue> | undefined,
  mode: Mode,
  { runningMs }: Now,
): UsedMark {
  const otherUntil = mode === 'protect' ? row?.observe_until : row?.protect_until;
  return {
    id: String(row?.store),
    count: Number(row?.marks),
    otherMode: Number(otherUntil) > runningMs,
  };
}

/** A row whose values are all valid. `aliveAt` and `expiresAt` are running times in milliseconds (see running-time.ts). */
export interface Row<R extends StoredRecord = StoredRecord> {
  id: number;
  record: R;
  /** The owner marked the record in doubt, so it is not executing any more. */
  ownerGaveUp: boolean;
  /** When the owner last started, restarted or renewed. */
  aliveAt: number;
  expiresAt: number;
}

const LONGEST_TEXT = 255;
const TOKEN_BYTES = 16;
const FINGERPRINT_BYTES = 32;

function bytes(value: SQLOutputValue | undefined, length: number, name: string): Buffer {
  if (!(value instanceof Uint8Array) || value.length !== length) throw bad(name);
  return asBuffer(value);
}

const asBuffer = (value: Uint8Array): Buffer =>
  Buffer.from(value.buffer as ArrayBuffer, value.byteOffset, value.byteLength);

function text(value: SQLOutputValue | undefined, name: string): string {
  if (typeof value !== 'string' || value.length > LONGEST_TEXT) throw bad(name);
  return value;
}

function integer(value: SQLOutputValue | undefined, name: string, min: number, max?: number): number {
  if (
    !Number.isSafeInteger(value) ||
    (value as number) < min ||
    (max !== undefined && (value as number) > max)
  )
    throw bad(name);
  return value as number;
}

const bad = (name: string) => new UnreadableRecord(`the value in column ${name} is not valid`);

const FIRST_TIME = Number.MIN_SAFE_INTEGER;

/** @throws {UnreadableRecord} if any value is one that this version does not write */
export function readRow(values: SQLOutputValue[]): Row {
  const state = values[1];
  if (state !== 'executing' && state !== 'completed' && state !== 'in_doubt') throw bad('state');
  const keyId = values[9] === null ? undefined : text(values[9], 'encryption_key_id');
  const head: RecordHead = {
    ...{ cause: '', restarted: false },
    state,
    token: bytes(values[2], TOKEN_BYTES, 'token') as Token,
    fingerprint: bytes(values[3], FINGERPRINT_BYTES, 'fingerprint') as Fingerprint,
    merchant: text(values[4], 'merchant'),
    operation: text(values[5], 'operation'),
    key: text(values[6], 'idempotency_key'),
    requestId: text(values[7], 'request_id'),
    gatewayId: text(values[8], 'gateway_id'),
    ...(keyId !== undefined && { encryptionKeyId: keyId }),
    createdAtMs: integer(values[10], 'created_at_ms', FIRST_TIME),
    changedAtMs: integer(values[11], 'changed_at_ms', FIRST_TIME),
    lifetimes: {
      leaseMs: integer(values[12], 'lease_ms', 1),
      retentionMs: integer(values[13], 'retention_ms', 1),
      inDoubtRetentionMs: integer(values[14], 'in_doubt_retention_ms', 1),
    },
    wasInDoubt: integer(values[15], 'was_in_doubt', 0, 1) === 1,
  };
  const row = {
    id: values[0] as number,
    ownerGaveUp: integer(values[16], 'owner_gave_up', 0, 1) === 1,
    aliveAt: integer(values[17], 'alive_at', FIRST_TIME),
    expiresAt: integer(values[18], 'expires_at', FIRST_TIME),
  };
  const [status, headers, body] = [values[19], values[20], values[21]];
  if (state !== 'completed') {
    if (status !== null || headers !== null || body !== null) throw bad('status');
    if (keyId !== undefined) throw bad('encryption_key_id');
    return { ...row, record: head };
  }
  const completion = readCompletion(integer(status, 'status', 0, 999), headers, body, keyId);
  return { ...row, record: { ...head, completion } };
}

function readCompletion(
  status: number,
  headers: SQLOutputValue | undefined,
  body: SQLOutputValue | undefined,
  keyId: string | undefined,
): StoredCompletion {
  if (headers === null && body === null && keyId === undefined) return { kind: 'tombstone', status };
  if (!(body instanceof Uint8Array)) throw bad('body');
  if (keyId !== undefined) {
    if (headers !== null) throw bad('headers');
    return { kind: 'sealed', status, keyId, bytes: asBuffer(body) };
  }
  return { kind: 'response', response: { status, headers: readHeaders(headers), body: asBuffer(body) } };
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

/**
 * Runs a statement that selects one row, and checks the row. Undefined: there is no row.
 *
 * @throws {UnreadableRecord} also for an integer beyond 2^53, which this store never writes
 */
export function readSelected(select: () => unknown): Row | undefined {
  let values: SQLOutputValue[] | undefined;
  try {
    values = select() as SQLOutputValue[] | undefined;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ERR_OUT_OF_RANGE')
      throw new UnreadableRecord('a number is too large');
    throw error;
  }
  return values && readRow(values);
}

export const scopeBytes = (scope: Scope | string): Buffer => Buffer.from(scope, 'hex');

export const isExpired = ({ expiresAt }: Row, { runningMs }: Now): boolean => runningMs >= expiresAt;

/** Did the owner start, restart or renew within its lease, and since the machine booted? */
export function ownerIsAlive(
  { ownerGaveUp, aliveAt, record }: Row,
  { runningMs, bootBeganAt }: Now,
): boolean {
  return !ownerGaveUp && aliveAt >= bootBeganAt && runningMs - aliveAt < record.lifetimes.leaseMs;
}

/** The answer to a request with this fingerprint. */
export function existingAnswer(
  row: Row<IdempotencyRecord>,
  fingerprint: Uint8Array,
  now: Now,
): ExistingAnswer {
  const { record } = row;
  const { completion, requestId } = record;
  if (Buffer.compare(record.fingerprint, fingerprint) !== 0) return { kind: 'mismatch' };
  if (completion)
    return completion.kind === 'tombstone'
      ? { kind: 'tombstone', requestId }
      : { kind: 'completed', response: completion.response, requestId };
  if (record.state === 'executing' && ownerIsAlive(row, now)) return { kind: 'in_flight' };
  return { kind: 'in_doubt', sinceMs: record.changedAtMs, operation: record.operation, requestId };
}
