import { Cluster, type Redis } from 'ioredis';
import type { Scope } from '../../../kernel/brands.ts';
import {
  isListed,
  type ListedRecord,
  type ListFilter,
  type Listing,
  UnknownCursor,
  UnreadableRecord,
} from '../../store.ts';
import type { RedisClient } from './client.ts';
import { decodeHead, HEAD_BYTES } from './codec.ts';
import { type Commands, scripts } from './commands.ts';

export interface Look {
  commands: Commands;
  /** Whether the leases live on the store's own node. */
  leasesHere: boolean;
  keyOf(scope: string): string;
  isHeld(scope: Scope): Promise<boolean>;
}

/** What a cursor says: how far a listing has come. */
interface Place {
  /** Address of the master that is being read; empty if there is only one. */
  master: string;
  /** SCAN's own cursor there, or `through`: all keys of that master were read. */
  scan: string;
  /** SCAN gives a few more keys than were asked for. These are left for the next page. */
  waiting: readonly Scope[];
}

function encodePlace({ master, scan, waiting }: Place): string {
  return Buffer.from([master, scan, ...waiting].join(' ')).toString('base64url');
}

/** @throws {UnknownCursor} */
function decodePlace(cursor: string): Place {
  const [master, scan = '', ...waiting] = Buffer.from(cursor, 'base64url').toString('latin1').split(' ');
  const isScope = (text: string): text is Scope => SCOPE.test(text);
  if (master === undefined || !/^(?:\d{1,20}|through)$/.test(scan) || !waiting.every(isScope))
    throw new UnknownCursor();
  return { master, scan, waiting };
}

/** Records that one call reads, at most: payouts go on meanwhile. */
const EXAMINED_A_PAGE = 1000;

/** Keys that one SCAN looks at, at least and at most. */
const COUNT = { least: 10, most: 250 };

/** A page: master by master, each by SCAN. */
export async function listRecords(look: Look, filter: ListFilter): Promise<Listing> {
  const masters = mastersOf(look.commands.client);
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

/** The next keys, on this master or the one after it. Undefined: all masters were read. */
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

/** Undefined: the record is gone. */
async function listedAs(
  { commands, leasesHere, keyOf, isHeld }: Look,
  scope: Scope,
): Promise<ListedRecord | undefined> {
  const key = keyOf(scope);
  try {
    const reply = await commands.run(scripts.list, [key, `${key}:lease`], [HEAD_BYTES]);
    if (reply === null) return undefined;
    const [bytes, leftMs, leases, whole] = reply as [Buffer, number, number, number];
    const head = decodeHead(bytes);
    if (whole === 0) throw new UnreadableRecord('it is not as long as it says');
    const { leaseMs, inDoubtRetentionMs } = head.lifetimes;
    const lapsed = head.state === 'executing' && inDoubtRetentionMs - leftMs >= leaseMs;
    const ownerGone = lapsed && !(leasesHere ? leases > 0 : await isHeld(scope));
    return { ...head, scope, ownerGone };
  } catch (error) {
    if (error instanceof UnreadableRecord) return { scope, unreadable: error.message };
    throw error;
  }
}
