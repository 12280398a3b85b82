import { OtherFormat, STORE_FORMAT } from '../contract.ts';
import type { RedisClient } from './client.ts';

/** The key that says which format the keys of a prefix have, in decimal digits. Every version of oncegate looks here. */
export const formatKeyOf = (prefix: string): string => `${prefix}:format`;

/**
 * Refuses a prefix whose records have another format: this version would not see them, and would pay their keys again. Notes
 * the format if there is none yet.
 *
 * @throws {OtherFormat}
 */
export async function requireFormat(client: RedisClient, prefix: string): Promise<void> {
  const noted = await client.get(formatKeyOf(prefix));
  if (noted !== null) return refuseOtherFormat(prefix, noted);
  const meanwhile = await client
    .set(formatKeyOf(prefix), STORE_FORMAT, 'NX', 'GET')
    // A Redis that is full, or a replica, refuses writes. Then the next start notes the format.
    .catch(() => client.get(formatKeyOf(prefix)));
  // A gateway of another format may have started at the same moment.
  if (meanwhile !== null) refuseOtherFormat(prefix, meanwhile);
}

/** @throws {OtherFormat} */
export function refuseOtherFormat(prefix: string, found: string): void {
  if (found === String(STORE_FORMAT)) return;
  const format = /^\d{1,9}$/.test(found) ? `format ${found}` : 'an unknown format';
  throw new OtherFormat(
    `redis has records of ${format} under the prefix ${prefix}, and this gateway knows format ${STORE_FORMAT}: use a gateway version that knows it, or configure another store.prefix, but then the keys of those records can be paid again`,
  );
}
