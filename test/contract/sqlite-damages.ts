import { DatabaseSync } from 'node:sqlite';
import type { Scope } from '../../src/lib/brands.ts';
import { databaseOf, type StorePlace } from '../support/open-store.ts';
import type { Damage } from './nodes.ts';
import type { Stage } from './states.ts';

/** Sets columns of a record, without the checks of the table. */
async function rewriteSqlite(place: StorePlace, scope: Scope, assignments: string): Promise<void> {
  if (place.kind !== 'sqlite') throw new TypeError('this place is not a SQLite database');
  using database = new DatabaseSync(databaseOf(place), { timeout: 10_000 });
  database.exec('PRAGMA ignore_check_constraints = ON');
  const update = database.prepare(`UPDATE records SET ${assignments} WHERE record_id = ?`);
  const { changes } = update.run(Buffer.from(scope, 'hex'));
  if (changes !== 1) throw new Error('there is no record to damage');
}

const OPEN: Stage[] = ['executing', 'in_doubt'];

const assignments: [what: string, assignments: string, from?: Stage[]][] = [
  ['an unknown state', `state = 'paid'`],
  ['no state', 'state = NULL'],
  ['no token', 'token = NULL'],
  ['a short token', `token = x'0102'`],
  ['a token that is text', `token = '0123456789abcdef'`],
  ['a short fingerprint', 'fingerprint = zeroblob(31)'],
  ['no operation', 'operation = NULL'],
  ['an encryption key', `encryption_key_id = 'k-1'`],
  ['a negative lease', 'lease_ms = -1'],
  ['a lease that is text', `lease_ms = 'long'`],
  ['a lease that lasts until a text', `lease_until = 'later'`],
  ['no revision', 'revision = NULL'],
  ['no cause', 'cause = NULL'],
  ['an extension that is text', `extension = 'later'`],
  ['no expiry', 'expires_at = NULL'],
  ['an expiry that is text', `expires_at = 'later'`],
  ['a number beyond 2^53', 'changed_at_ms = 9223372036854775807'],
  ['a was_in_doubt that is neither 0 nor 1', 'was_in_doubt = 2'],
  ['a status of a record that is not completed', 'status = 200', OPEN],
  ['completed without a result', `state = 'completed'`, OPEN],
  ['a completed record without its status', 'status = NULL', ['completed']],
  ['a completed record without its headers', 'headers = NULL', ['completed']],
  ['a completed record with half a header', `headers = '["X-A"]'`, ['completed']],
  ['a completed record with headers that are not JSON', `headers = '["X-A"'`, ['completed']],
  ['a completed record without its body', 'body = NULL', ['completed']],
  ['a completed record whose body is text', `body = 'paid'`, ['completed']],
];

export const sqliteDamages: readonly Damage[] = assignments.map(
  ([what, columns, from]): Damage => [what, (place, scope) => rewriteSqlite(place, scope, columns), from],
);
