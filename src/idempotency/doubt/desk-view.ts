import { createHash } from 'node:crypto';
import type { Scope } from '../../kernel/brands.ts';
import type { IdempotencyRecord, ListedRecord, RecordHead } from '../store.ts';

/** A record as people see it: without its token, and without its body. */
export interface RecordView {
  scope: string;
  state: RecordHead['state'] | 'unreadable';
  /** Why it cannot be read; then nothing else is known. */
  reason?: string;
  /** Names this execution, so that a resolution can say which one it is about. */
  execution?: string;
  merchant?: string;
  operation?: string;
  key?: string;
  /** Of the request that started the record. */
  requestId?: string;
  /** The gateway that started it. */
  gatewayId?: string;
  /** ISO 8601. */
  createdAt?: string;
  changedAt?: string;
  /** It has been in doubt. */
  wasInDoubt?: boolean;
  /** Executing, and its owner has shown no life for a lease. */
  ownerGone?: boolean;
  /** What it was completed with. `tombstone`: without a response. */
  completion?:
    | { kind: 'tombstone' }
    | { kind: 'response'; status: number; headers: string[]; bodyBytes: number };
}

/** Derived from the token. The token itself is never shown, because it permits writing. */
export const executionOf = ({ token }: RecordHead): string =>
  createHash('sha256').update('execution').update(token).digest('hex').slice(0, 16);

export function viewOf(record: ListedRecord | (IdempotencyRecord & { scope: Scope })): RecordView {
  if ('unreadable' in record && record.unreadable !== undefined)
    return { scope: record.scope, state: 'unreadable', reason: record.unreadable };
  const {
    scope,
    state,
    merchant,
    operation,
    key,
    requestId,
    gatewayId,
    createdAtMs,
    changedAtMs,
    wasInDoubt,
  } = record;
  return {
    ...{ scope, state, execution: executionOf(record), merchant, operation, key, requestId, gatewayId },
    createdAt: new Date(createdAtMs).toISOString(),
    changedAt: new Date(changedAtMs).toISOString(),
    ...(wasInDoubt ? { wasInDoubt } : {}),
    ...('ownerGone' in record && record.ownerGone ? { ownerGone: true } : {}),
    ...('completion' in record ? completionView(record.completion) : {}),
  };
}

function completionView(completion: IdempotencyRecord['completion']): Pick<RecordView, 'completion'> {
  if (!completion) return {};
  if (completion.kind === 'tombstone') return { completion: { kind: 'tombstone' } };
  const { status, headers, body } = completion.response;
  return { completion: { kind: 'response', status, headers, bodyBytes: body.length } };
}
