import { readFileSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { Redis } from 'ioredis';
import type { Scope } from '../../src/lib/brands.ts';
import { decodeRecord, encodeRecord } from '../../src/store/redis/codec.ts';
import type { SealedResponse } from '../../src/store/response-cipher.ts';
import { databaseOf, type StorePlace } from '../support/open-store.ts';
import { recordKeyOf, rewriteRedis } from './redis-damages.ts';

/** All bytes in which a store could keep a scope: of Redis all of its keys, of SQLite its files. */
export async function storedBytes(place: StorePlace, scope: Scope): Promise<Buffer> {
  if (place.kind === 'sqlite') {
    const file = databaseOf(place);
    return Buffer.concat([file, `${file}-wal`].map((path) => readFileSync(path)));
  }
  const client = new Redis(place.url);
  try {
    const record = recordKeyOf(place, scope);
    const [value, trail] = [
      await client.getBuffer(record),
      await client.lrangeBuffer(`${record}:audit`, 0, -1),
    ];
    return Buffer.concat([value ?? Buffer.alloc(0), ...trail]);
  } finally {
    client.disconnect();
  }
}

/** Replaces the encrypted response of a record, behind the store's back. Returns what it was. */
export async function reseal(
  place: StorePlace,
  scope: Scope,
  change: (sealed: SealedResponse) => SealedResponse,
): Promise<SealedResponse> {
  let before: SealedResponse | undefined;
  const changed = (sealed: SealedResponse): SealedResponse => {
    before = sealed;
    return change(sealed);
  };
  if (place.kind === 'redis')
    await rewriteRedis(place, scope, (bytes) => {
      const record = decodeRecord(bytes);
      if (record.completion?.kind !== 'sealed') throw new Error('the record is not encrypted');
      return encodeRecord({ ...record, completion: changed(record.completion) });
    });
  else {
    using database = new DatabaseSync(databaseOf(place), { timeout: 10_000 });
    const key = Buffer.from(scope, 'hex');
    const row = database
      .prepare('SELECT status, encryption_key_id AS keyId, body AS bytes FROM records WHERE record_id = ?')
      .get(key) as unknown as Omit<SealedResponse, 'kind'>;
    const { status, keyId, bytes } = changed({ kind: 'sealed', ...row, bytes: Buffer.from(row.bytes) });
    database
      .prepare('UPDATE records SET status = ?, encryption_key_id = ?, body = ? WHERE record_id = ?')
      .run(status, keyId, bytes, key);
  }
  return before as SealedResponse;
}
