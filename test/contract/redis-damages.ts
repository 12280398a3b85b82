import { Redis } from 'ioredis';
import type { RecordId } from '../../src/lib/brands.ts';
import { layout } from '../../src/store/codec.ts';
import { Names } from '../../src/store/redis/commands.ts';
import type { RedisPlace, StorePlace } from '../support/open-store.ts';
import type { Damage, Stage } from './states.ts';

export const recordKeyOf = ({ prefix }: RedisPlace, recordId: RecordId): string =>
  new Names(prefix).recordOf(recordId);

/** Replaces the bytes of a record, and keeps its TTL. Without bytes, puts a list there. */
async function rewriteRedis(
  place: StorePlace,
  recordId: RecordId,
  change: (record: Buffer) => Buffer | undefined,
): Promise<void> {
  if (place.kind !== 'redis') throw new TypeError('this place is not a Redis');
  const client = new Redis(place.url);
  try {
    const key = recordKeyOf(place, recordId);
    const record = await client.getBuffer(key);
    if (!record) throw new Error('there is no record to damage');
    const changed = change(record);
    if (changed?.equals(record)) throw new Error('the damage did not change the record');
    if (changed) await client.set(key, changed, 'KEEPTTL');
    else await client.multi().del(key).rpush(key, 'x').exec();
  } finally {
    client.disconnect();
  }
}

const byte = (at: number, value: number) => (record: Buffer) => {
  const changed = Buffer.from(record);
  changed[at] = value;
  return changed;
};

/** Ways to change the value of a record. Which bytes are a record is proved by test/unit/codec.test.ts. */
const changes: [what: string, change: (record: Buffer) => Buffer | undefined, from?: Stage[]][] = [
  ['a key of another type', () => undefined],
  ['another version', byte(layout.version, 1)],
  ['an empty string', () => Buffer.alloc(0)],
  ['one byte', (record) => record.subarray(0, 1)],
  ['text', () => Buffer.from('completed')],
  ['an unknown state', byte(layout.open, 0x78)],
  ['a record cut in its texts', (record) => record.subarray(0, layout.texts + 5)],
  ['a completed record cut in its body', (record) => record.subarray(0, -1), ['completed']],
];

export const redisDamages: readonly Damage[] = changes.map(
  ([what, change, from]): Damage => [what, (place, recordId) => rewriteRedis(place, recordId, change), from],
);
