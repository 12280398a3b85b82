import { Cluster, type Redis } from 'ioredis';
import type { Scope } from '../../lib/brands.ts';
import { type ResolutionCount, UnknownCursor, UnreadableRecord } from '../contract.ts';
import type { KeyRecord, Listed, OpenCount, Page, Replace } from '../register.ts';
import { decodeHead, decodeRecord, HEAD_BYTES } from './codec.ts';
import { type Commands, idOf, leaseOf, type Names, PARTITIONS, scripts, shortOf } from './commands.ts';

/** What the operators' commands need of the register. */
export interface Access {
  commands: Commands;
  names: Names;
  hasLockNodes: boolean;
}

/** So many partitions are read at once. Most of their indexes are empty. */
const AT_ONCE = 64;
/** So many entries of an index are read at once, because payouts are served meanwhile. */
const ENTRIES = 1000;
/** So many of a partition's oldest doubts are looked at when they are counted, because their records may have expired. */
const OLDEST = 10;
/** About so many keys are examined for one page. */
const KEYS_PER_PAGE = 1000;
const KEYS_PER_SCAN = 250;

/** An entry in the index of open records. */
export const entryOf = (short: string, operation: string): string => `${short} ${operation}`;
/** Negative while the record is executing. */
export const scoreOf = ({ state, createdAtMs }: KeyRecord): number =>
  state === 'executing' ? -createdAtMs : createdAtMs;
const idIn = (entry: string): Scope => idOf(entry.slice(0, entry.indexOf(' ')));

/** The field of the hash that counts resolutions. */
export const resolutionField = ({ as, by }: NonNullable<Replace['counted']>): string => `${as} ${by}`;

/** See `Register.list`. The cursor of open records is the last id of the page before. */
export async function listRecords(
  access: Access,
  { open, limit, cursor: last }: { open: boolean; limit: number; cursor?: string | undefined },
): Promise<Page> {
  if (!open) return await scanRecords(access, limit, last);
  const cursor = last ?? '0'.repeat(64);
  if (!ID.test(cursor)) throw new UnknownCursor();
  const { partitions } = access.names;
  const records: Listed[] = [];
  for (let from = access.names.partitionOf(cursor); from < PARTITIONS; from += AT_ONCE) {
    const starts = partitions.slice(from, from + AT_ONCE);
    const indexes = await Promise.all(starts.map((start) => entriesOf(access, start, 0, -1)));
    for (const [at, entries] of indexes.entries()) {
      // The order of ids, which no change of a record changes.
      const rest = entries
        .map((entry) => ({ entry, id: idIn(entry) }))
        .filter(({ id }) => id > cursor)
        .toSorted((a, b) => (a.id < b.id ? -1 : 1));
      while (rest.length > 0) {
        const some = rest.splice(0, limit - records.length);
        const listed = await Promise.all(some.map(({ id }) => listedOf(access, id)));
        records.push(...listed.filter((one) => one !== undefined).filter(isOpen));
        const closed = some.filter((_, n) => !listed[n] || !isOpen(listed[n]));
        if (closed.length > 0)
          await sweep(
            access,
            starts[at] as string,
            closed.map(({ entry }) => entry),
          );
        if (records.length >= limit) return { records, cursor: some.at(-1)?.id as string };
      }
    }
  }
  return { records };
}

const isOpen = (listed: Listed): boolean =>
  listed.unreadable !== undefined || listed.head.state !== 'completed';

/** Entries of an index, by rank. An index of another type has none. */
async function entriesOf({ commands }: Access, start: string, from: number, to: number): Promise<string[]> {
  const entries = await commands.client
    .zrangeBuffer(`${start}open`, `${from}`, `${to}`)
    .catch(wrongTypeAsNone);
  return entries.map((entry) => entry.toString('latin1'));
}

function wrongTypeAsNone(error: Error): Buffer[] {
  if (error.message.startsWith('WRONGTYPE')) return [];
  throw error;
}

/** Removes entries whose records are not open. Returns which. Best effort, because Redis may refuse writes. */
async function sweep({ commands, names }: Access, start: string, entries: string[]): Promise<string[]> {
  const keys = [`${start}open`, ...entries.map((entry) => names.recordOf(idIn(entry)))];
  const removed = await commands
    .run(scripts.sweep, keys, entries, (reply) => reply as Buffer[])
    .catch(() => []);
  return removed.map((entry) => entry.toString('latin1'));
}

/** Undefined: there is no record. */
async function listedOf({ commands, names, hasLockNodes }: Access, id: Scope): Promise<Listed | undefined> {
  const { client } = commands;
  const key = names.recordOf(id);
  try {
    const [start, length, expiresInMs, leases] = await Promise.all([
      client.getrangeBuffer(key, 0, HEAD_BYTES - 1),
      client.strlen(key),
      client.pttl(key),
      client.exists(leaseOf(key)),
    ]);
    if (expiresInMs === -2) return undefined;
    const isLeased = hasLockNodes ? undefined : leases > 0;
    const parts = decodeHead(start);
    if (parts.end === length) return { id, head: parts.head, expiresInMs, isLeased };
    // It is damaged, or was changed between these commands.
    const bytes = await client.getBuffer(key);
    if (bytes === null) return undefined;
    const { completion: _, ...head } = decodeRecord(bytes);
    return { id, head, expiresInMs, isLeased };
  } catch (error) {
    if (error instanceof UnreadableRecord) return { id, unreadable: error.message };
    if ((error as Error).message.startsWith('WRONGTYPE'))
      return { id, unreadable: new UnreadableRecord('the key holds another type of value').message };
    throw error;
  }
}

/** All records, by SCAN, one master after the other. The cursor: address, SCAN's own cursor, ids that did not fit into the page. */
async function scanRecords(access: Access, limit: number, cursor: string | undefined): Promise<Page> {
  const masters = mastersOf(access.commands.client);
  const names = [...masters.keys()];
  const words =
    cursor === undefined
      ? [names[0] ?? '', '0']
      : Buffer.from(cursor, 'base64url').toString('latin1').split(' ');
  let [master = '', position = '', ...pending] = words;
  if (!masters.has(master) || !/^(?:\d{1,20}|end)$/.test(position) || !pending.every((id) => ID.test(id)))
    throw new UnknownCursor();
  const records: Listed[] = [];
  for (let examined = 0; examined < KEYS_PER_PAGE && records.length < limit; ) {
    if (pending.length === 0) {
      if (position === 'end') {
        const next = names[names.indexOf(master) + 1];
        if (next === undefined) return { records };
        [master, position] = [next, '0'];
      }
      const node = masters.get(master) as Redis;
      const count = Math.min(Math.max(limit - records.length, 10), KEYS_PER_SCAN);
      const [following, keys] = await node.scan(position, 'MATCH', access.names.pattern, 'COUNT', count);
      position = following === '0' ? 'end' : following;
      pending = idsIn(keys);
      examined += count;
    }
    const some = pending.splice(0, limit - records.length) as Scope[];
    const listed = await Promise.all(some.map((id) => listedOf(access, id)));
    records.push(...listed.filter((one) => one !== undefined));
  }
  return { records, cursor: Buffer.from([master, position, ...pending].join(' ')).toString('base64url') };
}

const ID = /^[0-9a-f]{64}$/;
const SHORT = /^[\w-]{43}$/;

/** The ids of the records among these keys. Others are leases, indexes, and so on. */
const idsIn = (keys: string[]): Scope[] =>
  [...new Set(keys.map((key) => key.slice(key.indexOf('}:') + 2)))]
    .filter((short) => SHORT.test(short))
    .map(idOf);

/** The masters by address. A single server has the empty name. */
export function mastersOf(client: Commands['client']): Map<string, Redis> {
  if (!(client instanceof Cluster)) return new Map([['', client]]);
  const named = client
    .nodes('master')
    .map((node) => [`${node.options.host}:${node.options.port}`, node] as const);
  return new Map(named.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

/** See `Register.countOpen`. */
export async function countOpen(
  access: Access,
  { executingSinceMs, signal }: { executingSinceMs: number; signal?: AbortSignal | undefined },
): Promise<OpenCount> {
  const { client } = access.commands;
  const count: OpenCount = { inDoubt: new Map(), old: [], resolutions: [] };
  for (let from = 0; from < PARTITIONS; from += AT_ONCE) {
    signal?.throwIfAborted();
    const starts = access.names.partitions.slice(from, from + AT_ONCE);
    const [resolutions] = await Promise.all([
      Promise.all(starts.map((start) => client.hgetall(`${start}resolutions`).catch(() => ({})))),
      ...starts.map((start) => countIn(access, start, executingSinceMs, count)),
    ]);
    for (const [field, number] of resolutions.flatMap((hash) => Object.entries(hash))) {
      const [as, by] = field.split(' ') as [ResolutionCount['as'], ResolutionCount['by']];
      const known = count.resolutions.find((one) => one.as === as && one.by === by);
      if (known) known.number += Number(number);
      else count.resolutions.push({ as, by, number: Number(number) });
    }
  }
  return count;
}

async function countIn(
  access: Access,
  start: string,
  executingSinceMs: number,
  count: OpenCount,
): Promise<void> {
  const { client } = access.commands;
  let oldest = OLDEST;
  for (let rank = 0, isLast = false; !isLast; rank += ENTRIES) {
    const page = await client
      .zrangeBuffer(`${start}open`, `${rank}`, `${rank + ENTRIES - 1}`, 'WITHSCORES')
      .catch(wrongTypeAsNone);
    isLast = page.length < 2 * ENTRIES;
    const found = page.flatMap((entry, at) =>
      at % 2 === 0 ? [[entry.toString('latin1'), Number(page[at + 1])] as const] : [],
    );
    // The oldest doubts have the lowest scores above zero.
    const unsure = found.filter(([, score]) => (score < 0 ? -score < executingSinceMs : oldest-- > 0));
    const swept =
      unsure.length > 0
        ? await sweep(
            access,
            start,
            unsure.map(([entry]) => entry),
          )
        : [];
    for (const [entry, score] of found) {
      if (swept.includes(entry)) continue;
      if (score < 0) {
        if (-score < executingSinceMs) count.old.push(idIn(entry));
        continue;
      }
      const operation = entry.slice(entry.indexOf(' ') + 1);
      const known = count.inDoubt.get(operation);
      if (known) {
        known.number++;
        known.oldestMs = Math.min(known.oldestMs, score);
      } else count.inDoubt.set(operation, { number: 1, oldestMs: score });
    }
  }
}

/**
 * Rebuilds the index of open records, which somebody has removed or damaged. Reads the head of every record, in small steps.
 *
 * @param report gets the number of keys that were examined, after each step
 */
export async function repairIndex(access: Access, report: (keys: number) => void): Promise<void> {
  const { names, commands } = access;
  const { client } = commands;
  for (const start of names.partitions) {
    await client.zrange(`${start}open`, '0', '0').catch((error) => {
      wrongTypeAsNone(error);
      return client.del(`${start}open`);
    });
    for (let rank = 0, entries = ['']; entries.length > 0; ) {
      entries = await entriesOf(access, start, rank, rank + ENTRIES - 1);
      const swept = entries.length > 0 ? await sweep(access, start, entries) : [];
      rank += entries.length - swept.length;
    }
  }
  let examined = 0;
  for (const node of mastersOf(client).values()) {
    for (let cursor = '0', isFirst = true; isFirst || cursor !== '0'; isFirst = false) {
      const [next, keys] = await node.scan(cursor, 'MATCH', names.pattern, 'COUNT', KEYS_PER_SCAN);
      cursor = next;
      await Promise.all(idsIn(keys).map((id) => addToIndex(access, id)));
      examined += keys.length;
      report(examined);
    }
  }
}

async function addToIndex(access: Access, id: Scope): Promise<void> {
  const listed = await listedOf(access, id);
  if (!listed || listed.unreadable !== undefined || !isOpen(listed)) return;
  const entry = entryOf(shortOf(id), listed.head.operation);
  const start = access.names.startOf(id);
  // A change of the record may have written the entry meanwhile, and then that is right.
  await access.commands.client.zadd(`${start}open`, 'NX', scoreOf(listed.head), Buffer.from(entry, 'latin1'));
  await sweep(access, start, [entry]);
}
