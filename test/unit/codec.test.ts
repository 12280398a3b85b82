import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import type { Fingerprint, Token } from '../../src/lib/brands.ts';
import { decodeHead, decodeRecord, encodeRecord, HEAD_BYTES, layout } from '../../src/store/codec.ts';
import {
  type KeyRecord,
  STORE_FORMAT,
  type StoredCompletion,
  UnreadableRecord,
} from '../../src/store/types.ts';

const bytes = (length: { minLength?: number; maxLength: number }) =>
  fc.uint8Array(length).map((array) => Buffer.from(array));
const latin1 = (maxLength: number) => bytes({ maxLength }).map((part) => part.toString('latin1'));
const exactly = (length: number) => bytes({ minLength: length, maxLength: length });
const time = fc.integer({ min: -(2 ** 47), max: 2 ** 47 - 1 });
const status = fc.integer({ min: 100, max: 599 });

const completion: fc.Arbitrary<StoredCompletion> = fc.oneof(
  fc.record({
    kind: fc.constant('encrypted' as const),
    status,
    keyId: bytes({ minLength: 1, maxLength: 255 }).map((part) => part.toString('latin1')),
    bytes: bytes({ maxLength: 400 }),
  }),
  fc.record({ kind: fc.constant('tombstone' as const), status }),
  fc.record({
    kind: fc.constant('response' as const),
    response: fc.record({
      status,
      headers: fc.array(fc.tuple(latin1(30), latin1(300)), { maxLength: 8 }).map((fields) => fields.flat()),
      body: bytes({ maxLength: 400 }),
    }),
  }),
);

const lifetime = (bits: number) => fc.integer({ min: 0, max: 2 ** bits - 1 });

const head = fc.record({
  revision: exactly(16),
  token: exactly(16) as fc.Arbitrary<Token>,
  fingerprint: exactly(32) as fc.Arbitrary<Fingerprint>,
  createdAtMs: time,
  changedAtMs: time,
  merchant: latin1(255),
  operation: latin1(255),
  key: latin1(255),
  requestId: latin1(255),
  gatewayId: latin1(255),
  cause: latin1(255),
  wasInDoubt: fc.boolean(),
  ownerGaveUp: fc.boolean(),
  restarted: fc.boolean(),
  lifetimes: fc.record({
    ...{ leaseMs: lifetime(32), retentionMs: lifetime(32), inDoubtRetentionMs: lifetime(40) },
  }),
});

/** Fields of a later version, with which most records are tried, too. */
const extension = fc.option(bytes({ maxLength: 300 }), { nil: undefined });
const extended = <T extends object>(record: fc.Arbitrary<T>) =>
  fc.tuple(record, extension).map(([rest, more]) => (more ? { ...rest, extension: more } : rest));

/** A completed record as it is decoded. */
const completedWith = (rest: Omit<KeyRecord, 'state'>, what: StoredCompletion): KeyRecord => ({
  ...rest,
  state: 'completed',
  completion: what,
  ...(what.kind === 'encrypted' && { encryptionKeyId: what.keyId }),
});

const open: fc.Arbitrary<KeyRecord> = fc
  .tuple(extended(head), fc.constantFrom('executing' as const, 'in_doubt' as const))
  .map(([rest, state]) => ({ ...rest, state }));
const completed: fc.Arbitrary<KeyRecord> = fc
  .tuple(extended(head), completion)
  .map(([rest, what]) => completedWith(rest, what));
const record = fc.oneof(open, completed);

/** Undefined if the bytes are refused; any other failure is a failure of the test. */
function decoded(encoded: Buffer): KeyRecord | undefined {
  try {
    return decodeRecord(encoded);
  } catch (error) {
    if (error instanceof UnreadableRecord) return undefined;
    throw error;
  }
}

function withByte(encoded: Buffer, at: number, byte: number): Buffer {
  const changed = Buffer.from(encoded);
  changed[at] = byte;
  return changed;
}

describe('a record', () => {
  it('is decoded as it was encoded', () => {
    fc.assert(
      fc.property(record, (written) => {
        const encoded = encodeRecord(written);
        expect(decodeRecord(encoded)).toEqual(written);
        expect(encoded.subarray(1, 17)).toEqual(written.revision);
        expect(String.fromCharCode(encoded[0] as number)).toBe(written.state === 'completed' ? 'c' : 'o');
        if (written.extension) return;
        const { completion: _, ...expected } = written;
        const { head: read, end } = decodeHead(encoded.subarray(0, HEAD_BYTES));
        expect([read, end]).toEqual([expected, encoded.length]);
      }),
    );
  });

  it('that is cut anywhere is refused', () => {
    fc.assert(
      fc.property(record, fc.nat(), (written, cut) => {
        const encoded = encodeRecord(written);
        expect(decoded(encoded.subarray(0, cut % encoded.length))).toBeUndefined();
      }),
      { numRuns: 500 },
    );
  });

  it('of another format version is refused', () => {
    fc.assert(
      fc.property(record, fc.integer({ min: 0, max: 255 }), (written, version) => {
        fc.pre(version !== STORE_FORMAT);
        expect(decoded(withByte(encodeRecord(written), layout.version, version))).toBeUndefined();
      }),
    );
  });

  it('is never decoded to one that would be encoded differently', () => {
    fc.assert(
      fc.property(record, fc.nat(), fc.integer({ min: 0, max: 255 }), (written, offset, byte) => {
        const encoded = encodeRecord(written);
        const changed = withByte(encoded, offset % encoded.length, byte);
        const read = decoded(changed);
        if (read) expect(encodeRecord(read)).toEqual(changed);
      }),
      { numRuns: 2000 },
    );
  });

  it('with a flag that does not fit the rest, or that this version does not know, is refused', () => {
    fc.assert(
      fc.property(record, fc.nat({ max: 255 }), (written, flags) => {
        const isOpen = written.state !== 'completed';
        fc.pre(flags >= 64 || (flags & (isOpen ? 16 : 1)) !== 0);
        expect(decoded(withByte(encodeRecord(written), layout.flags, flags))).toBeUndefined();
      }),
      { numRuns: 500 },
    );
  });

  it.each(['merchant', 'operation', 'key', 'requestId', 'gatewayId', 'cause'] as const)(
    'with a %s that is too long is not encoded',
    (name) => {
      const [written] = fc.sample(open, { numRuns: 1, seed: 7 });
      const long = { ...(written as KeyRecord), [name]: 'm'.repeat(256) };
      expect(() => encodeRecord(long)).toThrow(RangeError);
    },
  );
});

describe('the bytes of a record', () => {
  const record = {
    ...{ revision: Buffer.alloc(16, 0x33), state: 'executing' as const },
    ...{ token: Buffer.alloc(16, 0x11) as Token, fingerprint: Buffer.alloc(32, 0x22) as Fingerprint },
    ...{ merchant: 'M-1', operation: 'withdraw', key: 'k-1', requestId: 'r-1', gatewayId: 'g-1' },
    lifetimes: { leaseMs: 10_000, retentionMs: 86_400_000, inDoubtRetentionMs: 2_592_000_000 },
    ...{ wasInDoubt: false, ownerGaveUp: false, restarted: false, cause: '' },
    ...{ createdAtMs: 1_764_000_000_000, changedAtMs: 1_764_000_000_500 },
  };
  const response = { status: 201, headers: ['A', 'b'], body: Buffer.from('{}') };
  const headers = ['A'.repeat(254), 'b'.repeat(255)];
  const hex = (bytes: string) => Buffer.from(bytes, 'latin1').toString('hex');
  const names = `${'11'.repeat(16)}${'22'.repeat(32)}`;
  const times = '00002710' + '05265c00' + '009a7ec800' + '019ab697e800' + '019ab697e9f4';
  const texts = hex('\x03M-1\x08withdraw\x03k-1\x03r-1\x03g-1');
  const rest = `${names}${times}${texts}`;
  const open = `6f${'33'.repeat(16)}04`;
  const closed = `63${'33'.repeat(16)}04`;
  // A minor version must read and write exactly these: other gateways of its major version use the same Redis.
  const cases: [what: string, record: KeyRecord, hex: string][] = [
    ['executing', record, `${open}00${rest}00`],
    [
      'in doubt',
      { ...record, state: 'in_doubt', wasInDoubt: true, ownerGaveUp: true, restarted: true, cause: 'c' },
      `${open}0f${rest}0163`,
    ],
    ['of a later version', { ...record, extension: Buffer.from('x') }, `${open}20${rest}00000178`],
    [
      'completed',
      { ...record, state: 'completed', completion: { kind: 'response', response } },
      `${closed}00${rest}0000c9000000000400000002${hex('\x01A\x01b{}')}`,
    ],
    [
      'completed, with headers of 254 and 255 bytes',
      { ...record, state: 'completed', completion: { kind: 'response', response: { ...response, headers } } },
      `${closed}00${rest}0000c9000000020300000002${hex(`\xfe${headers[0]}\xff\0\0\0\xff${headers[1]}{}`)}`,
    ],
    [
      'encrypted',
      {
        ...{ ...record, state: 'completed', encryptionKeyId: 'a' },
        completion: { kind: 'encrypted', status: 200, keyId: 'a', bytes: Buffer.from('sealed') },
      },
      `${closed}00${rest}0000c801610000000000000006${hex('sealed')}`,
    ],
    [
      'a tombstone',
      { ...record, state: 'completed', completion: { kind: 'tombstone', status: 500 } },
      `${closed}10${rest}0001f4`,
    ],
  ];

  it('are refused if a short header has the length of a long one', () => {
    const value = `ff000000fe${hex('b'.repeat(254))}`;
    const bytes = `${closed}00${rest}0000c9000000010500000000${hex('\x01A')}${value}`;
    expect(() => decodeRecord(Buffer.from(bytes, 'hex'))).toThrow(
      'the length of a header has the wrong form',
    );
  });

  it.each(cases)('are those of format 4 (%s)', (_, each, bytes) => {
    expect(encodeRecord(each).toString('hex')).toBe(bytes);
    expect(decodeRecord(Buffer.from(bytes, 'hex'))).toEqual(each);
  });
});

it('the id of a record is that of format 4', () => {
  // A gateway that finds no record under another id pays again: another id needs another format.
  expect(recordIdOf('gateway', 'M-1', 'k-1')).toBe('51ebf7f85cd8d3d1f941c9409a9321ed9d0edd376d3616b7');
  expect(STORE_FORMAT).toBe(4);
});
