import type { StatementSync } from 'node:sqlite';
import type { RecordId } from '../../lib/brands.ts';
import { layout } from '../codec.ts';
import { AUDIT_RETENTION_MS } from '../doubts.ts';
import type { Create, Replace } from '../register.ts';
import { UnreadableRecord, VISIT_LASTS_MS, VOID_TOKEN_MS } from '../types.ts';
import { ANSWERS, COMMANDS, type Value } from './batch.ts';
import { refuseOtherFormat, SELECT_VERSION, type Tables } from './database.ts';
import { idBytes, RECORD_COLUMNS, readSelected, rowOf, SELECT_HEAD, SELECT_IDENTITY } from './records.ts';

/*
 * Three statements do everything that payments need: INSERT, REPLACE and REMOVE. They bind the same values: record id, expiry, the
 * revision that is replaced, the running time, the token whose lease ends, and the columns of the record.
 */
const COLUMNS_AT = 5;
/** How many values of a write follow those of the record. */
const BESIDES = 7;
const RECORD_AT = COLUMNS_AT + RECORD_COLUMNS.indexOf('record');
const numbered = RECORD_COLUMNS.map((_, i) => `?${COLUMNS_AT + i + 1}`);

/** A store that is closed to starts refuses a create. */
const CREATE: Partial<Replace> = { unlessClosed: true };

/**
 * The values of the command `write`. A lifetime begins at `runningMs`, when the write was asked for, and not later when it is committed.
 * It is rounded up, so that a record never seems older than it is.
 */
export function valuesOfWrite(id: RecordId, write: Create | Replace, runningMs: number): Value[] {
  const { record, expiresInMs } = write;
  const isCreate = write.kind === 'create';
  const { revision = null, endLeaseOf = null, voidToken = null, ...along } = isCreate ? CREATE : write;
  const { unlessLeased, unlessClosed, audit, counted } = along;
  const expiresAt = expiresInMs === 'unchanged' ? null : Math.ceil(runningMs + expiresInMs);
  const values: Value[] = [idBytes(id), expiresAt, revision, null, endLeaseOf];
  if (record) values.push(...rowOf(record));
  const entry = audit ? Buffer.from(JSON.stringify(audit)) : null;
  values.push(isCreate ? 1 : 0, unlessLeased ? 1 : 0, unlessClosed ? 1 : 0, voidToken, entry);
  values.push(counted?.as ?? null, counted?.by ?? null);
  return values;
}

const INSERT = `INSERT INTO records (record_id, expires_at, ${RECORD_COLUMNS}) VALUES (?1, ?2, ${numbered})
  ON CONFLICT (record_id) DO NOTHING`;

const REVISION = `substr(record, ${layout.revision + 1}, ${layout.version - layout.revision})`;

/** A damaged value does not hide a row from its owner's write. */
const EXPECTED = `WHERE record_id = ?1 AND ${REVISION} = ?3 AND (expires_at > ?4) IS NOT false`;

const REPLACE = `UPDATE records SET expires_at = ifnull(?2, expires_at),
  lease_until = CASE WHEN lease_token IS NOT ?5 AND lease_until > 0 THEN lease_until END,
  ${RECORD_COLUMNS.map((column, i) => `${column} = ${numbered[i]}`)} ${EXPECTED}`;

const REMOVE = `DELETE FROM records ${EXPECTED}`;
const FIND_EXPECTED = `SELECT 1 FROM records ${EXPECTED}`;
const FIND = 'SELECT id, expires_at <= ? FROM records WHERE record_id = ?';

const VOID = 'INSERT OR REPLACE INTO void_tokens (token, expires_at) VALUES (?, ?)';
const FIND_VOID = 'SELECT 1 FROM void_tokens WHERE token = ? AND expires_at > ?';
/** Finds the lease of another token. */
const FIND_LEASE = `SELECT lease_token FROM records
  WHERE record_id = ?1 AND expires_at > ?2 AND lease_until > ?2 AND lease_token IS NOT ?3`;
const LEASE = 'UPDATE records SET lease_token = ?, lease_until = ? WHERE record_id = ? AND expires_at > ?';
const END_LEASE = 'UPDATE records SET lease_until = NULL WHERE record_id = ? AND lease_token = ?';
const KEEP_AUDIT = 'INSERT INTO audit (record_id, entry, expires_at) VALUES (?, CAST(? AS TEXT), ?)';
const COUNT = `INSERT INTO resolutions (resolved_as, source, number) VALUES (?, ?, 1)
  ON CONFLICT (resolved_as, source) DO UPDATE SET number = number + 1`;

/** About as much as a payout writes: on a nearly full disk a smaller probe could succeed where a payout fails. */
const PROBE = 'INSERT OR REPLACE INTO probe (id, content) VALUES (1, randomblob(16384))';

/** A step of the sweep shares its transaction with payouts, so it must be short. */
const SWEPT_AT_ONCE = 50;

/** How much running time a busy store may lose if the machine stops. */
const STORE_CLOCK_EVERY_MS = 1000;

const BEFORE_ALL = [Number.MIN_SAFE_INTEGER, 0];

/** The two halves of the table. Each has an index of `due`. */
export const HALVES = ["state IS NOT 'completed'", "state = 'completed'"];

/** The other tables whose rows expire, and what names a row. */
export const EXPIRING = { void_tokens: 'token', audit: 'id' };

/** Applies commands to the tables, within a transaction. Runs in the writer thread, or on the connection of an application. */
export class Changes {
  /** Rows changed since the batch began. */
  written = 0;
  readonly database: Tables;
  readonly #statements = new Map<string, StatementSync>();
  /** Where the sweep goes on in each half: rows that cannot be read are kept, so the next step must pass over them. */
  readonly #sweepAfter = HALVES.map(() => BEFORE_ALL);
  #runningMs = 0;
  #storedClockAt = Number.NEGATIVE_INFINITY;
  #closed = 'no';
  #anyVoid = false;

  constructor(database: Tables) {
    this.database = database;
  }

  /** @throws if a later version has migrated the file since it was opened: this one would misread what it holds */
  begin(file: string, runningMs: number): void {
    refuseOtherFormat(file, this.#row(SELECT_VERSION)[0] as number);
    const [copyProgress, anyVoid] = this.#row(
      'SELECT copy_mark, EXISTS (SELECT 1 FROM void_tokens) FROM store',
    ) as [string | null, number];
    this.written = 0;
    this.#runningMs = runningMs;
    this.#closed = copyProgress?.split(' ', 1)[0] ?? 'no';
    this.#anyVoid = anyVoid > 0;
  }

  apply(command: number, values: Value[]): unknown {
    switch (command) {
      case COMMANDS.write:
        return this.#write(values);
      case COMMANDS.renew:
        return this.#renew(values);
      case COMMANDS.endLease:
        return this.#run(END_LEASE, values);
      case COMMANDS.visit:
        return this.#visit(values);
      case COMMANDS.sweep:
        return this.#sweep();
      default:
        return this.#run(PROBE, []);
    }
  }

  /** Stores the running time, from which it continues after a reboot, with some of the batches that write. */
  storeClock(): void {
    if (this.written === 0 || this.#runningMs - this.#storedClockAt < STORE_CLOCK_EVERY_MS) return;
    this.#storedClockAt = this.#runningMs;
    this.#run('UPDATE store SET observed_at = max(observed_at, ?)', [Math.floor(this.#runningMs)]);
  }

  #write(values: Value[]): number {
    const [isCreate, unlessLeased, unlessClosed, voidToken, audit, as, by] = values.splice(-BESIDES);
    const [id, , , , endLeaseOf] = values;
    values[3] = this.#runningMs;
    if (voidToken) {
      this.#run(VOID, [voidToken, this.#expiresIn(VOID_TOKEN_MS)]);
      this.#anyVoid = true;
    }
    const isLeased = unlessLeased && this.#has(FIND_LEASE, [id, this.#runningMs, endLeaseOf]);
    const refusal = this.#refusalOf(values, isCreate === 1, unlessClosed === 1);
    const answer = isLeased ? ANSWERS.refused : this.#change(values, refusal);
    if (answer === ANSWERS.done) {
      if (audit) this.#run(KEEP_AUDIT, [id, audit, this.#expiresIn(AUDIT_RETENTION_MS)]);
      if (as) this.#run(COUNT, [as, by]);
      return answer;
    }
    if (endLeaseOf) this.#run(END_LEASE, [id, endLeaseOf]);
    // This very write may be there already, because its reply was lost.
    return this.#isThere(id, partOf(values, layout.revision, layout.version)) ? ANSWERS.done : answer;
  }

  /** Why nothing may be written, even if what the write expects is there. */
  #refusalOf(values: Value[], isCreate: boolean, unlessClosed: boolean): number | undefined {
    const token = () => partOf(values, layout.token, layout.fingerprint);
    if (isCreate && this.#anyVoid && this.#has(FIND_VOID, [token(), this.#runningMs])) return ANSWERS.void;
    return this.#closed === 'all' || (unlessClosed && this.#closed !== 'no') ? ANSWERS.closed : undefined;
  }

  #change(values: Value[], refusal: number | undefined): number {
    const [id, , revision] = values;
    const hasRecord = values.length > COLUMNS_AT;
    let isDone: boolean;
    if (refusal !== undefined || (!hasRecord && !revision)) {
      isDone = revision ? this.#isThere(id, revision) : this.#isAbsent(id);
      if (isDone && refusal !== undefined) return refusal;
    } else if (revision)
      isDone = (hasRecord ? this.#run(REPLACE, values) : this.#run(REMOVE, values.slice(0, 4))) > 0;
    // There may be a row that has expired and was not swept yet.
    else isDone = this.#run(INSERT, values) > 0 || (this.#isAbsent(id) && this.#run(INSERT, values) > 0);
    return isDone ? ANSWERS.done : ANSWERS.refused;
  }

  #isThere(id: Value | undefined, revision: Value | undefined): boolean {
    return revision != null && this.#has(FIND_EXPECTED, [id, null, revision, this.#runningMs]);
  }

  /** Whether there is no row. Removes a row that has expired. */
  #isAbsent(id: Value | undefined): boolean {
    const [row, isExpired] = this.#row(FIND, [this.#runningMs, id]) as [number?, number?];
    return row === undefined || (isExpired === 1 && this.#isRemoved(row));
  }

  /** Removes a row that has expired, unless it cannot be read: such rows are kept for operators. */
  #isRemoved(row: number): boolean {
    try {
      readSelected(this.#statement(SELECT_HEAD), row, this.#runningMs);
    } catch (error) {
      if (error instanceof UnreadableRecord) return false;
      throw error;
    }
    return this.#run('DELETE FROM records WHERE id = ?', [row]) > 0;
  }

  #renew([id, token, leaseMs]: Value[]): 'kept' | 'taken' | 'lost' {
    const [holder] = this.#row(FIND_LEASE, [id, this.#runningMs, null]) as [Uint8Array?];
    if (holder && Buffer.compare(holder, token as Uint8Array) !== 0) return 'lost';
    this.#run(LEASE, [token, this.#expiresIn(leaseMs as number), id, this.#runningMs]);
    return holder ? 'kept' : 'taken';
  }

  #visit([mode, newId, replacing]: Value[]): unknown {
    const sql = `UPDATE store SET mark = ifnull(nullif(mark, ?), ?), marks = marks + 1, ${mode}_until = ?`;
    this.#run(sql, [replacing, newId, this.#expiresIn(VISIT_LASTS_MS)]);
    return this.#row(SELECT_IDENTITY);
  }

  /** Removes expired rows, a few at a time. Returns how many. */
  #sweep(): number {
    let removed = 0;
    for (const [i, half] of HALVES.entries()) {
      const sql = `SELECT due, id FROM records WHERE ${half} AND due <= ? AND (due, id) > (?, ?)
        ORDER BY due, id LIMIT ${SWEPT_AT_ONCE}`;
      const found = this.#statement(sql).all(this.#runningMs, ...(this.#sweepAfter[i] ?? [])) as unknown[];
      for (const [, row] of found as number[][]) if (this.#isRemoved(row as number)) removed++;
      this.#sweepAfter[i] = (found[SWEPT_AT_ONCE - 1] as number[] | undefined) ?? BEFORE_ALL;
    }
    for (const [table, key] of Object.entries(EXPIRING)) {
      const expired = `SELECT ${key} FROM ${table} WHERE expires_at <= ? LIMIT ${SWEPT_AT_ONCE}`;
      removed += this.#run(`DELETE FROM ${table} WHERE ${key} IN (${expired})`, [this.#runningMs]);
    }
    return removed;
  }

  #run(sql: string, values: (Value | undefined)[]): number {
    const changes = this.#statement(sql).run(...(values as Value[])).changes as number;
    this.written += changes;
    return changes;
  }

  #has(sql: string, values: (Value | undefined)[]): boolean {
    return this.#row(sql, values).length > 0;
  }

  /** The first row, or an empty one if there is none. */
  #row(sql: string, values: (Value | undefined)[] = []): unknown[] {
    return (this.#statement(sql).get(...(values as Value[])) as unknown as unknown[] | undefined) ?? [];
  }

  #statement(sql: string): StatementSync {
    let statement = this.#statements.get(sql);
    if (!statement) {
      statement = this.database.prepare(sql);
      statement.setReturnArrays(true);
      this.#statements.set(sql, statement);
    }
    return statement;
  }

  #expiresIn(durationMs: number): number {
    return Math.ceil(this.#runningMs + durationMs);
  }
}

/** A part of the record that is written, if one is. */
function partOf(values: Value[], from: number, to: number): Uint8Array | undefined {
  return (values[RECORD_AT] as Uint8Array | undefined)?.subarray(from, to);
}
