import { readdirSync, readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  decodeRecord,
  encodeRecord,
  encodeSettlement,
  layout,
  UnreadableRecord,
} from '../../src/idempotency/codec.ts';
import type { IdempotencyRecord, Settlement } from '../../src/idempotency/record.ts';
import type { Fingerprint, Token } from '../../src/kernel/brands.ts';

const bytes = (length: { minLength?: number; maxLength: number }) =>
  fc.uint8Array(length).map((array) => Buffer.from(array));
const latin1 = (maxLength: number) => bytes({ maxLength }).map((part) => part.toString('latin1'));
const exactly = (length: number) => bytes({ minLength: length, maxLength: length });
const time = fc.integer({ min: 1_000_000_000_000, max: 4_102_444_800_000 });
const status = fc.integer({ min: 100, max: 599 });

const settlement: fc.Arbitrary<Settlement> = fc.oneof(
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

const head = fc.record({
  token: exactly(16) as fc.Arbitrary<Token>,
  fingerprint: exactly(32) as fc.Arbitrary<Fingerprint>,
  createdAtMs: time,
  changedAtMs: time,
  merchant: latin1(255),
  operation: latin1(255),
  key: latin1(255),
});

const unsettled: fc.Arbitrary<IdempotencyRecord> = fc
  .tuple(head, fc.constantFrom('claimed' as const, 'executing' as const, 'in_doubt' as const))
  .map(([rest, state]) => ({ ...rest, state }));
const settled: fc.Arbitrary<IdempotencyRecord> = fc
  .tuple(head, settlement)
  .map(([rest, what]) => ({ ...rest, state: 'settled', settlement: what }));
const record = fc.oneof(unsettled, settled);

/** Undefined where the bytes are refused; any other failure is a failure of the test. */
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

const bodyBytes = ({ settlement: what }: IdempotencyRecord) =>
  what?.kind === 'response' ? what.response.body.length : 0;

describe('a record', () => {
  it('is read as it was written, whatever the mark', () => {
    fc.assert(
      fc.property(record, fc.integer({ min: 0, max: 0xffff_ffff }), (written, mark) => {
        const encoded = encodeRecord(written, mark);
        expect(decodeRecord(encoded)).toEqual(written);
        expect(encoded.readUInt32BE(layout.mark)).toBe(mark);
      }),
    );
  });

  it('is settled in place by its settlement, as stores do it', () => {
    fc.assert(
      fc.property(unsettled, settlement, (written, what) => {
        const { code, bytes: tail } = encodeSettlement(what);
        const encoded = Buffer.concat([
          withByte(encodeRecord(written), layout.state, code.charCodeAt(0)),
          tail,
        ]);
        expect(decodeRecord(encoded)).toEqual({ ...written, state: 'settled', settlement: what });
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

  it.each(['claimed', 'executing', 'in_doubt', 'settled'] as const)(
    'that is %s is refused at every shorter length',
    (state) => {
      const [base] = fc.sample(settled, { numRuns: 1, seed: 7 });
      const result: Settlement = {
        kind: 'response',
        response: { status: 200, headers: ['A', 'b'], body: Buffer.alloc(0) },
      };
      const { settlement: _, ...rest } = base as IdempotencyRecord;
      const written = state === 'settled' ? { ...rest, state, settlement: result } : { ...rest, state };
      const encoded = encodeRecord(written);
      for (let length = 0; length < encoded.length; length++) {
        expect(decoded(encoded.subarray(0, length))).toBeUndefined();
      }
    },
  );

  it('of another version is refused', () => {
    fc.assert(
      fc.property(record, fc.integer({ min: 0, max: 255 }), (written, version) => {
        fc.pre(version !== 1);
        expect(decoded(withByte(encodeRecord(written), layout.version, version))).toBeUndefined();
      }),
    );
  });

  it('is never read as one that would be written in another way', () => {
    fc.assert(
      fc.property(record, fc.nat(), fc.integer({ min: 0, max: 255 }), (written, place, byte) => {
        const encoded = encodeRecord(written);
        const changed = withByte(encoded, place % encoded.length, byte);
        const read = decoded(changed);
        if (read) expect(encodeRecord(read, changed.readUInt32BE(layout.mark))).toEqual(changed);
      }),
      { numRuns: 2000 },
    );
  });

  it('of another state is refused where the state does not fit the rest', () => {
    const codes = { claimed: 'ced', executing: 'ced', in_doubt: 'ced', settled: 'st' };
    fc.assert(
      fc.property(record, fc.integer({ min: 0, max: 255 }), (written, byte) => {
        fc.pre(!codes[written.state].includes(String.fromCharCode(byte)));
        expect(decoded(withByte(encodeRecord(written), layout.state, byte))).toBeUndefined();
      }),
      { numRuns: 500 },
    );
  });

  it('is not made of other bytes', () => {
    fc.assert(
      fc.property(bytes({ maxLength: 200 }), (noise) => {
        const read = decoded(noise);
        if (read) expect(encodeRecord(read, noise.readUInt32BE(layout.mark))).toEqual(noise);
      }),
      { numRuns: 1000 },
    );
  });

  it('with a text too long for it is not written', () => {
    const [written] = fc.sample(unsettled, { numRuns: 1, seed: 7 });
    const long = { ...(written as IdempotencyRecord), merchant: 'm'.repeat(256) };
    expect(() => encodeRecord(long)).toThrow();
  });
});

describe('the scripts of redis', () => {
  const folder = new URL('../../src/idempotency/stores/redis/commands/', import.meta.url);
  const scripts = readdirSync(folder).map(
    (name) => [name, readFileSync(new URL(name, folder), 'utf8')] as const,
  );
  const places = (lua: string, pattern: RegExp) =>
    [...lua.matchAll(pattern)].map(([, ...numbers]) =>
      numbers.filter((text) => text !== undefined).map(Number),
    );

  it.each(scripts)('%s reads and writes whole fields of the record', (_, lua) => {
    const fields = [
      [layout.state, layout.token - 1],
      [layout.token, layout.mark - 1],
      [layout.mark, layout.fingerprint - 1],
      [layout.fingerprint, layout.createdAt - 1],
    ];
    const reads = places(lua, /'GETRANGE', KEYS\[1\], (\d+), (\d+)/g);
    expect(reads.length).toBeGreaterThan(0);
    for (const read of reads) expect(fields).toContainEqual(read);
    const writable = [layout.state, layout.token, layout.mark, layout.changedAt];
    for (const [at] of places(lua, /'SETRANGE', KEYS\[1\], (\d+)/g)) expect(writable).toContain(at);
  });

  it('settle.lua puts state, time and settlement in their places', () => {
    const [, lua] = scripts.find(([name]) => name === 'settle.lua') ?? ['', ''];
    // Lua counts from one, and both ends are in.
    expect(places(lua, /string\.sub\(head, (\d+)(?:, (\d+))?\)/g)).toEqual([
      [layout.version + 1, layout.state],
      [layout.token + 1, layout.changedAt],
      [layout.texts + 1],
    ]);
  });
});
