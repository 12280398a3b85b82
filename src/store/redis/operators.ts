import { Cluster, type Redis } from 'ioredis';
import { auditOf as auditRecord } from '../../ledger/rules.ts';
import type { Scope, Token } from '../../lib/brands.ts';
import type { Clock } from '../../lib/clock.ts';
import { newToken } from '../../lib/random.ts';
import {
  AUDIT_RETENTION_MS,
  type AuditRecord,
  type CountedNote,
  isListed,
  type ListedRecord,
  type ListFilter,
  type Listing,
  type Resolution,
  type Resolved,
  UnknownCursor,
  UnreadableRecord,
} from '../contract.ts';
import type { ResponseCipher } from '../response-cipher.ts';
import { decodeAudit, encodeAudit } from './audit.ts';
import type { RedisClient } from './client.ts';
import {
  decodeHead,
  decodeRecord,
  encodeCompletion,
  encodeTime,
  HEAD_BYTES,
  layout,
  ownerGaveUp,
} from './codec.ts';
import { auditOf, type Commands, leaseOf, notReplicated, scripts, wordOf } from './commands.ts';
import { type DoubtCounter, resolutionField } from './doubt-counter.ts';
import type { Leases } from './lease.ts';
import { FIRST_OPEN, type OpenIndex, type OpenPosition } from './open-index.ts';

/** One call examines about this many keys at most, so that payouts are served meanwhile. */
const KEYS_PER_PAGE = 1000;

/** The COUNT of a SCAN. */
const SCAN_COUNT = { least: 10, most: 250 };

const SCOPE = /^[0-9a-f]{64}$/;

/** What a listing needs of its store. */
export interface ListAccess {
  commands: Commands;
  leases: Leases;
  cipher: ResponseCipher;
  openIndex: OpenIndex;
  keyOf(scope: string): string;
}

/** How far a listing has come. Encoded, it is the cursor. */
interface Position {
  /** In the index of open records, which is read first for those in doubt. Undefined: it was read. */
  open: OpenPosition | undefined;
  /** Address of the master that is being read. Empty if there is only one server. */
  master: string;
  /** SCAN's own cursor on that master. `through`: all of its keys were read. */
  scan: string;
  /** Scopes that SCAN has returned and that were not examined yet. SCAN may return more keys than COUNT. */
  pending: readonly Scope[];
}

function encodeCursor({ open, master, scan, pending }: Position): string {
  const words = open ? [master, `open.${open.at}.${open.after}`] : [master, scan, ...pending];
  return Buffer.from(words.join(' ')).toString('base64url');
}

const OPEN = /^open\.(\d{1,5})\.((?:[0-9a-f]{64})?)$/;

/** @throws {UnknownCursor} */
function decodeCursor(cursor: string): Position {
  const [master, scan = '', ...pending] = Buffer.from(cursor, 'base64url').toString('latin1').split(' ');
  const [, at, after = ''] = OPEN.exec(scan) ?? [];
  if (at !== undefined && master !== undefined && pending.length === 0)
    return { open: { at: Number(at), after }, master, scan: '0', pending: [] };
  const isScope = (text: string): text is Scope => SCOPE.test(text);
  if (master === undefined || !/^(?:\d{1,20}|through)$/.test(scan) || !pending.every(isScope))
    throw new UnknownCursor();
  return { open: undefined, master, scan, pending };
}

/**
 * Reads one page with SCAN, one master after the other. A list of records in doubt first has those of the index of open records:
 * by SCAN alone, a few keys in doubt would be behind hundreds of empty pages. What SCAN then finds are records that cannot be
 * read, and those that the index lacks.
 */
export async function listRecords(access: ListAccess, filter: ListFilter): Promise<Listing> {
  const masters = mastersOf(access.commands.client);
  const [first = ''] = masters.keys();
  let position: Position =
    filter.cursor === undefined
      ? { open: filter.inDoubt ? FIRST_OPEN : undefined, master: first, scan: '0', pending: [] }
      : decodeCursor(filter.cursor);
  if (!masters.has(position.master) || (position.open && !filter.inDoubt)) throw new UnknownCursor();
  const records: ListedRecord[] = [];
  for (let examined = 0; examined < KEYS_PER_PAGE && records.length < filter.limit; ) {
    const wanted = filter.limit - records.length;
    if (position.open) {
      const { scopes, next } = await access.openIndex.read(access.commands, position.open, wanted);
      position = { ...position, open: next };
      examined += scopes.length;
      records.push(...(await listedOf(access, scopes, filter)));
      continue;
    }
    if (position.pending.length === 0) {
      const count = Math.min(Math.max(wanted, SCAN_COUNT.least), SCAN_COUNT.most);
      const next = await scan(masters, access, position, count);
      if (!next) return { records };
      position = next;
      examined += count;
    }
    const scopes = position.pending.slice(0, wanted);
    position = { ...position, pending: position.pending.slice(wanted) };
    const found = await listedOf(access, scopes, filter);
    records.push(...(filter.inDoubt ? await withoutIndexed(access, found) : found));
  }
  return { records, cursor: encodeCursor(position) };
}

async function listedOf(
  access: ListAccess,
  scopes: readonly Scope[],
  filter: ListFilter,
): Promise<ListedRecord[]> {
  const found = await Promise.all(scopes.map((scope) => listed(access, scope)));
  return found.filter((record) => record !== undefined).filter((record) => isListed(record, filter));
}

/** Those of the index were listed before. */
async function withoutIndexed(
  { openIndex, commands }: ListAccess,
  records: readonly ListedRecord[],
): Promise<ListedRecord[]> {
  const isIndexed = await Promise.all(records.map(({ scope }) => openIndex.has(commands, scope)));
  return records.filter((_, at) => !isIndexed[at]);
}

/** The masters by address, which a cursor names. A single server has the empty name. */
function mastersOf(client: RedisClient): Map<string, Redis> {
  if (!(client instanceof Cluster)) return new Map([['', client]]);
  const named = client
    .nodes('master')
    .map((node) => [`${node.options.host}:${node.options.port}`, node] as const);
  return new Map(named.toSorted(([a], [b]) => (a < b ? -1 : 1)));
}

/** The next keys of this master or, if all of its keys were read, of the next one. Undefined: all masters were read. */
async function scan(
  masters: Map<string, Redis>,
  { keyOf }: ListAccess,
  position: Position,
  count: number,
): Promise<Position | undefined> {
  const names = [...masters.keys()];
  const through = position.scan === 'through';
  const master = through ? names[names.indexOf(position.master) + 1] : position.master;
  const node = master === undefined ? undefined : masters.get(master);
  if (master === undefined || !node) return undefined;
  const [before, after] = [keyOf('').slice(0, -1), '}'];
  const [next, keys] = await node.scan(through ? '0' : position.scan, 'MATCH', keyOf('*'), 'COUNT', count);
  const scopes = keys
    .map((key) => key.slice(before.length, -after.length))
    .filter((scope) => SCOPE.test(scope));
  return {
    open: undefined,
    master,
    scan: next === '0' ? 'through' : next,
    pending: [...new Set(scopes)] as Scope[],
  };
}

/** Undefined: the record was removed meanwhile. */
async function listed(
  { commands, leases, cipher, keyOf }: ListAccess,
  scope: Scope,
): Promise<ListedRecord | undefined> {
  const key = keyOf(scope);
  try {
    const reply = await commands.run(scripts.list, [key, leaseOf(key)], [HEAD_BYTES]);
    if (reply === null) return undefined;
    const [bytes, ttlMs, leasesHere, isWhole] = reply as [Buffer, number, number, number];
    const head = decodeHead(bytes);
    if (isWhole === 0) throw new UnreadableRecord('its length differs from the lengths of its fields');
    const unknownKey = cipher.whyUnknown(head.encryptionKeyId);
    if (unknownKey) return { scope, unreadable: unknownKey };
    const { leaseMs, inDoubtRetentionMs } = head.lifetimes;
    const lapsed = head.state === 'executing' && inDoubtRetentionMs - ttlMs >= leaseMs;
    const ownerGone = lapsed && !(leases.scriptMs > 0 ? leasesHere > 0 : await leases.isHeld(scope));
    return { ...head, scope, ownerGone };
  } catch (error) {
    if (error instanceof UnreadableRecord) return { scope, unreadable: error.message };
    throw error;
  }
}

const RELEASED = { code: '', bytes: '' };

/** `seen`: the token of the record that the decision was made on. */
interface Decision {
  scope: Scope;
  seen: Token;
  resolution: Resolution;
  note: CountedNote;
  clock: Clock;
  cipher: ResponseCipher;
}

/** See `Store.resolve`. `copyMarkKeys`: see RedisStore. */
export async function resolveRecord(
  commands: Commands,
  leases: Leases,
  { key, copyMarkKeys, openIndex }: { key: string; copyMarkKeys: readonly string[]; openIndex: string },
  doubtCounter: DoubtCounter,
  { scope, seen, resolution, note, clock, cipher }: Decision,
): Promise<Resolved> {
  const { code, bytes } =
    resolution.as === 'completed' ? encodeCompletion(cipher.seal(scope, resolution.completion)) : RELEASED;
  const leasesHere = leases.scriptMs > 0;
  const { resolutionsKey } = doubtCounter;
  const counted = resolutionField(resolution.as, note.source ?? 'operator');
  for (;;) {
    const encoded = await commands.call(() => commands.client.getBuffer(key));
    if (!encoded) return 'changed';
    const record = decodeRecord(encoded);
    if (!record.token.equals(seen) || record.state === 'completed') return 'changed';
    const gaveUp = record.state === 'in_doubt' && ownerGaveUp(encoded);
    // If the store's own Redis holds the leases, the script itself checks the lease.
    if (!gaveUp && !leasesHere && (await leases.isHeld(scope))) return 'alive';
    const wallMs = clock.wallMs();
    const audit = encodeAudit(auditRecord(record, resolution, note, wallMs));
    const written = commands.write(
      scripts.resolve,
      [key, leaseOf(key), auditOf(key), ...copyMarkKeys],
      [
        encoded.subarray(0, layout.leaseMs),
        leasesHere ? 1 : 0,
        code,
        newToken(),
        encodeTime(wallMs),
        bytes,
        audit,
        AUDIT_RETENTION_MS,
        openIndex,
        resolutionsKey,
        counted,
      ],
    );
    const resolved = wordOf(await written.reply) as Resolved;
    // The record changed between the read and the script, perhaps only its state under the same token: read it again.
    if (resolved === 'changed') continue;
    if (resolved === 'ok' && resolutionsKey === '') await doubtCounter.countResolution(counted);
    // It was written, but a failover could bring back the record in doubt.
    if (resolved === 'ok' && written.replicated && !(await written.replicated))
      throw notReplicated('resolution');
    return resolved;
  }
}

/** See `Store.audit`. @throws {UnreadableRecord} */
export async function readAudit(commands: Commands, key: string): Promise<AuditRecord[]> {
  const trail = await commands.call(() => commands.client.lrange(auditOf(key), 0, -1));
  return trail.map(decodeAudit);
}
