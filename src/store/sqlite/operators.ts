import type { StatementSync } from 'node:sqlite';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { RECORD_ID_DIGITS, type RecordId } from '../../lib/brands.ts';
import { messageOf } from '../../lib/files.ts';
import type { Listed, OpenCount, Page, Register } from '../register.ts';
import { UnknownCursor } from '../types.ts';
import { HALVES } from './changes.ts';
import { readSelected, SELECT_HEAD } from './records.ts';

/** The rows of a database that are read, with the store's clock. */
export interface Rows {
  prepare(sql: string): StatementSync;
  runningMs(): number;
}

/** How many rows one turn of the event loop reads, for a list and for a count. Requests are served between the turns. */
const LISTED_AT_ONCE = 50;
const COUNTED_AT_ONCE = 500;
/** A page may have fewer records than asked for, so that one call reads a bounded number of rows. */
const ROWS_PER_PAGE = 1000;

/**
 * Select the rows after the last one that was read, in the order of the index of open records, or of the row numbers. `due` is text,
 * because that of a damaged row may be beyond 2^53.
 */
const SELECT_OPEN = `SELECT CAST(due AS TEXT), id, lower(hex(record_id)), operation, state,
    CASE typeof(created_at_ms) WHEN 'integer' THEN CAST(created_at_ms AS REAL) END
  FROM records WHERE ${HALVES[0]} AND (due, id) > (CAST(?1 AS INTEGER), ?2) ORDER BY due, id LIMIT ?3`;
const SELECT_ALL = "SELECT '0', id, lower(hex(record_id)) FROM records WHERE id > ?2 ORDER BY id LIMIT ?3";
/** `due` is 0 in a damaged row. */
const SELECT_IDS = `SELECT lower(hex(record_id)) FROM records WHERE record_id BETWEEN ?1 AND ?2 AND NOT (due > 0 AND due <= ?3)
  UNION SELECT lower(hex(record_id)) FROM audit WHERE record_id BETWEEN ?1 AND ?2 AND expires_at > ?3`;
export type ListQuery = Parameters<Register['list']>[0];
export type CountOptions = Parameters<Register['countOpen']>[0];
type Found = [
  due: string,
  id: number,
  record: RecordId,
  operation: string,
  state: string,
  createdAtMs: number | null,
];
/** `due` and row number of the last row that was read. */
type Position = readonly [due: string, id: number];
const BEFORE_ALL: Position = [`${-(2n ** 63n)}`, 0];

/**
 * One page of the records, of the open ones or of all.
 *
 * @throws {UnknownCursor}
 */
export async function pageOf(rows: Rows, { open, limit, cursor }: ListQuery): Promise<Page> {
  const part = open ? 'open' : 'all';
  const cursorOf = (after: Position) => [part, ...after].join('_');
  const [, due, id] = /^(?:open|all)_(-?\d{1,19})_(\d{1,15})$/.exec(cursor ?? cursorOf(BEFORE_ALL)) ?? [];
  if (due === undefined || !(cursor ?? part).startsWith(part)) throw new UnknownCursor();
  const head = rows.prepare(SELECT_HEAD);
  const records: Listed[] = [];
  let after: Position = [due, Number(id)];
  let examined = 0;
  for await (const found of walk(rows, open ? SELECT_OPEN : SELECT_ALL, after, LISTED_AT_ONCE)) {
    const runningMs = rows.runningMs();
    for (const [due, row, id] of found) {
      if (records.length === limit || examined === ROWS_PER_PAGE) return { records, cursor: cursorOf(after) };
      after = [due, row];
      examined++;
      const listed = listedAs(id, head, row, runningMs);
      if (listed) records.push(listed);
    }
  }
  return { records };
}

/** See {@link Register.idsOf}. */
export function idsOf(rows: Rows, digits: string): RecordId[] {
  const bound = (digit: string) => Buffer.from(digits.padEnd(RECORD_ID_DIGITS, digit), 'hex');
  const found = rows.prepare(SELECT_IDS).all(bound('0'), bound('f'), rows.runningMs());
  return (found as unknown as [RecordId][]).map(([id]) => id);
}

/** Counts the open records: see {@link Register.countOpen}. */
export async function countOpen(rows: Rows, { executingSinceMs, signal }: CountOptions): Promise<OpenCount> {
  const count: OpenCount = { inDoubt: new Map(), old: [], resolutions: [] };
  for await (const found of walk(rows, SELECT_OPEN, BEFORE_ALL, COUNTED_AT_ONCE)) {
    signal?.throwIfAborted();
    const runningMs = rows.runningMs();
    for (const [due, , id, operation, state, createdAt] of found) {
      const createdAtMs = createdAt ?? Number.POSITIVE_INFINITY;
      // A damaged value must not hide the row: its `due` is 0.
      if (Number(due) > 0 && Number(due) <= runningMs) continue;
      if (state === 'executing' && createdAtMs < executingSinceMs) count.old.push(id);
      if (state !== 'in_doubt') continue;
      const name = typeof operation === 'string' ? operation : 'other';
      const { number, oldestMs } = count.inDoubt.get(name) ?? { number: 0, oldestMs: createdAtMs };
      count.inDoubt.set(name, { number: number + 1, oldestMs: Math.min(oldestMs, createdAtMs) });
    }
  }
  const resolutions = rows.prepare('SELECT resolved_as, source, number FROM resolutions').all();
  for (const [as, by, number] of resolutions as unknown as [never, never, number][])
    count.resolutions.push({ as, by, number });
  return count;
}

/** Reads the rows after a position in small steps, so that requests are served in between. */
async function* walk(rows: Rows, sql: string, start: Position, atOnce: number): AsyncGenerator<Found[]> {
  const select = rows.prepare(sql);
  for (let after = start; ; await nextTurn()) {
    const found = select.all(...after, atOnce) as unknown as Found[];
    yield found;
    const last = found[atOnce - 1];
    if (!last) return;
    after = [last[0], last[1]];
  }
}

/** Reads a row without its completion, unless it has expired or was removed meanwhile. */
function listedAs(id: RecordId, select: StatementSync, row: number, runningMs: number): Listed | undefined {
  try {
    const held = readSelected(select, row, runningMs);
    if (!held) return undefined;
    const { record, ...along } = held;
    const { completion, ...head } = record;
    if (completion?.kind === 'encrypted') head.encryptionKeyId = completion.keyId;
    return { id, head, ...along };
  } catch (error) {
    return { id, unreadable: messageOf(error) };
  }
}
