/** What a store knows of keys in doubt: how many there are, how each is resolved, and the audit trail of that. */
import type { Completion } from '../lib/exchange.ts';
import type { RecordHead, StoredCompletion } from './types.ts';

/** What an operator or a lookup found out about a key in doubt: it was executed with this result, or not executed. */
export type Resolution = { as: 'completed'; completion: Completion } | { as: 'released' };

/** The same, with the result as the store holds it. */
export type StoredResolution = { as: 'completed'; completion: StoredCompletion } | { as: 'released' };

/** Who resolved a key, and why. Stored in the audit trail and logged, so it must hold no secret and no body. */
export interface ResolutionNote {
  by: string;
  reason: string;
}

/**
 * `changed`: the record has another token or is completed, or there is no record. `alive`: the owner may still be
 * executing. With either answer nothing was written.
 */
export type Resolved = 'ok' | 'changed' | 'alive';

/** Through what a key in doubt was resolved: the admin port, a lookup, or `oncegate records` on the command line. */
export const RESOLUTION_SOURCES = ['operator', 'lookup', 'command_line'] as const;
export type ResolutionSource = (typeof RESOLUTION_SOURCES)[number];

export const RESOLVED_AS = ['completed', 'released'] as const;

/** How many resolutions of one kind there were since the store was made. */
export interface ResolutionCount {
  as: (typeof RESOLVED_AS)[number];
  by: ResolutionSource;
  number: number;
}

export interface OperationDoubts {
  /** The number of keys in doubt, `ownerGone` included. */
  inDoubt: number;
  /** The number of executing records whose owner is dead, and that no retry has marked in doubt yet. */
  ownerGone: number;
}

/** All keys in doubt that a store holds. Every gateway on the store gets the same numbers. */
export interface DoubtCount {
  /** Wall clock at the beginning of the count, Unix milliseconds. */
  countedAtMs: number;
  /** The counts by the record's operation. Operations without keys in doubt are missing. */
  operations: ReadonlyMap<string, OperationDoubts>;
  /**
   * `createdAtMs` of the oldest one, if there is one: since then a merchant has waited. A retry that marks it in doubt does not make
   * it younger, so no alert clears by that.
   */
  oldestSinceMs: number | undefined;
  /** A pair that is missing has not occurred. */
  resolutions: readonly ResolutionCount[];
}

/** What a resolution is recorded and counted with. `source`: default operator. */
export type CountedNote = ResolutionNote & { source?: ResolutionSource };

/** One resolution in the audit trail. It holds no token, no header and no body. */
export interface AuditRecord extends ResolutionNote {
  /** Wall clock, Unix milliseconds. */
  atMs: number;
  from: Pick<
    RecordHead,
    'state' | 'merchant' | 'operation' | 'key' | 'requestId' | 'createdAtMs' | 'changedAtMs'
  >;
  to: { as: 'released' } | { as: 'completed'; kind: Completion['kind']; status: number };
}

/** What the audit trail keeps of a resolution. It has no token, no header and no body. */
export function auditOf(
  { state, merchant, operation, key, requestId, createdAtMs, changedAtMs }: RecordHead,
  resolution: StoredResolution,
  { by, reason }: ResolutionNote,
  atMs: number,
): AuditRecord {
  const from = { state, merchant, operation, key, requestId, createdAtMs, changedAtMs };
  if (resolution.as === 'released') return { atMs, by, reason, from, to: { as: 'released' } };
  const { completion } = resolution;
  const kind = completion.kind === 'tombstone' ? 'tombstone' : 'response';
  const status = completion.kind === 'response' ? completion.response.status : completion.status;
  return { atMs, by, reason, from, to: { as: 'completed', kind, status } };
}

/** Far longer than the record itself: disputes and yearly audits ask about payouts of the past year. */
export const AUDIT_RETENTION_MS = 400 * 86_400_000;
