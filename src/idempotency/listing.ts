import type { Scope } from '../kernel/brands.ts';
import type { RecordHead } from './record.ts';

export interface ListFilter {
  /** Only what needs somebody: in doubt, executing without an owner, and whatever cannot be read. */
  inDoubt: boolean;
  /** Records on a page, at most. */
  limit: number;
  /** Where the last page ended. */
  cursor?: string | undefined;
}

/** A record without its settlement: a page of bodies would have no bound. */
export type ListedRecord =
  /** `ownerGone`: executing, and the owner has shown no life for a lease: nobody has asked yet, so it is not marked. */
  | (RecordHead & { scope: Scope; ownerGone: boolean; unreadable?: undefined })
  /** The bytes under this scope are no record of ours: why. */
  | { scope: Scope; unreadable: string };

/** A page; it may be short, or empty, and still have a cursor: then there is more to look through. */
export interface Listing {
  records: ListedRecord[];
  cursor?: string;
}

/** What one call looks at, at most: a listing is read beside the traffic. */
export const EXAMINED_A_PAGE = 1000;

/** Does it belong on a page? */
export function isListed(record: ListedRecord, { inDoubt }: ListFilter): boolean {
  if (!inDoubt || record.unreadable !== undefined) return true;
  return record.state === 'in_doubt' || record.ownerGone;
}

/** The cursor is none that this store gave, or its place is gone: begin the listing anew. */
export class UnknownCursor extends Error {
  override readonly name = 'UnknownCursor';
  constructor() {
    super('the cursor is not known here: begin the listing anew');
  }
}
