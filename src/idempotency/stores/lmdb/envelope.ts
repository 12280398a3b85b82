import { crc32 } from 'node:zlib';
import { UnreadableRecord } from '../../codec.ts';
import { decodeStamp, encodeStamp, STAMP_BYTES, type Stamp } from './stamp.ts';

const CHECKSUM_BYTES = 4;

/**
 * A value of the database: CRC-32 (u32, big-endian) over all that follows, the stamp, the record. The age hangs on the
 * stamp, and a stamp that was damaged on the disk must not make a record look expired.
 */
export function seal(stamp: Stamp, record: Buffer): Buffer {
  const content = Buffer.concat([Buffer.alloc(CHECKSUM_BYTES), encodeStamp(stamp), record]);
  content.writeUInt32BE(crc32(content.subarray(CHECKSUM_BYTES)));
  return content;
}

/** @throws {UnreadableRecord} for a value that {@link seal} did not make */
export function unseal(value: Buffer): { stamp: Stamp; record: Buffer } {
  if (value.length < CHECKSUM_BYTES + STAMP_BYTES) throw new UnreadableRecord('it is too short');
  const content = value.subarray(CHECKSUM_BYTES);
  if (value.readUInt32BE() !== crc32(content)) throw new UnreadableRecord('its checksum is wrong');
  return { stamp: decodeStamp(content), record: content.subarray(STAMP_BYTES) };
}
