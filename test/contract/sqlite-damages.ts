import { DatabaseSync } from 'node:sqlite';
import type { RecordId } from '../../src/lib/brands.ts';
import { layout } from '../../src/store/codec.ts';
import { databaseOf, type StorePlace } from '../support/open-store.ts';
import type { Damage, Stage } from './states.ts';

/** Sets columns of a record, without the checks of the table. */
async function rewriteSqlite(place: StorePlace, recordId: RecordId, assignments: string): Promise<void> {
  if (place.kind !== 'sqlite') throw new TypeError('this place is not a SQLite database');
  using database = new DatabaseSync(databaseOf(place), { timeout: 10_000 });
  database.exec('PRAGMA ignore_check_constraints = ON');
  const update = database.prepare(`UPDATE records SET ${assignments} WHERE record_id = ?`);
  const { changes } = update.run(Buffer.from(recordId, 'hex'));
  if (changes !== 1) throw new Error('there is no record to damage');
}

const OPEN: Stage[] = ['executing', 'in_doubt'];

/** The record with other bytes at an offset (codec.ts). */
const withBytes = (at: number, hex: string) =>
  `record = CAST(substr(record, 1, ${at}) || x'${hex}' || substr(record, ${at + 1 + hex.length / 2}) AS BLOB)`;

/** Which bytes are a record is proved by test/unit/codec.test.ts. */
const assignments: [what: string, assignments: string, from?: Stage[]][] = [
  ['an unknown state', withBytes(layout.open, '78')],
  ['no record', 'record = NULL'],
  ['an empty record', `record = x''`],
  ['a record that is text', `record = 'completed'`],
  ['another version', withBytes(layout.version, '01')],
  ['a record cut in its texts', `record = substr(record, 1, ${layout.texts + 5})`],
  ['an encryption key', `encryption_key_id = 'k-1'`],
  ['a lease that lasts until a text', `lease_until = 'later'`],
  ['no expiry', 'expires_at = NULL'],
  ['an expiry that is text', `expires_at = 'later'`],
  ['a number beyond 2^53', 'expires_at = 9223372036854775807'],
  ['headers of a record that is not completed', `headers = '[]'`, OPEN],
  ['a body of a record that is not completed', `body = x'00'`, OPEN],
  ['completed without a result', withBytes(layout.open, '63'), OPEN],
  ['a completed record without its status', `record = substr(record, 1, length(record) - 2)`, ['completed']],
  ['a completed record without its headers', 'headers = NULL', ['completed']],
  ['a completed record with half a header', `headers = '["X-A"]'`, ['completed']],
  ['a completed record with headers that are not JSON', `headers = '["X-A"'`, ['completed']],
  ['a completed record without its body', 'body = NULL', ['completed']],
  ['a completed record whose body is text', `body = 'paid'`, ['completed']],
];

export const sqliteDamages: readonly Damage[] = assignments.map(
  ([what, columns, from]): Damage => [
    what,
    (place, recordId) => rewriteSqlite(place, recordId, columns),
    from,
  ],
);
