import { encodeRecord } from '../../codec.ts';
import type { IdempotencyRecord } from '../../record.ts';
import { seal } from './envelope.ts';
import type { Stamp } from './stamp.ts';

export interface Standing {
  stamp: Stamp;
  record: IdempotencyRecord;
}

/** What stands under a scope, with the version that a conditional write has to name. */
export interface Entry extends Standing {
  version: number;
}

/** Nothing stands, but for a record past its retention perhaps: then its version. */
export interface Absent {
  expired: number | undefined;
}

export const bytesOf = (next: Standing): Buffer => seal(next.stamp, encodeRecord(next.record));

/** Written instead of what stood; `keep` where it stands so already, `refuse` where it must not be changed so. */
export type Change = Standing | 'remove' | 'keep' | 'refuse';
