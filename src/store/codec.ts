import type { Fingerprint, Token } from '../lib/brands.ts';
import { type KeyRecord, STORE_FORMAT, UnreadableRecord } from './types.ts';

/**
 * The offsets of a record's fields, as Redis and SQLite keep it. Redis' scripts and SQLite's statements look at the first two only.
 *
 *   0     o open, c completed
 *   1     revision, 16 bytes
 *   17    the store's format
 *   18    flags, u8: 1 in doubt, 2 was in doubt, 4 its owner gave up, 8 restarted, 16 a tombstone, 32 there is an extension
 *   19    token, 16 bytes
 *   35    fingerprint, 32 bytes
 *   67    leaseMs, retentionMs u32 each; inDoubtRetentionMs u40; createdAtMs, changedAtMs i48 each
 *   92    merchant, operation, key, request id, gateway id, cause: u8 length and latin1 bytes each
 *   then  with flag 32: u16 length of the extension, the extension
 *   then  in a completed record: status u16
 *   then  unless it is a tombstone: encryption key id, as the texts above, empty if the response is not encrypted; u32 length of
 *         the headers, u32 length of the body, the headers, the body. A header shorter than 255 bytes is u8 length and latin1 bytes,
 *         any other is the byte 255, u32 length and latin1 bytes. If the response is encrypted, the headers are empty, and the body
 *         is the encrypted response
 *
 * Numbers are big-endian. The fields are so narrow that most records take no more of Redis' memory than those of format 2.
 */
export const layout = {
  ...{ open: 0, revision: 1, version: 17, flags: 18, token: 19, fingerprint: 35, leaseMs: 67 },
  ...{ retentionMs: 71, inDoubtRetentionMs: 75, createdAtMs: 80, changedAtMs: 86, texts: 92 },
};

const [OPEN, COMPLETED] = [0x6f, 0x63];
const [IN_DOUBT, WAS_IN_DOUBT, OWNER_GAVE_UP, RESTARTED, TOMBSTONE, EXTENDED] = [1, 2, 4, 8, 16, 32];
const ALL_FLAGS = 63;
const NONE: Buffer = Buffer.alloc(0);
/** The first byte of a header of 255 bytes or more: its length follows in four bytes. */
const LONG = 255;
const TEXTS = 6;
const LONGEST_TEXT = 255;

/** The longest `inDoubtRetentionMs` that a record can hold. */
export const LONGEST_RETENTION_MS = 2 ** 40 - 1;

/**
 * The first bytes of a record that hold all but its response, unless it has a long extension. After the texts come those of the
 * completion: the id of its encryption key, the status, and the lengths of the headers and of the body.
 */
export const HEAD_BYTES = layout.texts + (TEXTS + 1) * (1 + LONGEST_TEXT) + 10;

/**
 * @param completion takes the place of the record's own, for example a tombstone if the response is stored elsewhere
 * @throws {RangeError} if a text is longer than 255 bytes, the extension than 65,535, or if a number is too large for its field
 */
export function encodeRecord(record: KeyRecord, completion = record.completion): Buffer {
  const { lifetimes, extension } = record;
  let body = NONE;
  // All that follows the fields of a fixed size. Writing one long string is faster than writing many short ones.
  let rest =
    encodedText(record.merchant) +
    encodedText(record.operation) +
    encodedText(record.key) +
    encodedText(record.requestId) +
    encodedText(record.gatewayId) +
    encodedText(record.cause);
  if (extension) rest += encodedNumber(extension.length, 2) + extension.toString('latin1');
  if (completion?.kind === 'tombstone') rest += encodedNumber(completion.status, 2);
  else if (completion?.kind === 'encrypted') {
    body = completion.bytes;
    rest += encodedNumber(completion.status, 2) + encodedText(completion.keyId);
    rest += encodedNumber(0, 4) + encodedNumber(body.length, 4);
  } else if (completion) {
    const { status, headers } = completion.response;
    body = completion.response.body;
    let section = '';
    for (const header of headers) section += lengthPrefixOf(header) + header;
    rest += encodedNumber(status, 2) + encodedText('');
    rest += encodedNumber(section.length, 4) + encodedNumber(body.length, 4) + section;
  }
  const bytes = Buffer.allocUnsafe(layout.texts + rest.length + body.length);
  bytes[layout.open] = completion ? COMPLETED : OPEN;
  record.revision.copy(bytes, layout.revision);
  bytes[layout.version] = STORE_FORMAT;
  bytes[layout.flags] =
    (record.state === 'in_doubt' ? IN_DOUBT : 0) |
    (record.wasInDoubt ? WAS_IN_DOUBT : 0) |
    (record.ownerGaveUp ? OWNER_GAVE_UP : 0) |
    (record.restarted ? RESTARTED : 0) |
    (completion?.kind === 'tombstone' ? TOMBSTONE : 0) |
    (extension ? EXTENDED : 0);
  record.token.copy(bytes, layout.token);
  record.fingerprint.copy(bytes, layout.fingerprint);
  bytes.writeUInt32BE(lifetimes.leaseMs, layout.leaseMs);
  bytes.writeUInt32BE(lifetimes.retentionMs, layout.retentionMs);
  bytes.writeUIntBE(lifetimes.inDoubtRetentionMs, layout.inDoubtRetentionMs, 5);
  bytes.writeIntBE(record.createdAtMs, layout.createdAtMs, 6);
  bytes.writeIntBE(record.changedAtMs, layout.changedAtMs, 6);
  bytes.write(rest, layout.texts, 'latin1');
  body.copy(bytes, layout.texts + rest.length);
  return bytes;
}

function encodedText(text: string): string {
  if (text.length > LONGEST_TEXT) throw new RangeError('a text of a record holds at most 255 bytes');
  return String.fromCharCode(text.length) + text;
}

/** Encodes the length of a header: as one byte, or as {@link LONG} and four bytes. */
const lengthPrefixOf = ({ length }: string): string =>
  length < LONG ? String.fromCharCode(length) : String.fromCharCode(LONG) + encodedNumber(length, 4);

/** A number as a latin1 text of its bytes, big-endian. @throws {RangeError} if the number needs more bytes */
function encodedNumber(value: number, bytes: 2 | 4): string {
  if (value > (bytes === 2 ? 0xffff : 0xffff_ffff))
    throw new RangeError(`a field of ${bytes} bytes cannot hold ${value}`);
  if (bytes === 2) return String.fromCharCode(value >>> 8, value & 255);
  return String.fromCharCode(value >>> 24, (value >>> 16) & 255, (value >>> 8) & 255, value & 255);
}

/** @throws {UnreadableRecord} for bytes that {@link encodeRecord} would not write */
export function decodeRecord(bytes: Buffer): KeyRecord {
  const { head, status, headersAt, bodyAt, end } = decodeHead(bytes);
  if (end > bytes.length) throw endsTooEarly();
  if (end < bytes.length) throw new UnreadableRecord('there are bytes after its last field');
  if (head.state !== 'completed') return head;
  if (((bytes[layout.flags] as number) & TOMBSTONE) !== 0) {
    head.completion = { kind: 'tombstone', status };
    return head;
  }
  const body = bytes.subarray(bodyAt);
  if (head.encryptionKeyId !== undefined) {
    if (bodyAt > headersAt) throw new UnreadableRecord('it is encrypted, and its headers are not');
    head.completion = { kind: 'encrypted', status, keyId: head.encryptionKeyId, bytes: body };
    return head;
  }
  // Cutting one string is far faster than decoding each header.
  const section = bytes.toString('latin1', headersAt, bodyAt);
  const headers: string[] = [];
  for (let at = headersAt; at < bodyAt; ) {
    let length = bytes[at++] as number;
    if (length === LONG) {
      if (at + 4 > bodyAt) throw endsTooEarly();
      length = bytes.readUInt32BE(at);
      if (length < LONG) throw new UnreadableRecord('the length of a header has the wrong form');
      at += 4;
    }
    if (at + length > bodyAt) throw endsTooEarly();
    headers.push(section.substring(at - headersAt, at + length - headersAt));
    at += length;
  }
  if (headers.length % 2 !== 0) throw new UnreadableRecord('a header has a name and no value');
  head.completion = { kind: 'response', response: { status, headers, body } };
  return head;
}

/** `head`: without its completion. `headersAt` and `bodyAt` are offsets; `end` is the length of the whole record. */
interface Parts {
  head: KeyRecord;
  status: number;
  headersAt: number;
  bodyAt: number;
  end: number;
}

/**
 * Reads the whole record, or its first {@link HEAD_BYTES}.
 *
 * @throws {UnreadableRecord}
 */
export function decodeHead(bytes: Buffer): Parts {
  if (bytes.length <= layout.texts) throw endsTooEarly();
  if (bytes[layout.version] !== STORE_FORMAT)
    throw new UnreadableRecord(`its format version is ${bytes[layout.version]}`);
  const flags = bytes[layout.flags] as number;
  const isOpen = bytes[layout.open] === OPEN;
  if (flags > ALL_FLAGS || flags & (isOpen ? TOMBSTONE : IN_DOUBT))
    throw new UnreadableRecord('its flags are unknown');
  if (!isOpen && bytes[layout.open] !== COMPLETED) throw new UnreadableRecord('its state is unknown');
  const operationAt = layout.texts + 1 + (bytes[layout.texts] as number);
  const keyAt = operationAt + 1 + (bytes[operationAt] as number);
  const requestIdAt = keyAt + 1 + (bytes[keyAt] as number);
  const gatewayIdAt = requestIdAt + 1 + (bytes[requestIdAt] as number);
  const causeAt = gatewayIdAt + 1 + (bytes[gatewayIdAt] as number);
  // An offset past the last byte makes all later offsets NaN, so the comparison is false.
  const textsEnd = causeAt + 1 + (bytes[causeAt] as number);
  if (!(textsEnd <= bytes.length)) throw endsTooEarly();
  const texts = bytes.toString('latin1', layout.texts, textsEnd);
  const text = (at: number, end: number) => texts.substring(at + 1 - layout.texts, end - layout.texts);
  const head: KeyRecord = {
    revision: bytes.subarray(layout.revision, layout.version),
    state: isOpen ? (flags & IN_DOUBT ? 'in_doubt' : 'executing') : 'completed',
    token: bytes.subarray(layout.token, layout.fingerprint) as Token,
    fingerprint: bytes.subarray(layout.fingerprint, layout.leaseMs) as Fingerprint,
    merchant: text(layout.texts, operationAt),
    operation: text(operationAt, keyAt),
    key: text(keyAt, requestIdAt),
    requestId: text(requestIdAt, gatewayIdAt),
    gatewayId: text(gatewayIdAt, causeAt),
    lifetimes: {
      leaseMs: bytes.readUInt32BE(layout.leaseMs),
      retentionMs: bytes.readUInt32BE(layout.retentionMs),
      inDoubtRetentionMs: bytes.readUIntBE(layout.inDoubtRetentionMs, 5),
    },
    wasInDoubt: (flags & WAS_IN_DOUBT) !== 0,
    ownerGaveUp: (flags & OWNER_GAVE_UP) !== 0,
    restarted: (flags & RESTARTED) !== 0,
    cause: text(causeAt, textsEnd),
    createdAtMs: bytes.readIntBE(layout.createdAtMs, 6),
    changedAtMs: bytes.readIntBE(layout.changedAtMs, 6),
  };
  let at = textsEnd;
  if (flags & EXTENDED) {
    if (at + 2 > bytes.length) throw endsTooEarly();
    const extensionAt = at + 2;
    at = extensionAt + bytes.readUInt16BE(at);
    if (at > bytes.length) throw endsTooEarly();
    head.extension = bytes.subarray(extensionAt, at);
  }
  if (isOpen) return { head, status: 0, headersAt: at, bodyAt: at, end: at };
  if (at + 2 > bytes.length) throw endsTooEarly();
  const status = bytes.readUInt16BE(at);
  at += 2;
  if (flags & TOMBSTONE) return { head, status, headersAt: at, bodyAt: at, end: at };
  const lengthsAt = at + 1 + (bytes[at] as number);
  if (!(lengthsAt + 8 <= bytes.length)) throw endsTooEarly();
  if (lengthsAt > at + 1) head.encryptionKeyId = bytes.toString('latin1', at + 1, lengthsAt);
  const headersAt = lengthsAt + 8;
  const bodyAt = headersAt + bytes.readUInt32BE(lengthsAt);
  return { head, status, headersAt, bodyAt, end: bodyAt + bytes.readUInt32BE(lengthsAt + 4) };
}

const endsTooEarly = () => new UnreadableRecord('it ends too early');
