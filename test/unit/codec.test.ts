import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Fingerprint, Token } from '../../src/lib/brands.ts';
import { UnreadableRecord } from '../../src/store/contract.ts';
import {
  decodeHead,
  decodeRecord,
  encodeCompletion,
  encodeRecord,
  HEAD_BYTES,
  layout,
  ownerGaveUp,
} from '../../src/store/redis/codec.ts';
import type { StoredCompletion, StoredRecord } from '../../src/store/response-cipher.ts';

const bytes = (length: { minLength?: number; maxLength: number }) =>
  fc.uint8Array(length).map((array) => Buffer.from(array));
const latin1 = (maxLength: number) => bytes({ maxLength }).map((part) => part.toString('latin1'));
const exactly = (length: number) => bytes({ minLength: length, maxLength: length });
const time = fc.integer({ min: 1_000_000_000_000, max: 4_102_444_800_000 });
const status = fc.integer({ min: 100, max: 599 });

const completion: fc.Arbitrary<StoredCompletion> = fc.oneof(
  fc.record({
    kind: fc.constant('sealed' as const),
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

const lifetime = fc.integer({ min: 0, max: 2 ** 48 - 1 });

const head = fc.record({
  token: exactly(16) as fc.Arbitrary<Token>,
  fingerprint: exactly(32) as fc.Arbitrary<Fingerprint>,
  createdAtMs: time,
  changedAtMs: time,
  merchant: latin1(255),
  operation: latin1(255),
  key: latin1(255),
  requestId: latin1(255),
  gatewayId: latin1(255),
  wasInDoubt: fc.boolean(),
  lifetimes: fc.record({ leaseMs: lifetime, retentionMs: lifetime, inDoubtRetentionMs: lifetime }),
});

/** A completed record as it is decoded. */
const completedWith = (rest: Omit<StoredRecord, 'state'>, what: StoredCompletion): StoredRecord => ({
  ...rest,
  state: 'completed',
  completion: what,
  ...(what.kind === 'sealed' && { encryptionKeyId: what.keyId }),
});

const open: fc.Arbitrary<StoredRecord> = fc
  .tuple(head, fc.constantFrom('executing' as const, 'in_doubt' as const))
  .map(([rest, state]) => ({ ...rest, state }));
const completed: fc.Arbitrary<StoredRecord> = fc
  .tuple(head, completion)
  .map(([rest, what]) => completedWith(rest, what));
const record = fc.oneof(open, completed);

/** Undefined if the bytes are refused; any other failure is a failure of the test. */
function decoded(encoded: Buffer): StoredRecord | undefined {
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
      fc.property(record, fc.boolean(), (written, gaveUp) => {
        const encoded = encodeRecord(written, gaveUp);
        expect(decodeRecord(encoded)).toEqual(written);
        expect(ownerGaveUp(encoded)).toBe(gaveUp);
        const { completion: _, ...expected } = written;
        expect(decodeHead(encoded.subarray(0, HEAD_BYTES))).toEqual(expected);
      }),
    );
  });

  it('is completed in place by its completion, as the scripts do it', () => {
    fc.assert(
      fc.property(open, completion, (written, what) => {
        const { code, bytes: tail } = encodeCompletion(what);
        const encoded = Buffer.concat([
          withByte(encodeRecord(written), layout.state, code.charCodeAt(0)).subarray(0, -1),
          tail,
        ]);
        expect(decodeRecord(encoded)).toEqual(completedWith(written, what));
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
        fc.pre(version !== 2);
        expect(decoded(withByte(encodeRecord(written), layout.version, version))).toBeUndefined();
      }),
    );
  });

  it('that names an encryption key and has no response is refused', () => {
    fc.assert(
      fc.property(open, latin1(255), (written, keyId) => {
        fc.pre(keyId.length > 0);
        const encoded = withByte(encodeRecord(written), encodeRecord(written).length - 1, keyId.length);
        expect(decoded(Buffer.concat([encoded, Buffer.from(keyId, 'latin1')]))).toBeUndefined();
      }),
    );
  });

  it('is never decoded to one that would be encoded differently', () => {
    fc.assert(
      fc.property(record, fc.nat(), fc.integer({ min: 0, max: 255 }), (written, offset, byte) => {
        const encoded = encodeRecord(written);
        const changed = withByte(encoded, offset % encoded.length, byte);
        const read = decoded(changed);
        if (read) expect(encodeRecord(read, ownerGaveUp(changed))).toEqual(changed);
      }),
      { numRuns: 2000 },
    );
  });

  it('of another state is refused if the state does not fit the rest', () => {
    const codes = { executing: 'ed', in_doubt: 'ed', completed: 'ct' };
    fc.assert(
      fc.property(record, fc.integer({ min: 0, max: 255 }), (written, byte) => {
        fc.pre(!codes[written.state].includes(String.fromCharCode(byte)));
        expect(decoded(withByte(encodeRecord(written), layout.state, byte))).toBeUndefined();
      }),
      { numRuns: 500 },
    );
  });

  it.each(['merchant', 'operation', 'key', 'requestId', 'gatewayId'] as const)(
    'with a %s that is too long is not encoded',
    (name) => {
      const [written] = fc.sample(open, { numRuns: 1, seed: 7 });
      const long = { ...(written as StoredRecord), [name]: 'm'.repeat(256) };
      expect(() => encodeRecord(long)).toThrow(RangeError);
    },
  );
});

describe('the bytes of a record', () => {
  const record = {
    ...{ token: Buffer.alloc(16, 0x11) as Token, fingerprint: Buffer.alloc(32, 0x22) as Fingerprint },
    ...{ merchant: 'M-1', operation: 'withdraw', key: 'k-1', requestId: 'r-1', gatewayId: 'g-1' },
    lifetimes: { leaseMs: 10_000, retentionMs: 86_400_000, inDoubtRetentionMs: 2_592_000_000 },
    ...{ wasInDoubt: false, createdAtMs: 1_764_000_000_000, changedAtMs: 1_764_000_000_500 },
  };
  const response = { status: 201, headers: ['A', 'b'], body: Buffer.from('{}') };
  const lifetimes = '0000000027100000' + '05265c0000009a7ec800';
  const texts = '034d2d31' + '087769746864726177' + '036b2d31' + '03722d31' + '03672d31';
  const rest = `${lifetimes}${'22'.repeat(32)}4279ab697e8000004279ab697e9f4000${texts}`;
  const token = '11'.repeat(16);
  // A minor version must read and write exactly these: other gateways of its major version use the same Redis.
  const cases: [what: string, record: StoredRecord, gaveUp: boolean, hex: string][] = [
    ['executing', { ...record, state: 'executing' }, false, `0265${token}00${rest}00`],
    [
      'completed',
      { ...record, state: 'completed', completion: { kind: 'response', response } },
      false,
      `0263${token}00${rest}0000c90000000a00000001410000000162000000027b7d`,
    ],
    [
      'encrypted',
      {
        ...{ ...record, state: 'completed', encryptionKeyId: 'a' },
        completion: { kind: 'sealed', status: 200, keyId: 'a', bytes: Buffer.from('sealed') },
      },
      false,
      `0263${token}00${rest}016100c800000000000000067365616c6564`,
    ],
  ];

  it.each(cases)('are those of version 1.0.0 (%s)', (_, each, gaveUp, hex) => {
    expect(encodeRecord(each, gaveUp).toString('hex')).toBe(hex);
    const read = decodeRecord(Buffer.from(hex, 'hex'));
    expect(read).toEqual(each);
  });
});
