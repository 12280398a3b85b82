import type { RecordHead, Settlement } from './record.ts';

/** What becomes of a scope in doubt: it was executed with this result, or it surely was not executed. */
export type Resolution = { as: 'settled'; settlement: Settlement } | { as: 'released' };

/** Who resolved, and why. Both are kept in the audit trail and logged: no secret, no body. */
export interface ResolutionNote {
  by: string;
  reason: string;
}

/**
 * `changed`: something else stands there by now, or nothing. `alive`: the owner may still work on it, or has not begun.
 * Nothing was written in both cases.
 */
export type Resolved = 'ok' | 'changed' | 'alive';

/** One resolution, as the audit trail keeps it: no token, no header, no body. */
export interface AuditRecord extends ResolutionNote {
  /** Wall clock, in Unix milliseconds. */
  atMs: number;
  from: Pick<RecordHead, 'state' | 'merchant' | 'operation' | 'key' | 'createdAtMs' | 'changedAtMs'>;
  to: { as: 'released' } | { as: 'settled'; kind: Settlement['kind']; status: number };
}

/** Far beyond a record's own retention: a dispute or a yearly audit asks about it when the payout is long settled. */
export const AUDIT_RETENTION_MS = 400 * 86_400_000;

export function auditRecord(
  { state, merchant, operation, key, createdAtMs, changedAtMs }: RecordHead,
  resolution: Resolution,
  { by, reason }: ResolutionNote,
  atMs: number,
): AuditRecord {
  const from = { state, merchant, operation, key, createdAtMs, changedAtMs };
  return { atMs, by, reason, from, to: becomes(resolution) };
}

function becomes(resolution: Resolution): AuditRecord['to'] {
  if (resolution.as === 'released') return { as: 'released' };
  const { settlement } = resolution;
  const status = settlement.kind === 'response' ? settlement.response.status : settlement.status;
  return { as: 'settled', kind: settlement.kind, status };
}

export const encodeAudit = (audit: AuditRecord): Buffer => Buffer.from(JSON.stringify(audit));

/** @throws {SyntaxError} for anything that {@link encodeAudit} did not write */
export const decodeAudit = (bytes: Buffer): AuditRecord => JSON.parse(bytes.toString()) as AuditRecord;
