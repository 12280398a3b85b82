import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import type { Scope } from '../../src/lib/brands.ts';
import { databaseOf, type StorePlace } from '../support/open-store.ts';
import { recordKeyOf } from './redis-damages.ts';

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
