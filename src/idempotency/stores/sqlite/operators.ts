import type { DatabaseSync, SQLOutputValue, StatementSync } from 'node:sqlite';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Scope } from '../../../kernel/brands.ts';
import type { Completion } from '../../../kernel/exchange.ts';
import {
  AUDIT_RETENTION_MS,
  type AuditRecord,
  isListed,
  type ListedRecord,
  type ListFilter,
  type Listing,
  type RecordHead,
  type ResolutionNote,
  UnknownCursor,
} from '../../store.ts';
import { messageOf } from './database.ts';
import type { PackedCompletion } from './messages.ts';
import {
  isExpired,
  ownerIsAlive,
  ROW_COLUMNS_WITHOUT_BODY,
  readSelected,
  scopeBytes,
} from './records-table.ts';
import type { Now } from './running-time.ts';

/** Requests are served between two turns. */
const EXAMINED_A_TURN = 50;
const EXAMINED_A_PAGE = 1000;

/**
 * Pages in the order of the rows' numbers. A list of what is in doubt reads the rows that are not completed by their
 * index first, and then looks through all others for rows that cannot be read.
 */
export class ListReader {
  readonly #selects: Record<Part, StatementSync>;
  readonly #row: StatementSync;
  readonly #now: () => Now;

  /** @param now throws once the store is closed */
  constructor(database: DatabaseSync, now: () => Now) {
    const select = (where: string) => {
      const statement = database.prepare(
        `SELECT id, hex(scope) FROM records WHERE ${where} AND id > ? ORDER BY id LIMIT ${EXAMINED_A_TURN}`,
      );
      statement.setReturnArrays(true);
      return statement;
    };
    this.#selects = {
      all: select('true'),
      open: select("state <> 'completed'"),
      // A state of NULL is neither.
      rest: select("(state <> 'completed') IS NOT true"),
    };
    this.#row = database.prepare(`SELECT ${ROW_COLUMNS_WITHOUT_BODY} FROM records WHERE id = ?`);
    this.#row.setReturnArrays(true);
    this.#now = now;
  }

  async page(filter: ListFilter): Promise<Listing> {
    let at = filter.cursor === undefined ? firstOf(filter) : placeIn(filter.cursor, filter);
    const records: ListedRecord[] = [];
    for (let examined = 0; examined < EXAMINED_A_PAGE; ) {
      if (examined > 0) await nextTurn();
      const now = this.#now();
      const found = this.#selects[at.part].all(at.id) as unknown as [id: number, scope: string][];
      for (const [id, scope] of found) {
        if (records.length === filter.limit) return { records, cursor: cursorOf(at) };
        at = { ...at, id };
        const listed = this.#listed(id, scope.toLowerCase() as Scope, now);
        if (listed && isListed(listed, filter)) records.push(listed);
      }
      examined += EXAMINED_A_TURN;
      if (found.length === EXAMINED_A_TURN) continue;
      if (at.part !== 'open') return { records };
      at = { part: 'rest', id: 0 };
    }
    return { records, cursor: cursorOf(at) };
  }

  /** Undefined if the row has expired, or was removed since. */
  #listed(id: number, scope: Scope, now: Now): ListedRecord | undefined {
    try {
      const row = readSelected(() => this.#row.get(id) as SQLOutputValue[] | undefined);
      if (!row || isExpired(row, now)) return undefined;
      const { completion: _, ...head } = row.record;
      return { ...head, scope, ownerGone: head.state === 'executing' && !ownerIsAlive(row, now) };
    } catch (error) {
      return { scope, unreadable: messageOf(error) };
    }
  }
}

type Part = 'all' | 'open' | 'rest';

/** The last row that was looked at. */
interface Place {
  part: Part;
  id: number;
}

const firstOf = ({ inDoubt }: ListFilter): Place => ({ part: inDoubt ? 'open' : 'all', id: 0 });

const cursorOf = ({ part, id }: Place): string => `${part}-${id}`;

function placeIn(cursor: string, { inDoubt }: ListFilter): Place {
  const [, part, id] = /^(all|open|rest)-(\d{1,15})$/.exec(cursor) ?? [];
  if (part === undefined || inDoubt !== (part !== 'all')) throw new UnknownCursor();
  return { part: part as Part, id: Number(id) };
}

interface AuditRow {
  at_ms: number;
  resolved_by: string;
  reason: string;
  from_state: RecordHead['state'];
  merchant: string;
  operation: string;
  idempotency_key: string;
  request_id: string;
  created_at_ms: number;
  changed_at_ms: number;
  resolved_as: 'released' | 'completed';
  kind: Completion['kind'];
  status: number;
}

/** Resolutions are rare, so the statement is not kept. */
export function writeAudit(
  database: DatabaseSync,
  scope: Uint8Array,
  from: RecordHead,
  { by, reason, completion }: ResolutionNote & { completion: PackedCompletion | undefined },
  { wallMs, runningMs }: Now,
): void {
  const { state, merchant, operation, key, requestId, createdAtMs, changedAtMs } = from;
  const kind = completion && (completion.headers === null ? 'tombstone' : 'response');
  database
    .prepare(
      `INSERT INTO audit (scope, at_ms, resolved_by, reason, from_state, merchant, operation, idempotency_key,
         request_id, created_at_ms, changed_at_ms, resolved_as, kind, status, expires_at)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    )
    .run(
      scope,
      wallMs,
      by,
      reason,
      state,
      merchant,
      operation,
      key,
      requestId,
      createdAtMs,
      changedAtMs,
      completion ? 'completed' : 'released',
      kind ?? null,
      completion?.status ?? null,
      Math.ceil(runningMs + AUDIT_RETENTION_MS),
    );
}

export function readAudit(database: DatabaseSync, scope: Scope, { runningMs }: Now): AuditRecord[] {
  const rows = database
    .prepare('SELECT * FROM audit WHERE scope = ? AND expires_at > ? ORDER BY id')
    .all(scopeBytes(scope), runningMs) as unknown as AuditRow[];
  return rows.map((row) => ({
    atMs: row.at_ms,
    by: row.resolved_by,
    reason: row.reason,
    from: {
      state: row.from_state,
      merchant: row.merchant,
      operation: row.operation,
      key: row.idempotency_key,
      requestId: row.request_id,
      createdAtMs: row.created_at_ms,
      changedAtMs: row.changed_at_ms,
    },
    to:
      row.resolved_as === 'released'
        ? { as: 'released' }
        : { as: 'completed', kind: row.kind, status: row.status },
  }));
}
