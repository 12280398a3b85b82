import { Cluster } from 'ioredis';
import { OtherFormat, STORE_FORMAT } from '../../store.ts';
import type { RedisClient } from './client.ts';

/** The key that says which format the keys of a prefix have, in decimal digits. Every version of oncegate looks here. */
export const formatKeyOf = (prefix: string): string => `${prefix}:format`;

const KEYS_PER_SCAN = 1000;

/**
 * Refuses a prefix whose records have another format: this version would not see them, and would pay their keys again. Notes
 * the format if there is none yet.
 *
 * A prefix without the note is searched for records of other formats once, because versions before 1.0.0 did not note it.
 *
 * @throws {OtherFormat}
 */
export async function requireFormat(client: RedisClient, prefix: string): Promise<void> {
  const noted = await client.get(formatKeyOf(prefix));
  if (noted !== null) return refuseOtherFormat(prefix, noted);
  const found = await findOther(client, prefix);
  if (found !== undefined) return refuseOtherFormat(prefix, found);
  const meanwhile = await client
    .set(formatKeyOf(prefix), STORE_FORMAT, 'NX', 'GET')
    // A Redis that is full, or a replica, refuses writes. Then the next start searches again.
    .catch(() => client.get(formatKeyOf(prefix)));
  // A gateway of another format may have started at the same moment.
  if (meanwhile !== null) refuseOtherFormat(prefix, meanwhile);
}

/** @throws {OtherFormat} */
export function refuseOtherFormat(prefix: string, found: string): void {
  if (found === String(STORE_FORMAT)) return;
  const way =
    found === '1'
      ? 'stop the gateways of version 0.1.0, and start this one when those records have expired (after 24 hours by default)'
      : 'use a gateway version that knows it';
  const number = /^\d{1,9}$/.test(found) ? Number(found) : undefined;
  throw new OtherFormat(
    `redis has records of ${number === undefined ? 'an unknown format' : `format ${number}`} under the prefix ${prefix}, and this gateway knows format ${STORE_FORMAT}: ${way}, or configure another store.prefix, but then the keys of those records can be paid again`,
    number ?? 0,
    STORE_FORMAT,
  );
}

/** The number of another format that a record has. Undefined: there is none. */
async function findOther(client: RedisClient, prefix: string): Promise<string | undefined> {
  const nodes = client instanceof Cluster ? client.nodes('master') : [client];
  for (const node of nodes) {
    let cursor = '0';
    do {
      const [next, names] = await node.scan(cursor, 'MATCH', `${prefix}:*{*}`, 'COUNT', KEYS_PER_SCAN);
      for (const name of names) {
        const format = formatOf(name.slice(prefix.length));
        if (format !== undefined && format !== String(STORE_FORMAT)) return format;
      }
      cursor = next;
    } while (cursor !== '0');
  }
  return undefined;
}

/**
 * The format of a record, by its name without the prefix. Format 1 had no number in its names. Undefined: it is not the name of
 * a record. Audit trails and leases are no records: they may outlive them, and decide nothing.
 */
function formatOf(name: string): string | undefined {
  const [isRecord, number = '1'] = /^(?::v(\d{1,9}))?:\{[0-9a-f]{64}\}$/.exec(name) ?? [];
  return isRecord === undefined ? undefined : number;
}
