import { readdirSync, readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type IdempotencyRecord, UnreadableRecord } from '../../src/idempotency/store.ts';
import {
  decodeHead,
  decodeRecord,
  encodeCompletion,
  encodeRecord,
  HEAD_BYTES,
  layout,
  ownerGaveUp,
} from '../../src/idempotency/stores/redis/codec.ts';
import type { Fingerprint, Token } from '../../src/kernel/brands.ts';
import type { Completion } from '../../src/kernel/exchange.ts';

const bytes = (length: { minLength?: number; maxLength: number }) =>
  fc.uint8Array(length).map((array) => Buffer.from(array));
const latin1 = (maxLength: number) => bytes({ maxLength }).map((part) => part.toString('latin1'));
const exactly = (length: number) => bytes({ minLength: length, maxLength: length });
const time = fc.integer({ min: 1_000_000_000_000, max: 4_102_444_800_000 });
const status = fc.integer({ min: 100, max: 599 });

const completion: fc.Arbitrary<Completion> = fc.oneof(
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

const open: fc.Arbitrary<IdempotencyRecord> = fc
  .tuple(head, fc.constantFrom('executing' as const, 'in_doubt' as const))
  .map(([rest, state]) => ({ ...rest, state }));
const completed: fc.Arbitrary<IdempotencyRecord> = fc
  .tuple(head, completion)
  .map(([rest, what]) => ({ ...rest, state: 'completed', completion: what }));
const record = fc.oneof(open, completed);

/** Undefined if the bytes are refused; any other failure is a failure of the test. */
function decoded(encoded: Buffer): IdempotencyRecord | undefined {
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

const bodyBytes = ({ completion: what }: IdempotencyRecord) =>
  what?.kind === 'response' ? what.response.body.length : 0;

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
          withByte(encodeRecord(written), layout.state, code.charCodeAt(0)),
          tail,
        ]);
        expect(decodeRecord(encoded)).toEqual({ ...written, state: 'completed', completion: what });
      }),
    );
  });

  it('that is cut anywhere before its body is refused', () => {
    fc.assert(
      fc.property(record, fc.nat(), (written, cut) => {
        const encoded = encodeRecord(written);
        const length = cut % (encoded.length - bodyBytes(written));
        expect(decoded(encoded.subarray(0, length))).toBeUndefined();
      }),
      { numRuns: 500 },
    );
  });

  it.each(['executing', 'in_doubt', 'completed'] as const)(
    'that is %s is refused at every shorter length',
    (state) => {
      const [base] = fc.sample(completed, { numRuns: 1, seed: 7 });
      const result: Completion = {
        kind: 'response',
        response: { status: 200, headers: ['A', 'b'], body: Buffer.from('{}') },
      };
      const { completion: _, ...rest } = base as IdempotencyRecord;
      const written = state === 'completed' ? { ...rest, state, completion: result } : { ...rest, state };
      const encoded = encodeRecord(written);
      for (let length = 0; length < encoded.length; length++) {
        expect(decoded(encoded.subarray(0, length))).toBeUndefined();
      }
    },
  );

  it('of another format version is refused', () => {
    fc.assert(
      fc.property(record, fc.integer({ min: 0, max: 255 }), (written, version) => {
        fc.pre(version !== 2);
        expect(decoded(withByte(encodeRecord(written), layout.version, version))).toBeUndefined();
      }),
    );
  });

  it('that names an encryption key is refused', () => {
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

  it('is not decoded from other bytes', () => {
    fc.assert(
      fc.property(bytes({ maxLength: 200 }), (noise) => {
        const read = decoded(noise);
        if (read) expect(encodeRecord(read, ownerGaveUp(noise))).toEqual(noise);
      }),
      { numRuns: 1000 },
    );
  });

  it.each(['merchant', 'operation', 'key', 'requestId', 'gatewayId'] as const)(
    'with a %s that is too long is not encoded',
    (name) => {
      const [written] = fc.sample(open, { numRuns: 1, seed: 7 });
      const long = { ...(written as IdempotencyRecord), [name]: 'm'.repeat(256) };
      expect(() => encodeRecord(long)).toThrow(RangeError);
    },
  );
});

describe('the Lua scripts', () => {
  const folder = new URL('../../src/idempotency/stores/redis/scripts/', import.meta.url);
  const scripts = readdirSync(folder).map(
    (name) => [name, readFileSync(new URL(name, folder), 'utf8')] as const,
  );
  const offsets = (lua: string, pattern: RegExp) =>
    [...lua.matchAll(pattern)].map(([, ...numbers]) =>
      numbers.filter((text) => text !== undefined).map(Number),
    );
  const { version, state, token, flags, leaseMs, retentionMs, inDoubtRetentionMs } = layout;
  const { fingerprint, createdAtMs, changedAtMs, texts } = layout;

  it.each(scripts)('%s writes single fields at their offsets', (_, lua) => {
    for (const [at] of offsets(lua, /'SETRANGE', KEYS\[1\], (\d+)/g))
      expect([state, flags, changedAtMs]).toContain(at);
  });

  it.each(scripts)('%s reads whole fields', (_, lua) => {
    // string.sub counts from one and includes both ends. GETRANGE counts from zero.
    const ends = [version, state, token, flags, leaseMs, fingerprint, createdAtMs, changedAtMs, texts];
    const cuts = offsets(lua, /string\.sub\((?:record|start|ARGV\[1\]), (\d+)(?:, (\d+))?\)/g);
    for (const [from = 0, to] of cuts) {
      expect(ends).toContain(from - 1);
      if (to !== undefined) expect(ends).toContain(to);
    }
    for (const [from, to = 0] of offsets(lua, /'GETRANGE', KEYS\[1\], (\d+), (\d+)\)/g))
      expect([from, to + 1]).toEqual([version, flags]);
    for (const [at = 0] of offsets(lua, /struct\.unpack\('>I6', record, (\d+)\)/g))
      expect([leaseMs, retentionMs, inDoubtRetentionMs]).toContain(at - 1);
    for (const [at = 0] of offsets(lua, /struct\.unpack\('>d', record, (\d+)\)/g))
      expect([createdAtMs, changedAtMs]).toContain(at - 1);
    for (const [at = 0] of offsets(lua, /string\.byte\((?:record|start), (\d+)\)/g))
      expect([version, flags]).toContain(at - 1);
  });

  it.each(scripts)('%s documents its keys, arguments and result', (name, lua) => {
    const used = (word: string) => new Set(lua.match(new RegExp(`${word}\\[\\d\\]`, 'g')));
    const comments = lua.replaceAll(/^[^-].*$/gm, '');
    for (const each of [...used('KEYS'), ...used('ARGV')]) expect(comments).toContain(each);
    if (name !== 'record.lua') expect(comments).toContain('Result: ');
  });
});
