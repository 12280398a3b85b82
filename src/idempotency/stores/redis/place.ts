import type { Scope } from '../../../kernel/brands.ts';
import { UnknownCursor } from '../../listing.ts';

/** Where a listing stands. */
export interface Place {
  /** Address of the master that is looked through; empty where there is but one. */
  master: string;
  /** SCAN's own cursor there, or that this master is through. */
  scan: string;
  /** SCAN gives a few more keys than were asked for: these are still to be looked at. */
  waiting: readonly Scope[];
}

export function encodePlace({ master, scan, waiting }: Place): string {
  return Buffer.from([master, scan, ...waiting].join(' ')).toString('base64url');
}

/** @throws {UnknownCursor} */
export function decodePlace(cursor: string): Place {
  const [master, scan = '', ...waiting] = Buffer.from(cursor, 'base64url').toString('latin1').split(' ');
  const isScope = (text: string): text is Scope => /^[0-9a-f]{64}$/.test(text);
  if (master === undefined || !/^(?:\d{1,20}|through)$/.test(scan) || !waiting.every(isScope))
    throw new UnknownCursor();
  return { master, scan, waiting };
}
