import type { DatabaseSync, SQLOutputValue, StatementSync } from 'node:sqlite';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Scope } from '../../../lib/brands.ts';
import type { Completion } from '../../../lib/exchange.ts';
import {
  AUDIT_RETENTION_MS,
  type AuditRecord,
  isListed,
  type ListedRecord,
  type ListFilter,
  type Listing,
  type RecordHead,
  UnknownCursor,
} from '../../contract.ts';
import type { ResponseCipher } from '../../response-cipher.ts';
import { messageOf } from './database.ts';
import {
  isExpired,
  ownerIsAlive,
  ROW_COLUMNS_WITHOUT_BODY,
  readSelected,
  scopeBytes,
} from './records-table.ts';
import type { Now } from './running-time.ts';

/** Rows read in one turn of the event loop. Requests are served between the turns. */
const ROWS_PER_TURN = 50;
/** A page may have fewer records than asked for, so that one call reads a bounded number of rows. */
const ROWS_PER_PAGE = 1000;

/**
 * Lists records page by page, in the order of their row numbers. A list of records in doubt first reads the rows that are
 * not completed, by their index. Then it reads all other rows, to find those that cannot be read.
 */
export class ListReader {
  readonly #selects: Record<Part, StatementSync>;
  readonly #row: StatementSync;
  readonly #cipher: ResponseCipher;
  readonly #now: () => Now;

  /** @param now throws after the store was closed */
  constructor(database: DatabaseSync, cipher: ResponseCipher, now: () => Now) {
    this.#cipher = cipher;
    const select = (where: string) => {
      const statement = database.prepare(
        `SELECT id, hex(scope) FROM records WHERE ${where} AND id > ? ORDER BY id LIMIT ${ROWS_PER_TURN}`,
      );
      statement.setReturnArrays(true);
      return statement;
    };
    this.#selects = {
      all: select('true'),
      open: select("state <> 'completed'"),
      // `state <> 'completed'` is NULL for a damaged row without a state.
      rest: select("(state <> 'completed') IS NOT true"),
    };
    this.#row = database.prepare(`SELECT ${ROW_COLUMNS_WITHOUT_BODY} FROM records WHERE id = ?`);
    this.#row.setReturnArrays(true);
    this.#now = now;
  }

  async page(filter: ListFilter): Promise<Listing> {
    let at = filter.cursor === undefined ? firstPosition(filter) : positionAt(filter.cursor, filter);
    const records: ListedRecord[] = [];
    for (let examined = 0; examined < ROWS_PER_PAGE; ) {
      if (examined > 0) await nextTurn();
      const now = this.#now();
      const found = this.#selects[at.part].all(at.id) as unknown as [id: number, scope: string][];
      for (const [id, scope] of found) {
        if (records.length === filter.limit) return { records, cursor: cursorOf(at) };
        at = { ...at, id };
        const listed = this.#listed(id, scope.toLowerCase() as Scope, now);
        if (listed && isListed(listed, filter)) records.push(listed);
      }
      examined += ROWS_PER_TURN;
      if (found.length === ROWS_PER_TURN) continue;
      if (at.part !== 'open') return { records };
      at = { part: 'rest', id: 0 };
    }
    return { records, cursor: cursorOf(at) };
  }

  /** Undefined: the row has expired, or was removed meanwhile. */
  #listed(id: number, scope: Scope, now: Now): ListedRecord | undefined {
    try {
      const row = readSelected(() => this.#row.get(id) as SQLOutputValue[] | undefined);
      if (!row || isExpired(row, now)) return undefined;
      const { completion: _, ...head } = row.record;
      const unknownKey = this.#cipher.whyUnknown(head.encryptionKeyId);
      if (unknownKey) return { scope, unreadable: unknownKey };
      return {
        ...head,
        scope,
        ownerGone: head.state === 'executing' && !ownerIsAlive(row, now),
      };
    } catch (error) {
      return { scope, unreadable: messageOf(error) };
    }
  }
}

/** `open`: rows that are not completed. `rest`: all other rows. */
type Part = 'all' | 'open' | 'rest';

/** The last row that was examined. */
interface Position {
  part: Part;
  id: number;
}

const firstPosition = ({ inDoubt }: ListFilter): Position => ({ part: inDoubt ? 'open' : 'all', id: 0 });

const cursorOf = ({ part, id }: Position): string => `${part}-${id}`;

/** @throws {UnknownCursor} also for a cursor of a listing with another filter */
function positionAt(cursor: string, { inDoubt }: ListFilter): Position {
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
  resolved_as: AuditRecord['to']['as'];
  kind: Completion['kind'];
  status: number;
}

/** Runs within the transaction that resolves the record. */
export function writeAudit(
  database: DatabaseSync,
  scope: Uint8Array,
  record: AuditRecord,
  { runningMs }: Now,
): void {
  insertAudit(database, scope, record, Math.ceil(runningMs + AUDIT_RETENTION_MS));
}

/** Resolutions are rare, so the statement is not kept. `expiresAt`: a running time. */
export function insertAudit(
  database: DatabaseSync,
  scope: Uint8Array,
  { atMs, by, reason, from, to }: AuditRecord,
  expiresAt: number,
): void {
  const { state, merchant, operation, key, requestId, createdAtMs, changedAtMs } = from;
  const { kind = null, status = null } = to.as === 'completed' ? to : {};
  database
    .prepare(
      `INSERT INTO audit (scope, at_ms, resolved_by, reason, from_state, merchant, operation, idempotency_key,
         request_id, created_at_ms, changed_at_ms, resolved_as, kind, status, expires_at)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    )
    .run(
      scope,
      Math.trunc(atMs),
      by,
      reason,
      state,
      merchant,
      operation,
      key,
      requestId,
      Math.trunc(createdAtMs),
      Math.trunc(changedAtMs),
      to.as,
      kind,
      status,
      expiresAt,
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
      row.resolved_as === 'completed'
        ? { as: 'completed', kind: row.kind, status: row.status }
        : { as: row.resolved_as },
  }));
}
