import { setImmediate as nextTurn } from 'node:timers/promises';
import type { RootDatabase } from 'lmdb';
import type { Scope } from '../../../kernel/brands.ts';
import { decodeRecord } from '../../codec.ts';
import {
  EXAMINED_A_PAGE,
  isListed,
  type ListedRecord,
  type ListFilter,
  type Listing,
  UnknownCursor,
} from '../../listing.ts';
import { messageOf } from './answering.ts';
import { unseal } from './envelope.ts';
import { scopeOfRecord } from './keys.ts';
import type { Ages } from './stamp.ts';

/** LMDB reads in this thread: requests are served in between. */
const EXAMINED_A_TURN = 50;
/** Values are read whole, and may be large. */
const BYTES_A_PAGE = 16_777_216;

export interface Look {
  ages: Ages;
  retentionMs: number;
  leaseMs: number;
  /** Throws where the store was closed between two turns. */
  refuseClosed(): void;
}

/** A page in the order of the keys: what is not settled comes first. The cursor is the last key that was looked at. */
export async function listRecords(
  entries: RootDatabase<Buffer, Buffer>,
  look: Look,
  filter: ListFilter,
): Promise<Listing> {
  const records: ListedRecord[] = [];
  let last = filter.cursor === undefined ? undefined : keyIn(filter.cursor);
  let bytes = 0;
  for (let examined = 0; examined < EXAMINED_A_PAGE && bytes < BYTES_A_PAGE; examined += EXAMINED_A_TURN) {
    if (examined > 0) await nextTurn();
    look.refuseClosed();
    entries.resetReadTxn();
    let seen = 0;
    for (const { key, value } of entries.getRange({ ...after(last), limit: EXAMINED_A_TURN })) {
      if (records.length === filter.limit) return { records, cursor: cursorOf(last) };
      seen++;
      last = key;
      bytes += value.length;
      const scope = scopeOfRecord(key);
      const listed = scope && listedAs(scope, value, look);
      if (listed && isListed(listed, filter)) records.push(listed);
    }
    if (seen < EXAMINED_A_TURN) return { records };
  }
  return { records, cursor: cursorOf(last) };
}

/** Undefined for a record past its retention. */
function listedAs(scope: Scope, value: Buffer, look: Look): ListedRecord | undefined {
  try {
    const { stamp, record } = unseal(value);
    if (look.ages.sinceClaimMs(stamp) >= look.retentionMs) return undefined;
    const { settlement: _, ...head } = decodeRecord(record);
    const ownerGone = head.state === 'executing' && look.ages.sinceAliveMs(stamp) >= look.leaseMs;
    return { ...head, scope, ownerGone };
  } catch (error) {
    return { scope, unreadable: messageOf(error) };
  }
}

/** The successor of a key is the key with a zero byte behind it. */
const after = (last: Buffer | undefined) => (last ? { start: Buffer.concat([last, Buffer.alloc(1)]) } : {});

const cursorOf = (last: Buffer | undefined): string => last?.toString('hex') ?? '';

function keyIn(cursor: string): Buffer {
  if (!/^(?:[0-9a-f]{2}){1,64}$/.test(cursor)) throw new UnknownCursor();
  return Buffer.from(cursor, 'hex');
}
