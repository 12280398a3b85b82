import { RECORD_ID_DIGITS, type RecordId } from '../../lib/brands.ts';
import { messageOf } from '../../lib/files.ts';
import { decodeHead, HEAD_BYTES } from '../codec.ts';
import type { ResolutionCount } from '../doubts.ts';
import type { Listed, OpenCount, Page, Register } from '../register.ts';
import { UnknownCursor } from '../types.ts';
import type { Lanes } from './lanes.ts';
import { CLOCK, IS_LIVE, leftMs } from './tables.ts';

/** The tables of a register. */
interface Tables {
  lanes: Lanes;
  schema: string;
}

const HEAD = `encode(id, 'hex'), substring(record FROM 1 FOR ${HEAD_BYTES}),
  length(record),
  ${leftMs('expires_at')}, coalesce(leased_until > ${CLOCK}, false)`;

/** In the order of the index of open records, or of the ids. */
const SELECT = {
  open: (schema: string) => `SELECT ${HEAD}, due::text FROM ${schema}.records
    WHERE state <> 'completed' AND ${IS_LIVE} AND (due, id) > ($1::timestamptz, $2) ORDER BY due, id LIMIT $3`,
  all: (schema: string) => `SELECT ${HEAD}, $1::text FROM ${schema}.records
    WHERE ${IS_LIVE} AND id > $2 ORDER BY id LIMIT $3`,
};

type ListedRow = [
  id: RecordId,
  head: Buffer,
  bytes: number,
  expiresInMs: number,
  isLeased: boolean,
  due: string,
];

/** @throws {UnknownCursor} */
export async function pageOf(
  { lanes, schema }: Tables,
  { open, limit, cursor }: Parameters<Register['list']>[0],
): Promise<Page> {
  const part = open ? 'open' : 'all';
  const [, found, due, after] = cursorIn(cursor ?? cursorOf(part, '-infinity', '')) ?? [];
  if (found !== part) throw new UnknownCursor();
  const values = [due, Buffer.from(after as string, 'hex'), limit];
  const rows = await lanes.ask<ListedRow>(SELECT[part](schema), values);
  const records = rows.map(listedAs);
  const [id, , , , , lastDue] = rows[limit - 1] ?? [];
  return id === undefined ? { records } : { records, cursor: cursorOf(part, lastDue as string, id) };
}

const cursorOf = (...parts: string[]): string => Buffer.from(parts.join('_')).toString('base64url');

const cursorIn = (cursor: string) =>
  /^(open|all)_([-+:. \dA-Za-z]{1,40})_([0-9a-f]{0,48})$/.exec(Buffer.from(cursor, 'base64url').toString());

function listedAs([id, start, bytes, expiresInMs, isLeased]: ListedRow): Listed {
  try {
    const { head, end } = decodeHead(start);
    return end === bytes
      ? { id, head, expiresInMs, isLeased }
      : { id, unreadable: 'the record cannot be read: it is cut' };
  } catch (error) {
    return { id, unreadable: messageOf(error) };
  }
}

/** See {@link Register.idsOf}. */
export async function idsOf({ lanes, schema }: Tables, digits: string): Promise<RecordId[]> {
  const bound = (digit: string) => Buffer.from(digits.padEnd(RECORD_ID_DIGITS, digit), 'hex');
  const text = `SELECT encode(id, 'hex') FROM ${schema}.records WHERE id BETWEEN $1 AND $2 AND ${IS_LIVE}
    UNION SELECT encode(id, 'hex') FROM ${schema}.audit WHERE id BETWEEN $1 AND $2 AND expires_at > ${CLOCK}`;
  const rows = await lanes.ask<[RecordId]>(text, [bound('0'), bound('f')]);
  return rows.map(([id]) => id);
}

/** Counts the open records: see {@link Register.countOpen}. A statement that only reads blocks no write. */
export async function countOpen(
  { lanes, schema }: Tables,
  { executingSinceMs, signal }: Parameters<Register['countOpen']>[0],
): Promise<OpenCount> {
  signal?.throwIfAborted();
  const createdAtMs = 'extract(epoch FROM created_at) * 1000';
  const doubts = `SELECT operation, count(*)::float8, round(min(${createdAtMs}))::float8 FROM ${schema}.records
    WHERE state = 'in_doubt' AND ${IS_LIVE} GROUP BY operation`;
  const old = `SELECT encode(id, 'hex') FROM ${schema}.records
    WHERE state = 'executing' AND ${IS_LIVE} AND round(${createdAtMs}) < $1`;
  const resolutions = `SELECT kind, number::float8 FROM ${schema}.resolutions ORDER BY kind`;
  const [found, ids, counts] = await Promise.all([
    lanes.ask<[string, number, number]>(doubts),
    lanes.ask<[RecordId]>(old, [executingSinceMs]),
    lanes.ask<[string, number]>(resolutions),
  ]);
  signal?.throwIfAborted();
  return {
    inDoubt: new Map(found.map(([operation, number, oldestMs]) => [operation, { number, oldestMs }])),
    old: ids.map(([id]) => id),
    resolutions: counts.map(([kind, number]) => {
      const [as, by] = kind.split(' ') as [ResolutionCount['as'], ResolutionCount['by']];
      return { as, by, number };
    }),
  };
}
