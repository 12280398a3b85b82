import type { Fingerprint, Token } from '../../lib/brands.ts';
import { type RecordHead, UnreadableRecord } from '../contract.ts';
import type { StoredCompletion, StoredRecord } from '../response-cipher.ts';

/**
 * The offsets of a record's fields, format version 2. The fields before the texts have fixed offsets, because the Lua
 * scripts read them and change some of them in place. (Lua counts bytes from 1, so offset 18 is byte 19 in a script.)
 *
 *   0     format version, 0x02
 *   1     state: e executing, d in doubt, c completed with a response, t completed as a tombstone
 *   2     token, 16 bytes
 *   18    flags, u8: 1 the record was in doubt, 2 its owner gave up (the owner itself marked it in doubt)
 *   19    leaseMs, u48
 *   25    retentionMs, u48
 *   31    inDoubtRetentionMs, u48
 *   37    fingerprint, 32 bytes
 *   69    createdAtMs, f64
 *   77    changedAtMs, f64
 *   85    merchant, operation, key, request id, gateway id, encryption key id: u8 length and latin1 bytes each. Only a
 *         completed record whose response is encrypted has an encryption key id; in the others it is empty
 *   then  c and t: status u16; c: u32 length of the headers, the headers (each u32 length and latin1 bytes), u32 length
 *         of the body, the body. If the response is encrypted, the headers are empty, and the body is the sealed response
 *
 * Numbers are big-endian. Records of format version 1 have other key names and are not read.
 *
 * The age of an executing record is its inDoubtRetentionMs minus the remaining TTL of its key.
 */
export const layout = {
  version: 0,
  state: 1,
  token: 2,
  flags: 18,
  leaseMs: 19,
  retentionMs: 25,
  inDoubtRetentionMs: 31,
  fingerprint: 37,
  createdAtMs: 69,
  changedAtMs: 77,
  texts: 85,
};

const FORMAT_VERSION = 2;
const WAS_IN_DOUBT = 1;
const OWNER_GAVE_UP = 2;
const [EXECUTING, IN_DOUBT, RESPONSE, TOMBSTONE] = [0x65, 0x64, 0x63, 0x74];
const TEXTS = 6;
const LONGEST_TEXT = 255;

/** The largest size of a head: the fields before the completion. */
export const HEAD_BYTES = layout.texts + TEXTS * (1 + LONGEST_TEXT);

/** @throws {RangeError} if a text is longer than 255 bytes */
export function encodeRecord(record: StoredRecord, ownerGaveUp = false): Buffer {
  const { merchant, operation, key, requestId, gatewayId, lifetimes, completion } = record;
  if (
    merchant.length > LONGEST_TEXT ||
    operation.length > LONGEST_TEXT ||
    key.length > LONGEST_TEXT ||
    requestId.length > LONGEST_TEXT ||
    gatewayId.length > LONGEST_TEXT
  )
    throw new RangeError('a text of a record holds at most 255 bytes');
  const texts =
    merchant.length + operation.length + key.length + requestId.length + gatewayId.length + TEXTS - 1;
  const tail = completion && encodeCompletion(completion);
  const bytes = Buffer.allocUnsafe(layout.texts + texts + (tail?.bytes.length ?? 1));
  bytes[layout.version] = FORMAT_VERSION;
  bytes[layout.state] = tail ? tail.code.charCodeAt(0) : record.state === 'in_doubt' ? IN_DOUBT : EXECUTING;
  record.token.copy(bytes, layout.token);
  bytes[layout.flags] = (record.wasInDoubt ? WAS_IN_DOUBT : 0) | (ownerGaveUp ? OWNER_GAVE_UP : 0);
  bytes.writeUIntBE(lifetimes.leaseMs, layout.leaseMs, 6);
  bytes.writeUIntBE(lifetimes.retentionMs, layout.retentionMs, 6);
  bytes.writeUIntBE(lifetimes.inDoubtRetentionMs, layout.inDoubtRetentionMs, 6);
  record.fingerprint.copy(bytes, layout.fingerprint);
  bytes.writeDoubleBE(record.createdAtMs, layout.createdAtMs);
  bytes.writeDoubleBE(record.changedAtMs, layout.changedAtMs);
  let at = writeText(bytes, merchant, layout.texts);
  at = writeText(bytes, operation, at);
  at = writeText(bytes, key, at);
  at = writeText(bytes, requestId, at);
  at = writeText(bytes, gatewayId, at);
  if (tail) tail.bytes.copy(bytes, at);
  else bytes[at] = 0;
  return bytes;
}

function writeText(bytes: Buffer, text: string, at: number): number {
  bytes[at] = text.length;
  return at + 1 + bytes.write(text, at + 1, 'latin1');
}

/** The state code of a completed record, and the bytes that go behind its gateway id: the encryption key id and the rest. */
export function encodeCompletion(completion: StoredCompletion): { code: 'c' | 't'; bytes: Buffer } {
  if (completion.kind === 'tombstone') {
    const bytes = Buffer.alloc(3);
    bytes.writeUInt16BE(completion.status, 1);
    return { code: 't', bytes };
  }
  if (completion.kind === 'sealed') {
    const { status, keyId, bytes: sealed } = completion;
    const bytes = Buffer.allocUnsafe(1 + keyId.length + 10 + sealed.length);
    let at = writeText(bytes, keyId, 0);
    at = bytes.writeUInt16BE(status, at);
    at = bytes.writeUInt32BE(0, at);
    at = bytes.writeUInt32BE(sealed.length, at);
    sealed.copy(bytes, at);
    return { code: 'c', bytes };
  }
  const { status, headers, body } = completion.response;
  // Writing one long string is faster than writing many short ones.
  let section = '';
  for (const text of headers) section += lengthAsText(text.length) + text;
  const bytes = Buffer.allocUnsafe(11 + section.length + body.length);
  bytes[0] = 0;
  let at = bytes.writeUInt16BE(status, 1);
  at = bytes.writeUInt32BE(section.length, at);
  at += bytes.write(section, at, 'latin1');
  at = bytes.writeUInt32BE(body.length, at);
  body.copy(bytes, at);
  return { code: 'c', bytes };
}

/** A big-endian u32 as four latin1 characters. */
const lengthAsText = (length: number): string =>
  String.fromCharCode(length >>> 24, (length >>> 16) & 255, (length >>> 8) & 255, length & 255);

/** A time in milliseconds, in the form of `createdAtMs` and `changedAtMs`. */
export function encodeTime(ms: number): Buffer {
  const bytes = Buffer.allocUnsafe(8);
  bytes.writeDoubleBE(ms);
  return bytes;
}

/** The bytes of `leaseMs`, `retentionMs` and `inDoubtRetentionMs`. */
export const lifetimesIn = (record: Buffer): Buffer => record.subarray(layout.leaseMs, layout.fingerprint);

/** False: the bytes have another format version, or are not a record. */
export const isThisFormat = (bytes: Buffer): boolean => bytes[layout.version] === FORMAT_VERSION;

/** Whether the owner itself marked the record in doubt. */
export const ownerGaveUp = (record: Buffer): boolean => ((record[layout.flags] ?? 0) & OWNER_GAVE_UP) !== 0;

/** @throws {UnreadableRecord} for bytes that {@link encodeRecord} would not write */
export function decodeRecord(bytes: Buffer): StoredRecord {
  const record: StoredRecord = decodeHead(bytes);
  let at = layout.texts;
  for (let text = 0; text < TEXTS; text++) at += 1 + (bytes[at] as number);
  if (record.state === 'completed') {
    if (at + 2 > bytes.length) throw endsTooEarly();
    const status = bytes.readUInt16BE(at);
    at += 2;
    if (bytes[layout.state] === TOMBSTONE) {
      record.completion = { kind: 'tombstone', status };
    } else {
      if (at + 4 > bytes.length) throw endsTooEarly();
      const headersEnd = at + 4 + bytes.readUInt32BE(at);
      at += 4;
      if (headersEnd + 4 > bytes.length) throw endsTooEarly();
      // Cutting one string is far faster than decoding each header.
      const section = bytes.toString('latin1', at, headersEnd);
      const sectionAt = at;
      const headers: string[] = [];
      while (at < headersEnd) {
        const textAt = at + 4;
        if (textAt > headersEnd) throw endsTooEarly();
        at = textAt + bytes.readUInt32BE(at);
        if (at > headersEnd) throw endsTooEarly();
        headers.push(section.substring(textAt - sectionAt, at - sectionAt));
      }
      if (headers.length % 2 !== 0) throw new UnreadableRecord('a header has a name and no value');
      const bodyAt = headersEnd + 4;
      at = bodyAt + bytes.readUInt32BE(headersEnd);
      if (at > bytes.length) throw endsTooEarly();
      const body = bytes.subarray(bodyAt, at);
      const { encryptionKeyId: keyId } = record;
      if (keyId !== undefined && headers.length > 0)
        throw new UnreadableRecord('it is encrypted, and its headers are not');
      record.completion =
        keyId === undefined
          ? { kind: 'response', response: { status, headers, body } }
          : { kind: 'sealed', status, keyId, bytes: body };
    }
  }
  if (at !== bytes.length) throw new UnreadableRecord('there are bytes after its last field');
  return record;
}

/**
 * A record's head, from the record or from its first {@link HEAD_BYTES}.
 *
 * @throws {UnreadableRecord}
 */
export function decodeHead(bytes: Buffer): RecordHead {
  if (bytes.length <= layout.texts) throw endsTooEarly();
  if (!isThisFormat(bytes)) throw new UnreadableRecord(`its format version is ${bytes[layout.version]}`);
  const flags = bytes[layout.flags] as number;
  if (flags > (WAS_IN_DOUBT | OWNER_GAVE_UP)) throw new UnreadableRecord('its flags are unknown');
  const createdAtMs = bytes.readDoubleBE(layout.createdAtMs);
  const changedAtMs = bytes.readDoubleBE(layout.changedAtMs);
  if (!Number.isFinite(createdAtMs + changedAtMs)) throw new UnreadableRecord('a time is not a number');
  const operationAt = layout.texts + 1 + (bytes[layout.texts] as number);
  const keyAt = operationAt + 1 + (bytes[operationAt] as number);
  const requestIdAt = keyAt + 1 + (bytes[keyAt] as number);
  const gatewayIdAt = requestIdAt + 1 + (bytes[requestIdAt] as number);
  const encryptionKeyIdAt = gatewayIdAt + 1 + (bytes[gatewayIdAt] as number);
  // An offset past the last byte makes all later offsets NaN, so the comparison is false.
  const textsEnd = encryptionKeyIdAt + 1 + (bytes[encryptionKeyIdAt] as number);
  if (!(textsEnd <= bytes.length)) throw endsTooEarly();
  const isEncrypted = bytes[encryptionKeyIdAt] !== 0;
  if (isEncrypted && bytes[layout.state] !== RESPONSE)
    throw new UnreadableRecord('it is encrypted, and has no response');
  const texts = bytes.toString('latin1', layout.texts, textsEnd);
  const text = (at: number, end: number) => texts.substring(at + 1 - layout.texts, end - layout.texts);
  return {
    state: stateOf(bytes[layout.state]),
    token: bytes.subarray(layout.token, layout.flags) as Token,
    fingerprint: bytes.subarray(layout.fingerprint, layout.createdAtMs) as Fingerprint,
    merchant: text(layout.texts, operationAt),
    operation: text(operationAt, keyAt),
    key: text(keyAt, requestIdAt),
    requestId: text(requestIdAt, gatewayIdAt),
    gatewayId: text(gatewayIdAt, encryptionKeyIdAt),
    ...(isEncrypted && { encryptionKeyId: text(encryptionKeyIdAt, textsEnd) }),
    lifetimes: {
      leaseMs: bytes.readUIntBE(layout.leaseMs, 6),
      retentionMs: bytes.readUIntBE(layout.retentionMs, 6),
      inDoubtRetentionMs: bytes.readUIntBE(layout.inDoubtRetentionMs, 6),
    },
    wasInDoubt: (flags & WAS_IN_DOUBT) !== 0,
    createdAtMs,
    changedAtMs,
  };
}

function stateOf(code: number | undefined): RecordHead['state'] {
  if (code === EXECUTING) return 'executing';
  if (code === IN_DOUBT) return 'in_doubt';
  if (code === RESPONSE || code === TOMBSTONE) return 'completed';
  throw new UnreadableRecord('its state is unknown');
}

const endsTooEarly = () => new UnreadableRecord('it ends too early');
