import { encodeRecord } from '../../codec.ts';
import type { IdempotencyRecord } from '../../record.ts';
import { seal } from './envelope.ts';
import type { Stamp } from './stamp.ts';

export interface Standing {
  stamp: Stamp;
  record: IdempotencyRecord;
}

/** Where a value stands, and in which version: what a conditional write has to name. */
export interface Place {
  key: Buffer;
  version: number;
}

/** What stands under a scope. */
export interface Entry extends Standing, Place {}

/** Nothing stands, but for a record past its retention perhaps. */
export interface Absent {
  expired: Place | undefined;
}

export const bytesOf = (next: Standing): Buffer => seal(next.stamp, encodeRecord(next.record));

/** Written instead of what stood; `keep` where it stands so already, `refuse` where it must not be changed so. */
export type Change = Standing | 'remove' | 'keep' | 'refuse';
