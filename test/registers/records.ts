import { randomBytes } from 'node:crypto';
import type { Fingerprint, RecordId } from '../../src/lib/brands.ts';
import { systemRandom } from '../../src/lib/random.ts';
import type { Listed, Register, Replace, Seen } from '../../src/store/register.ts';
import type { KeyRecord, StoredCompletion } from '../../src/store/types.ts';
import { STEP_MS } from './places.ts';

export const newId = () => randomBytes(24).toString('hex') as RecordId;

/** Long enough for every case that does not let it end. */
export const LIFE_MS = 1000.5 * STEP_MS;

/** A record with another value in each field. */
export function newRecord(change: Partial<KeyRecord> = {}): KeyRecord {
  return {
    ...{ revision: systemRandom.token(), state: 'executing', token: systemRandom.token() },
    fingerprint: randomBytes(32) as Fingerprint,
    ...{ merchant: 'Händler-1', operation: 'withdraw', key: ' !"~', requestId: 'request-1' },
    gatewayId: 'gateway-1',
    lifetimes: { leaseMs: 10_001, retentionMs: 86_400_002, inDoubtRetentionMs: 2_592_000_003 },
    ...{ wasInDoubt: false, ownerGaveUp: false, restarted: false, cause: '' },
    ...{ createdAtMs: 1_700_000_000_001, changedAtMs: 1_700_000_000_002 },
    ...change,
  };
}

/** The next version of a record. */
export const nextOf = (record: KeyRecord, change: Partial<KeyRecord> = {}): KeyRecord => ({
  ...record,
  revision: systemRandom.token(),
  ...change,
});

const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));

export const completions: StoredCompletion[] = [
  {
    kind: 'response',
    response: { status: 201, headers: ['X-Ü', '\u00ff"\\', 'B', ''], body: Buffer.from([0, 255, 10, 0]) },
  },
  { kind: 'response', response: { status: 204, headers: [], body: Buffer.alloc(0) } },
  { kind: 'encrypted', status: 500, keyId: 'k1', bytes: randomBytes(100) },
  { kind: 'tombstone', status: 0 },
  {
    kind: 'response',
    response: {
      status: 500,
      headers: ['cOnTeNt-TyPe', everyByte.toString('latin1'), 'X-Long', 'y'.repeat(70_000), 'x-long', '\r\n'],
      body: Buffer.alloc(1_048_576, everyByte),
    },
  },
];

export const completed = (record: KeyRecord, completion = completions[0] as StoredCompletion): KeyRecord =>
  nextOf(record, { state: 'completed', completion });

export const inDoubt = (record: KeyRecord, change: Partial<KeyRecord> = {}): KeyRecord =>
  nextOf(record, { state: 'in_doubt', wasInDoubt: true, cause: 'reset', ...change });

export const creation = (record: KeyRecord, expiresInMs = LIFE_MS) =>
  ({ kind: 'create', record, expiresInMs }) as const;

export const replacement = (
  from: KeyRecord | undefined,
  to: KeyRecord | undefined,
  along: Partial<Replace> = {},
): Replace => ({
  ...{ kind: 'replace', revision: from?.revision, record: to },
  operation: (from ?? to)?.operation ?? 'withdraw',
  expiresInMs: to ? LIFE_MS : 0,
  ...along,
});

/** A new id that holds this record. */
export async function holding(
  register: Register,
  record = newRecord(),
  expiresInMs?: number,
): Promise<RecordId> {
  const id = newId();
  await register.create(id, creation(record, expiresInMs));
  return id;
}

/** A record as it is compared: without what nothing depends on. */
export function plain(seen: Seen | undefined): object | undefined {
  if (!seen) return undefined;
  const { extension, ...record } = seen.record;
  return extension ? { ...record, extension } : record;
}

export async function everyPage(register: Register, open: boolean, limit = 100): Promise<Listed[]> {
  const records: Listed[] = [];
  let cursor: string | undefined;
  do {
    const page = await register.list({ open, limit, cursor });
    records.push(...page.records);
    cursor = page.cursor;
  } while (cursor !== undefined);
  return records;
}
