import type { Fingerprint, Token } from '../kernel/brands.ts';
import type { IdempotencyRecord, RecordHead, Settlement } from './record.ts';

/**
 * The bytes of a record, version 1. The first 22 bytes have fixed places because stores compare and change them in place:
 *
 *   0     version, 0x01
 *   1     state: c claimed, e executing, d in doubt, s settled with a response, t settled as a tombstone
 *   2     token, 16 bytes
 *   18    mark, u32: a store's own note of when the state began (Redis: the time to live that was left, in ms; 0 where
 *         the owner itself gave up)
 *   22    fingerprint, 32 bytes
 *   54    createdAtMs, f64
 *   62    changedAtMs, f64
 *   70    merchant, operation, key: u8 length and latin1 bytes each
 *   then  for s and t: status u16; for s: u32 length of the headers, the headers (each u32 length and latin1 bytes),
 *         u32 length of the body, the body
 *
 * Numbers are big-endian.
 */
export const layout = {
  version: 0,
  state: 1,
  token: 2,
  mark: 18,
  fingerprint: 22,
  createdAt: 54,
  changedAt: 62,
  texts: 70,
};

const VERSION = 1;
const stateCodes = { claimed: 'c', executing: 'e', in_doubt: 'd' } as const;

const LONGEST_TEXT = 255;

/** @param more bytes to leave room for behind the head */
function encodeHead(head: RecordHead, code: string, mark: number, more = 0): Buffer {
  const { merchant, operation, key } = head;
  const texts = [merchant, operation, key];
  const length = layout.texts + merchant.length + operation.length + key.length + texts.length;
  if (texts.some((text) => text.length > LONGEST_TEXT))
    throw new RangeError('merchant, operation and key hold 255 bytes at most');
  const bytes = Buffer.allocUnsafe(length + more);
  bytes[layout.version] = VERSION;
  bytes[layout.state] = code.charCodeAt(0);
  head.token.copy(bytes, layout.token);
  bytes.writeUInt32BE(mark, layout.mark);
  head.fingerprint.copy(bytes, layout.fingerprint);
  bytes.writeDoubleBE(head.createdAtMs, layout.createdAt);
  bytes.writeDoubleBE(head.changedAtMs, layout.changedAt);
  let at = layout.texts;
  for (const text of texts) {
    bytes[at++] = text.length;
    at += bytes.write(text, at, 'latin1');
  }
  return bytes;
}

const STATUS_BYTES = 2;
const LENGTH_BYTES = 4;

/** A settlement's state code, and the bytes that follow a record's head. */
export function encodeSettlement(settlement: Settlement): { code: string; bytes: Buffer } {
  if (settlement.kind === 'tombstone') {
    const status = Buffer.alloc(STATUS_BYTES);
    status.writeUInt16BE(settlement.status);
    return { code: 't', bytes: status };
  }
  const { status, headers, body } = settlement.response;
  const section = headers.reduce((sum, text) => sum + LENGTH_BYTES + text.length, 0);
  const bytes = Buffer.allocUnsafe(STATUS_BYTES + 2 * LENGTH_BYTES + section + body.length);
  let at = bytes.writeUInt16BE(status, 0);
  at = bytes.writeUInt32BE(section, at);
  for (const text of headers) {
    at = bytes.writeUInt32BE(text.length, at);
    at += bytes.write(text, at, 'latin1');
  }
  at = bytes.writeUInt32BE(body.length, at);
  body.copy(bytes, at);
  return { code: 's', bytes };
}

/** A time as records hold it. */
export function encodeTime(ms: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleBE(ms);
  return bytes;
}

/** `mark` is the store's own, see the layout. */
export function encodeRecord(record: IdempotencyRecord, mark = 0): Buffer {
  if (record.state !== 'settled') return encodeHead(record, stateCodes[record.state], mark);
  if (!record.settlement) throw new TypeError('a settled record needs its settlement');
  const { code, bytes } = encodeSettlement(record.settlement);
  const whole = encodeHead(record, code, mark, bytes.length);
  bytes.copy(whole, whole.length - bytes.length);
  return whole;
}

/** Reads on from `at`; a length that points past the end is a broken record. */
class Reader {
  #at: number;
  readonly #bytes: Buffer;
  constructor(bytes: Buffer, at: number) {
    this.#bytes = bytes;
    this.#at = at;
  }
  take(length: number): Buffer {
    const end = this.#at + length;
    if (end > this.#bytes.length) throw new UnreadableRecord('it ends too early');
    const part = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return part;
  }
  text(lengthBytes: 1 | 4): string {
    return this.take(this.take(lengthBytes).readUIntBE(0, lengthBytes)).toString('latin1');
  }
  rest(): Buffer {
    return this.take(this.#bytes.length - this.#at);
  }
}

function decodeSettlement(code: string, reader: Reader): Settlement {
  const status = reader.take(2).readUInt16BE();
  if (code === 't') return { kind: 'tombstone', status };
  const section = reader.take(reader.take(4).readUInt32BE());
  const inner = new Reader(section, 0);
  const headers: string[] = [];
  for (let read = 0; read < section.length; ) {
    const text = inner.text(4);
    headers.push(text);
    read += 4 + text.length;
  }
  if (headers.length % 2 !== 0) throw new UnreadableRecord('a header field has no value');
  const body = reader.take(reader.take(4).readUInt32BE());
  return { kind: 'response', response: { status, headers, body } };
}

const states: Record<string, RecordHead['state']> = {
  c: 'claimed',
  e: 'executing',
  d: 'in_doubt',
  s: 'settled',
  t: 'settled',
};

/** No record's head is longer. */
export const HEAD_BYTES = layout.texts + 3 * 256;

/**
 * A record's head, from the record or from its first {@link HEAD_BYTES}.
 *
 * @throws {UnreadableRecord}
 */
export function decodeHead(bytes: Buffer): RecordHead {
  return readHead(bytes).head;
}

/** The store's own mark, see the layout. */
export const markOf = (bytes: Buffer): number => bytes.readUInt32BE(layout.mark);

/** @throws {UnreadableRecord} for anything that {@link encodeRecord} did not write. */
export function decodeRecord(bytes: Buffer): IdempotencyRecord {
  const { head, code, reader } = readHead(bytes);
  const record = head.state === 'settled' ? { ...head, settlement: decodeSettlement(code, reader) } : head;
  if (reader.rest().length > 0) throw new UnreadableRecord('it goes on after its end');
  return record;
}

function readHead(bytes: Buffer): { head: RecordHead; code: string; reader: Reader } {
  if (bytes.length < layout.texts) throw new UnreadableRecord('it is too short');
  if (bytes[layout.version] !== VERSION)
    throw new UnreadableRecord(`its version is ${bytes[layout.version]}`);
  const code = String.fromCharCode(bytes[layout.state] ?? 0);
  const state = states[code];
  if (!state) throw new UnreadableRecord('its state is unknown');
  const reader = new Reader(bytes, layout.texts);
  const head: RecordHead = {
    state,
    token: bytes.subarray(layout.token, layout.mark) as Token,
    fingerprint: bytes.subarray(layout.fingerprint, layout.createdAt) as Fingerprint,
    createdAtMs: bytes.readDoubleBE(layout.createdAt),
    changedAtMs: bytes.readDoubleBE(layout.changedAt),
    merchant: reader.text(1),
    operation: reader.text(1),
    key: reader.text(1),
  };
  if (!Number.isFinite(head.createdAtMs + head.changedAtMs))
    throw new UnreadableRecord('a time is no number');
  return { head, code, reader };
}

/** The bytes under a scope are not a record of ours. Never to be taken for an absent one. */
export class UnreadableRecord extends Error {
  override readonly name = 'UnreadableRecord';
  constructor(why: string) {
    super(`the record cannot be read: ${why}`);
  }
}
