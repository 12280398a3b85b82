import pg from 'pg';
import type { RecordId } from '../../src/lib/brands.ts';
import { layout } from '../../src/store/codec.ts';
import type { StorePlace } from '../support/open-store.ts';
import type { Damage, Stage } from './states.ts';

/** Replaces the bytes of a record. */
async function rewritePostgres(place: StorePlace, recordId: RecordId, bytes: string): Promise<void> {
  if (place.kind !== 'postgres') throw new TypeError('this place is not a PostgreSQL');
  const client = new pg.Client(place.url);
  await client.connect();
  try {
    const { rowCount } = await client.query(
      `UPDATE ${place.schema}.records SET record = ${bytes} WHERE id = $1 AND record <> ${bytes}`,
      [Buffer.from(recordId, 'hex')],
    );
    if (rowCount !== 1) throw new Error('there is no record to damage');
  } finally {
    await client.end();
  }
}

/** Which bytes are a record is proved by test/unit/codec.test.ts. */
const changes: [what: string, bytes: string, from?: Stage[]][] = [
  ['another version', `set_byte(record, ${layout.version}, 1)`],
  ['an unknown state', `set_byte(record, ${layout.open}, 120)`],
  ['an empty record', `''::bytea`],
  ['one byte', 'substring(record FROM 1 FOR 1)'],
  ['text', `'completed'::bytea`],
  ['a record cut in its texts', `substring(record FROM 1 FOR ${layout.texts + 5})`],
  ['a completed record cut in its body', 'substring(record FROM 1 FOR length(record) - 1)', ['completed']],
];

export const postgresDamages: readonly Damage[] = changes.map(
  ([what, bytes, from]): Damage => [what, (place, recordId) => rewritePostgres(place, recordId, bytes), from],
);
