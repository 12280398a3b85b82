import type { DatabaseSync } from 'node:sqlite';
import { ROW_COLUMNS_WITHOUT_BODY } from './row.ts';

/** About what a payout writes, because a nearly full disk may still take a smaller write. */
const PROBE_BYTES = 16_384;

/** The statements of the writer's transactions, prepared once for a connection. */
export function prepareWrites(database: DatabaseSync) {
  const select = database.prepare(`SELECT ${ROW_COLUMNS_WITHOUT_BODY} FROM records WHERE scope = ?`);
  select.setReturnArrays(true);
  return {
    select,
    insert: database.prepare(
      `INSERT INTO records (scope, state, token, fingerprint, merchant, operation, idempotency_key, request_id, gateway_id,
         created_at_ms, changed_at_ms, lease_ms, retention_ms, in_doubt_retention_ms, was_in_doubt, owner_gave_up,
         alive_at, expires_at, status, headers, body)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?) ON CONFLICT (scope) DO NOTHING`,
    ),
    removeScope: database.prepare('DELETE FROM records WHERE scope = ?'),
    remove: database.prepare('DELETE FROM records WHERE id = ?'),
    markDead: database.prepare(
      "UPDATE records SET state = 'in_doubt', was_in_doubt = 1, changed_at_ms = ? WHERE id = ?",
    ),
    giveUp: database.prepare(
      "UPDATE records SET state = 'in_doubt', was_in_doubt = 1, owner_gave_up = 1, changed_at_ms = ? WHERE id = ?",
    ),
    restart: database.prepare(
      `UPDATE records SET state = 'executing', was_in_doubt = 1, owner_gave_up = 0, token = ?, gateway_id = ?,
         changed_at_ms = ?, lease_ms = ?, retention_ms = ?, in_doubt_retention_ms = ?, alive_at = ?, expires_at = ?
       WHERE id = ?`,
    ),
    renew: database.prepare(
      'UPDATE records SET owner_gave_up = 0, was_in_doubt = ?, alive_at = ? WHERE id = ?',
    ),
    complete: database.prepare(
      `UPDATE records SET state = 'completed', token = ?, changed_at_ms = ?, was_in_doubt = ?, expires_at = ?,
         status = ?, headers = ?, body = ?
       WHERE id = ?`,
    ),
    voided: database.prepare('SELECT 1 FROM voided_tokens WHERE token = ? AND expires_at > ?'),
    void: database.prepare('INSERT OR REPLACE INTO voided_tokens VALUES (?, ?)'),
    probe: database.prepare(`INSERT OR REPLACE INTO probe VALUES (1, randomblob(${PROBE_BYTES}))`),
  };
}
