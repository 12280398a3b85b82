import { createHash } from 'node:crypto';
import type { Scope } from '../kernel/brands.ts';
import type { Completion, IdempotencyRecord, Store } from './store.ts';

/** A result as the log may show it: enough to tell two results apart, and nothing of their content. */
export interface AnswerDigest {
  state: IdempotencyRecord['state'] | 'absent' | 'unreadable';
  status?: number;
  bodyBytes?: number;
  /** The first 16 hexadecimal digits. */
  bodySha256?: string;
}

export function digestOf(completion: Completion): AnswerDigest {
  if (completion.kind === 'tombstone') return { state: 'completed', status: completion.status };
  const { status, body } = completion.response;
  const bodySha256 = createHash('sha256').update(body).digest('hex').slice(0, 16);
  return { state: 'completed', status, bodyBytes: body.length, bodySha256 };
}

/** What the store holds for a scope at this moment. Never throws. */
export async function digestOfStored(store: Store, scope: Scope): Promise<AnswerDigest> {
  try {
    const record = await store.get(scope);
    if (!record) return { state: 'absent' };
    return record.completion ? digestOf(record.completion) : { state: record.state };
  } catch {
    return { state: 'unreadable' };
  }
}
