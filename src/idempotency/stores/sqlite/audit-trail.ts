import type { DatabaseSync } from 'node:sqlite';
import type { Scope } from '../../../kernel/brands.ts';
import type { Completion } from '../../../kernel/exchange.ts';
import { AUDIT_RETENTION_MS, type AuditRecord, type RecordHead, type ResolutionNote } from '../../store.ts';
import type { PackedCompletion } from './commands.ts';
import { scopeBytes } from './row.ts';
import type { Now } from './running-time.ts';

interface AuditRow {
  at_ms: number;
  resolved_by: string;
  reason: string;
  from_state: RecordHead['state'];
  merchant: string;
  operation: string;
  idempotency_key: string;
  request_id: string;
  created_at_ms: number;
  changed_at_ms: number;
  resolved_as: 'released' | 'completed';
  kind: Completion['kind'];
  status: number;
}

/** Resolutions are rare, so the statement is not kept. */
export function writeAudit(
  database: DatabaseSync,
  scope: Uint8Array,
  from: RecordHead,
  { by, reason, completion }: ResolutionNote & { completion: PackedCompletion | undefined },
  { wallMs, runningMs }: Now,
): void {
  const { state, merchant, operation, key, requestId, createdAtMs, changedAtMs } = from;
  const kind = completion && (completion.headers === null ? 'tombstone' : 'response');
  database
    .prepare(
      `INSERT INTO audit (scope, at_ms, resolved_by, reason, from_state, merchant, operation, idempotency_key,
         request_id, created_at_ms, changed_at_ms, resolved_as, kind, status, expires_at)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    )
    .run(
      scope,
      wallMs,
      by,
      reason,
      state,
      merchant,
      operation,
      key,
      requestId,
      createdAtMs,
      changedAtMs,
      completion ? 'completed' : 'released',
      kind ?? null,
      completion?.status ?? null,
      Math.ceil(runningMs + AUDIT_RETENTION_MS),
    );
}

export function readAudit(database: DatabaseSync, scope: Scope, { runningMs }: Now): AuditRecord[] {
  const rows = database
    .prepare('SELECT * FROM audit WHERE scope = ? AND expires_at > ? ORDER BY id')
    .all(scopeBytes(scope), runningMs) as unknown as AuditRow[];
  return rows.map((row) => ({
    atMs: row.at_ms,
    by: row.resolved_by,
    reason: row.reason,
    from: {
      state: row.from_state,
      merchant: row.merchant,
      operation: row.operation,
      key: row.idempotency_key,
      requestId: row.request_id,
      createdAtMs: row.created_at_ms,
      changedAtMs: row.changed_at_ms,
    },
    to:
      row.resolved_as === 'released'
        ? { as: 'released' }
        : { as: 'completed', kind: row.kind, status: row.status },
  }));
}
