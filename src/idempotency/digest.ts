import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope } from '../kernel/brands.ts';
import type { IdempotencyRecord, Settlement } from './record.ts';
import type { Store } from './store.ts';

/** An answer as a log may show it: enough to tell two apart, and nothing of what they say. */
export interface AnswerDigest {
  state: IdempotencyRecord['state'] | 'absent' | 'unreadable';
  status?: number;
  bodyBytes?: number;
  /** The first 16 hexadecimal digits. */
  bodySha256?: string;
}

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;

export function digestOf(settlement: Settlement): AnswerDigest {
  if (settlement.kind === 'tombstone') return { state: 'settled', status: settlement.status };
  const { status, body } = settlement.response;
  const bodySha256 = createHash('sha256').update(body).digest('hex').slice(0, 16);
  return { state: 'settled', status, bodyBytes: body.length, bodySha256 };
}

/** What stands under a scope: where somebody still works on it, what becomes of it within `forMs`. */
export async function digestOfStanding(store: Store, scope: Scope, forMs: number): Promise<AnswerDigest> {
  let pauseMs = FIRST_PAUSE_MS;
  for (let waitedMs = 0; ; waitedMs += pauseMs) {
    try {
      const record = await store.get(scope);
      if (!record) return { state: 'absent' };
      if (record.settlement) return digestOf(record.settlement);
      if (record.state === 'in_doubt' || waitedMs >= forMs) return { state: record.state };
    } catch {
      return { state: 'unreadable' };
    }
    pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS);
    await sleep(pauseMs, undefined, { ref: false });
  }
}
