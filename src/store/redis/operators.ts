import { Redis } from 'ioredis';
import { RECORD_ID_DIGITS, type RecordId } from '../../lib/brands.ts';
import { decodeHead, decodeRecord, HEAD_BYTES } from '../codec.ts';
import type { ResolutionCount } from '../doubts.ts';
import type { Listed, OpenCount, Page, Register, Replace, Scanned } from '../register.ts';
import { type KeyRecord, StoreUnavailable, UnknownCursor, UnreadableRecord } from '../types.ts';
import { addressOf, mastersOf } from './client.ts';
import { type Commands, idOf, leaseName, type Names, PARTITIONS, scripts, shortOf } from './commands.ts';

/** How many partitions' indexes are read at once. Most of them are empty. */
const AT_ONCE = 32;
/** A count checks this many of the oldest doubts in these indexes, because their records may have expired. */
const OLDEST = 320;
/** About how many keys are examined for one page. */
const KEYS_PER_PAGE = 1000;
const KEYS_PER_SCAN = 250;
/** Only names are read. */
const NAMES_PER_SCAN = 1000;
/** No two ids have as many first digits in common. */
const UNIQUE_DIGITS = 16;

/** An entry in the index of open records. */
export const entryOf = (short: string, operation: string): string => `${short} ${operation}`;
/** The score in the index of open records: the time of creation, negative while executing. */
export const scoreOf = ({ state, createdAtMs }: KeyRecord): number =>
  state === 'executing' ? -createdAtMs : createdAtMs;

/** The field of the hash that counts resolutions. */
export const resolutionField = ({ as, by }: NonNullable<Replace['counted']>): string => `${as} ${by}`;

/** What a register knows of its records: their names, how they are asked for, and whether lock nodes hold their leases. */
type Records = Pick<Register, 'isLeased'> & { commands: Commands; names: Names };

interface Entry {
  /** What the names of its partition begin with. */
  start: string;
  text: string;
  id: RecordId;
  score: number;
}

/** What the names of the partitions begin with, in groups that are read at once, from one partition on. */
function* groupsOf({ names }: Records, from = 0): Generator<string[]> {
  for (let at = from; at < PARTITIONS; at += AT_ONCE) yield names.partitions.slice(at, at + AT_ONCE);
}

/** The entries of the indexes of some partitions. An index of another type has none. */
async function entriesOf({ commands }: Records, starts: string[]): Promise<Entry[]> {
  const indexes = starts.map(async (start) => {
    const index = await commands
      .call(() => commands.client.zrangeBuffer(`${start}open`, '0', '-1', 'WITHSCORES'))
      .catch((error) => (error instanceof UnreadableRecord ? [] : Promise.reject(error)));
    return index.flatMap((bytes, at) => {
      const text = bytes.toString('latin1');
      const id = idOf(text.slice(0, text.indexOf(' ')));
      return at % 2 === 0 ? [{ start, text, id, score: Number(index[at + 1]) }] : [];
    });
  });
  return (await Promise.all(indexes)).flat();
}

/** Removes those whose records are not open, and returns the others. Best effort, because Redis may refuse writes. */
async function sweep({ commands, names }: Records, entries: Entry[]): Promise<Entry[]> {
  const partitions = Map.groupBy(entries, ({ start }) => start);
  const removed = [...partitions].map(([start, some]) => {
    const keys = [`${start}open`, ...some.map(({ id }) => names.recordOf(id))];
    const texts = some.map(({ text }) => text);
    return commands.run(scripts.sweep, keys, texts, (reply) => reply as Buffer[]).catch(() => []);
  });
  const gone = new Set((await Promise.all(removed)).flat().map((text) => text.toString('latin1')));
  return entries.filter(({ text }) => !gone.has(text));
}

/** See `Register.list`. The cursor of open records is the last id of the page before. */
export async function listRecords(
  register: Records,
  { open, limit, cursor }: { open: boolean; limit: number; cursor?: string | undefined },
): Promise<Page> {
  if (!open) return await scanRecords(register, limit, cursor);
  const after = cursor ?? '0'.repeat(RECORD_ID_DIGITS);
  if (!ID.test(after)) throw new UnknownCursor();
  const records: Listed[] = [];
  for (const starts of groupsOf(register, register.names.partitionOf(after))) {
    // The order of ids, which no change of a record changes.
    const rest = (await entriesOf(register, starts))
      .filter(({ id }) => id > after)
      .toSorted((a, b) => (a.id < b.id ? -1 : 1));
    while (rest.length > 0) {
      const some = rest.splice(0, limit - records.length);
      const listed = await Promise.all(some.map(({ id }) => listedOf(register, id)));
      records.push(...listed.filter(isOpen));
      const closed = some.filter((_, at) => !isOpen(listed[at]));
      await sweep(register, closed);
      if (records.length >= limit) return { records, cursor: some.at(-1)?.id as string };
    }
  }
  return { records };
}

const isOpen = (listed: Listed | undefined): listed is Listed =>
  listed !== undefined && (listed.unreadable !== undefined || listed.head.state !== 'completed');

/** Reads a record without its completion, if there is one. */
async function listedOf(register: Records, id: RecordId): Promise<Listed | undefined> {
  const { client } = register.commands;
  const key = register.names.recordOf(id);
  try {
    const [start, length, expiresInMs, leases] = await register.commands.call(() =>
      Promise.all([
        client.getrangeBuffer(key, 0, HEAD_BYTES - 1),
        client.strlen(key),
        client.pttl(key),
        client.exists(leaseName(key)),
      ]),
    );
    if (expiresInMs === -2) return undefined;
    const isLeased = register.isLeased ? undefined : leases > 0;
    const parts = decodeHead(start);
    if (parts.end === length) return { id, head: parts.head, expiresInMs, isLeased };
    // It is damaged, or was changed between these commands.
    const bytes = await client.getBuffer(key);
    if (bytes === null) return undefined;
    const { completion: _, ...head } = decodeRecord(bytes);
    return { id, head, expiresInMs, isLeased };
  } catch (error) {
    if (error instanceof UnreadableRecord) return { id, unreadable: error.message };
    throw error;
  }
}

/** All records, by SCAN, one master after the other. The cursor: address, SCAN's own cursor, ids that did not fit into the page. */
async function scanRecords(register: Records, limit: number, cursor?: string): Promise<Page> {
  const masters = new Map((await allMasters(register)).map((node) => [addressOf(node), node]));
  const addresses = [...masters.keys()].toSorted();
  const first = Buffer.from(`${addresses[0]} 0`).toString('base64url');
  const words = Buffer.from(cursor ?? first, 'base64url')
    .toString('latin1')
    .split(' ');
  let [address = '', position = '', ...pending] = words;
  if (!masters.has(address) || !/^(?:\d{1,20}|end)$/.test(position) || !pending.every((id) => ID.test(id)))
    throw new UnknownCursor();
  const records: Listed[] = [];
  for (let examined = 0; examined < KEYS_PER_PAGE && records.length < limit; ) {
    if (pending.length === 0) {
      if (position === 'end') {
        const next = addresses[addresses.indexOf(address) + 1];
        if (next === undefined) return { records };
        [address, position] = [next, '0'];
      }
      const count = Math.min(Math.max(limit - records.length, 10), KEYS_PER_SCAN);
      const [following, found] = await scanOnce(register, masters.get(address) as Redis, position, count);
      position = following === '0' ? 'end' : following;
      pending = found.filter(({ kind }) => kind === 'record').map(({ id }) => id);
      examined += count;
    }
    const some = pending.splice(0, limit - records.length) as RecordId[];
    const listed = await Promise.all(some.map((id) => listedOf(register, id)));
    records.push(...listed.filter((one) => one !== undefined));
  }
  return { records, cursor: Buffer.from([address, position, ...pending].join(' ')).toString('base64url') };
}

const ID = /^[0-9a-f]{48}$/;

/** See `Register.idsOf`. The index has most of those that people ask for. For others the names of all keys are read. */
export async function idsOf(register: Records, digits: string): Promise<RecordId[]> {
  const start = register.names.startOf(digits);
  if (digits.length >= UNIQUE_DIGITS) {
    const open = (await entriesOf(register, [start])).find(({ id }) => id.startsWith(digits));
    if (open && (await listedOf(register, open.id))) return [open.id];
  }
  const found = new Set<RecordId>();
  const bytes = Buffer.from(digits, 'hex');
  // A letter of a name is six bits.
  const letters = bytes.toString('base64url').slice(0, Math.floor((bytes.length * 8) / 6));
  for await (const names of scanAll(register, NAMES_PER_SCAN, `${start}${letters}*`))
    for (const { id } of names) if (id.startsWith(digits)) found.add(id);
  return [...found];
}

/**
 * The client itself, or the masters of a cluster. ioredis drops one whose connection has ended, and its records must not be taken for absent.
 *
 * @throws {StoreUnavailable} one that has records may be away
 */
export async function allMasters({ commands, names }: Omit<Records, 'isLeased'>): Promise<Redis[]> {
  const { client } = commands;
  if (client instanceof Redis) return [client];
  const connected = new Set(mastersOf(client).map(addressOf));
  const addresses = new Set(client.slots.map((nodes) => nodes?.[0]));
  if ([...addresses].every((address) => address !== undefined && connected.has(address)))
    return mastersOf(client);
  // One partition of each, because ioredis refuses a second command to a master while the first one connects to it.
  const away = (): string[] => {
    const starts = new Map(names.partitions.map((start, at) => [commands.connectionOf(at), start]));
    return [...starts].flatMap(([connection, start]) => (connection instanceof Redis ? [] : [start]));
  };
  // A command connects to its master, or fails.
  await Promise.all(away().map((start) => commands.call(() => client.exists(`${start}open`))));
  if (away().length > 0)
    throw new StoreUnavailable('redis: a master is not connected', { maybeWritten: false });
  return mastersOf(client);
}

/** All records and audit trails on all masters. */
export async function* scanAll(
  register: Records,
  keysAtOnce: number,
  pattern = register.names.pattern,
): AsyncGenerator<Scanned[]> {
  for (const node of await allMasters(register))
    for (let cursor = '', found: Scanned[]; cursor !== '0'; ) {
      [cursor, found] = await scanOnce(register, node, cursor || '0', keysAtOnce, pattern);
      yield found;
    }
}

/** One step of SCAN: its next cursor, and what was found. Other keys are leases, indexes, and so on. */
async function scanOnce(
  { commands, names }: Records,
  node: Redis,
  cursor: string,
  count: number,
  pattern = names.pattern,
) {
  const [next, keys] = await commands.call(() => node.scan(cursor, 'MATCH', pattern, 'COUNT', count));
  const found = keys.flatMap((key): Scanned[] => {
    const [, short, audit] = /\}:([\w-]{32})(:audit)?$/.exec(key) ?? [];
    return short ? [{ id: idOf(short), kind: audit ? 'audit' : 'record' }] : [];
  });
  return [next, found] as [string, Scanned[]];
}

/** See `Register.countOpen`. */
export async function countOpen(
  register: Records,
  { executingSinceMs, signal }: { executingSinceMs: number; signal?: AbortSignal | undefined },
): Promise<OpenCount> {
  const { client } = register.commands;
  const inDoubt: OpenCount['inDoubt'] = new Map();
  const old: RecordId[] = [];
  const resolved = new Map<string, number>();
  for (const starts of groupsOf(register)) {
    signal?.throwIfAborted();
    const [entries, ...hashes] = await Promise.all([
      entriesOf(register, starts),
      ...starts.map((start) => client.hgetall(`${start}resolutions`).catch(() => ({}))),
    ]);
    const executing = entries.filter(({ score }) => score < 0 && -score < executingSinceMs);
    const doubts = entries.filter(({ score }) => score >= 0).toSorted((a, b) => a.score - b.score);
    const unsure = await sweep(register, [...executing, ...doubts.splice(0, OLDEST)]);
    old.push(...unsure.filter(({ score }) => score < 0).map(({ id }) => id));
    for (const { text, score } of [...unsure.filter(({ score }) => score >= 0), ...doubts]) {
      const operation = text.slice(text.indexOf(' ') + 1);
      const { number, oldestMs } = inDoubt.get(operation) ?? { number: 0, oldestMs: score };
      inDoubt.set(operation, { number: number + 1, oldestMs: Math.min(oldestMs, score) });
    }
    for (const [field, number] of hashes.flatMap((hash) => Object.entries(hash)))
      resolved.set(field, (resolved.get(field) ?? 0) + Number(number));
  }
  const resolutions = [...resolved].map(([field, number]) => {
    const [as, by] = field.split(' ') as [ResolutionCount['as'], ResolutionCount['by']];
    return { as, by, number };
  });
  return { inDoubt, old, resolutions };
}

/**
 * Rebuilds the index of open records, which was removed or damaged. Reads the head of every record, in small steps.
 *
 * @param report gets the number of records that were read, after each step
 */
export async function repairIndex(register: Records, report: (records: number) => void): Promise<void> {
  const { client } = register.commands;
  for (const index of register.names.partitions.map((start) => `${start}open`)) {
    const isOfOtherType = await client.zrange(index, '0', '0').then(
      () => false,
      ({ message }: Error) => message.startsWith('WRONGTYPE'),
    );
    if (isOfOtherType) await client.del(index);
  }
  let read = 0;
  for await (const found of scanAll(register, KEYS_PER_SCAN)) {
    const records = found.filter(({ kind }) => kind === 'record');
    await Promise.all(records.map(({ id }) => addToIndex(register, id)));
    read += records.length;
    report(read);
  }
}

async function addToIndex(register: Records, id: RecordId): Promise<void> {
  const listed = await listedOf(register, id);
  if (!isOpen(listed) || listed.unreadable !== undefined) return;
  const [start, score] = [register.names.startOf(id), scoreOf(listed.head)];
  const text = entryOf(shortOf(id), listed.head.operation);
  // A change of the record may have written the entry meanwhile, and then that is right.
  await register.commands.client.zadd(`${start}open`, 'NX', score, Buffer.from(text, 'latin1'));
  await sweep(register, [{ start, text, id, score }]);
}
