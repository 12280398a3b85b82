import { createHash } from 'node:crypto';
import type { Scope } from '../kernel/brands.ts';
import type { ListedRecord } from './listing.ts';
import type { IdempotencyRecord, RecordHead } from './record.ts';

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
  /** ISO 8601. */
  createdAt?: string;
  changedAt?: string;
  /** Executing, and its owner has shown no life for a lease. */
  ownerGone?: boolean;
  /** What it was settled with. `tombstone`: without a response. */
  settlement?:
    | { kind: 'tombstone' }
    | { kind: 'response'; status: number; headers: string[]; bodyBytes: number };
}

/** Made of the token, which itself is shown to nobody: who has it can write. */
export const executionOf = ({ token }: RecordHead): string =>
  createHash('sha256').update('execution').update(token).digest('hex').slice(0, 16);

export function viewOf(record: ListedRecord | (IdempotencyRecord & { scope: Scope })): RecordView {
  if ('unreadable' in record && record.unreadable !== undefined)
    return { scope: record.scope, state: 'unreadable', reason: record.unreadable };
  const { scope, state, merchant, operation, key, createdAtMs, changedAtMs } = record;
  return {
    ...{ scope, state, execution: executionOf(record), merchant, operation, key },
    createdAt: new Date(createdAtMs).toISOString(),
    changedAt: new Date(changedAtMs).toISOString(),
    ...('ownerGone' in record && record.ownerGone ? { ownerGone: true } : {}),
    ...('settlement' in record ? settlementView(record.settlement) : {}),
  };
}

function settlementView(settlement: IdempotencyRecord['settlement']): Pick<RecordView, 'settlement'> {
  if (!settlement) return {};
  if (settlement.kind === 'tombstone') return { settlement: { kind: 'tombstone' } };
  const { status, headers, body } = settlement.response;
  return { settlement: { kind: 'response', status, headers, bodyBytes: body.length } };
}
