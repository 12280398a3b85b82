import { Cluster, type Redis } from 'ioredis';
import type { Scope } from '../../../kernel/brands.ts';
import { decodeHead, HEAD_BYTES, markOf, UnreadableRecord } from '../../codec.ts';
import {
  EXAMINED_A_PAGE,
  isListed,
  type ListedRecord,
  type ListFilter,
  type Listing,
  UnknownCursor,
} from '../../listing.ts';
import type { RedisClient } from './connect.ts';
import { decodePlace, encodePlace, type Place } from './place.ts';

export interface Look {
  client: RedisClient;
  leaseMs: number;
  keyOf(scope: string): string;
  isHeld(scope: Scope): Promise<boolean>;
}

/** Keys that one SCAN looks at, at least and at most. */
const COUNT = { least: 10, most: 250 };

/** A page: master by master, each by SCAN. */
export async function listRecords(look: Look, filter: ListFilter): Promise<Listing> {
  const masters = mastersOf(look.client);
  const [first = ''] = masters.keys();
  let place: Place =
    filter.cursor === undefined ? { master: first, scan: '0', waiting: [] } : decodePlace(filter.cursor);
  if (!masters.has(place.master)) throw new UnknownCursor();
  const records: ListedRecord[] = [];
  for (let examined = 0; examined < EXAMINED_A_PAGE && records.length < filter.limit; ) {
    const room = filter.limit - records.length;
    if (place.waiting.length === 0) {
      const count = Math.min(Math.max(room, COUNT.least), COUNT.most);
      const next = await scanOn(masters, look, place, count);
      if (!next) return { records };
      place = next;
      examined += count;
    }
    const looked = place.waiting.slice(0, room);
    place = { ...place, waiting: place.waiting.slice(room) };
    const found = await Promise.all(looked.map((scope) => listedAs(look, scope)));
    records.push(
      ...found.filter((record) => record !== undefined).filter((record) => isListed(record, filter)),
    );
  }
  return { records, cursor: encodePlace(place) };
}

/** By address, so that a cursor finds its master again; one server needs no name. */
function mastersOf(client: RedisClient): Map<string, Redis> {
  if (!(client instanceof Cluster)) return new Map([['', client]]);
  const named = client
    .nodes('master')
    .map((node) => [`${node.options.host}:${node.options.port}`, node] as const);
  return new Map(named.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

/** The next keys, on this master or the one after it. Undefined: all are through. */
async function scanOn(
  masters: Map<string, Redis>,
  { keyOf }: Look,
  place: Place,
  count: number,
): Promise<Place | undefined> {
  const names = [...masters.keys()];
  const through = place.scan === 'through';
  const master = through ? names[names.indexOf(place.master) + 1] : place.master;
  const node = master === undefined ? undefined : masters.get(master);
  if (master === undefined || !node) return undefined;
  const [before, after] = [keyOf('').slice(0, -1), '}'];
  const [scan, keys] = await node.scan(through ? '0' : place.scan, 'MATCH', keyOf('*'), 'COUNT', count);
  const scopes = keys
    .map((key) => key.slice(before.length, -after.length))
    .filter((scope) => SCOPE.test(scope));
  return { master, scan: scan === '0' ? 'through' : scan, waiting: [...new Set(scopes)] as Scope[] };
}

const SCOPE = /^[0-9a-f]{64}$/;

/** Undefined where nothing stands any more. */
async function listedAs(look: Look, scope: Scope): Promise<ListedRecord | undefined> {
  const key = look.keyOf(scope);
  try {
    const [bytes, leftMs] = await Promise.all([
      look.client.getrangeBuffer(key, 0, HEAD_BYTES - 1),
      look.client.pttl(key),
    ]);
    if (leftMs === -2) return undefined;
    const head = decodeHead(bytes);
    const lapsed = head.state === 'executing' && markOf(bytes) - leftMs >= look.leaseMs;
    return { ...head, scope, ownerGone: lapsed && !(await look.isHeld(scope)) };
  } catch (error) {
    const { name, message } = error as Error;
    // What somebody put there that is no string cannot be read either.
    if (error instanceof UnreadableRecord || (name === 'ReplyError' && message.startsWith('WRONGTYPE')))
      return { scope, unreadable: message };
    throw error;
  }
}
