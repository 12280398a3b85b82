import type { DatabaseSync, SQLInputValue, StatementSync } from 'node:sqlite';
import { AUDIT_RETENTION_MS, MARK_LASTS_MS, UnreadableRecord, VOID_TOKEN_MS } from '../../contract.ts';
import { ANSWERS, type BatchReader, type OtherCommand, VALUES } from './commands.ts';
import { RECORD_COLUMNS, readSelected, SELECT_HEAD, SELECT_MARK } from './records.ts';

/** Each statement of a record binds the values of {@link VALUES}, or the first ones of them. */
const numbered = RECORD_COLUMNS.map((_, i) => `?${VALUES.record + i + 1}`);

const INSERT = `INSERT INTO records (record_id, expires_at, ${RECORD_COLUMNS}) VALUES (?1, ?2, ${numbered})
  ON CONFLICT (record_id) DO NOTHING`;

/** A damaged value neither hides the row from the owner's write, nor ends a lease. */
const EXPECTED = `record_id = ?1 AND revision = ?3 AND (expires_at > ?4) IS NOT false
  AND (?6 = 0 OR lease_token IS NULL OR lease_token = ?5 OR lease_until <= ?4)`;

const REPLACE = `UPDATE records SET expires_at = ifnull(?2, expires_at), lease_token = nullif(lease_token, ?5),
  ${RECORD_COLUMNS.map((column, i) => `${column} = ${numbered[i]}`)} WHERE ${EXPECTED}`;

const REMOVE = `DELETE FROM records WHERE ${EXPECTED}`;

const FIND_EXPECTED = `SELECT 1 FROM records WHERE ${EXPECTED}`;

/** As in EXPECTED, of a row under any revision. */
const FIND = 'SELECT id, (expires_at <= ?) IS true FROM records WHERE record_id = ?';

/** About as much as a payout writes: on a nearly full disk a smaller probe could succeed where a payout fails. */
const PROBE_BYTES = 16_384;

/** A step of the sweep shares its transaction with payouts, so it must be short. */
const SWEPT_AT_ONCE = 50;

/** The two halves of the table. Each has an index of `due`. */
export const HALVES = ["state IS NOT 'completed'", "state = 'completed'"] as const;

/** `isRoundDone`: the only expired rows left are those that cannot be read. */
export interface Swept {
  removed: number;
  isRoundDone: boolean;
}

/** Applies commands to the tables. Runs in the writer thread, within the transaction of a batch. */
export class Changes {
  /** Rows changed since the batch began. */
  written = 0;
  readonly #database: DatabaseSync;
  readonly #statements = new Map<string, StatementSync>();
  /** Where the sweep goes on in each half: rows that cannot be read are kept, so the next step must pass over them. */
  readonly #sweepAfter: [due: number, id: number][] = HALVES.map(() => [Number.MIN_SAFE_INTEGER, 0]);
  #runningMs = 0;
  #closed = 'no';
  #anyVoid = false;

  constructor(database: DatabaseSync) {
    this.#database = database;
  }

  begin(runningMs: number): void {
    this.#runningMs = runningMs;
    this.written = 0;
    const settings = this.#row('SELECT closed, EXISTS (SELECT 1 FROM void_tokens) FROM store');
    this.#closed = settings?.[0] as string;
    this.#anyVoid = settings?.[1] === 1;
  }

  create(command: BatchReader): number {
    const isVoid = this.#anyVoid && this.#isVoid(command.token);
    if (isVoid || this.#closed !== 'no')
      return this.#isThere(command) ? ANSWERS.refused : isVoid ? ANSWERS.void : ANSWERS.closed;
    return this.#inserted(command) ? ANSWERS.done : ANSWERS.refused;
  }

  replace(command: BatchReader): number {
    const { voidToken, values } = command;
    if (voidToken) this.#void(voidToken);
    const answer = this.#replaced(command);
    if (answer !== ANSWERS.done) {
      if (values[VALUES.endLeaseOf])
        this.#endLease(values[VALUES.id] as Buffer, values[VALUES.endLeaseOf] as Buffer);
    } else if (command.along) this.#keepResolution(command);
    return answer;
  }

  other(command: OtherCommand): unknown {
    switch (command.kind) {
      case 'renew':
        return this.#renew(
          Buffer.from(command.id, 'hex'),
          Buffer.from(command.token, 'hex'),
          command.leaseMs,
        );
      case 'endLease':
        return this.#endLease(Buffer.from(command.id, 'hex'), Buffer.from(command.token, 'hex'));
      case 'mark':
        return this.#mark(command);
      case 'sweep':
        return this.#sweep();
      case 'probe':
        return this.#run(`INSERT OR REPLACE INTO probe (id, content) VALUES (1, randomblob(${PROBE_BYTES}))`);
    }
  }

  #replaced(command: BatchReader): number {
    const { values } = command;
    const hasRevision = values[VALUES.revision] !== null;
    if (this.#closed !== 'no' && (command.unlessClosed || this.#closed !== 'starts')) {
      const isExpected = hasRevision ? this.#row(FIND_EXPECTED, ...keys(values)) : !this.#isThere(command);
      return isExpected ? ANSWERS.closed : ANSWERS.refused;
    }
    let isDone: boolean;
    if (!hasRevision) isDone = command.hasRecord ? this.#inserted(command) : !this.#isThere(command);
    else if (command.hasRecord) isDone = this.#run(REPLACE, ...values) > 0;
    else isDone = this.#run(REMOVE, ...keys(values)) > 0;
    return isDone ? ANSWERS.done : ANSWERS.refused;
  }

  /** False: the record id has a row that has not expired, or cannot be read. */
  #inserted({ values }: BatchReader): boolean {
    if (this.#run(INSERT, ...values) > 0) return true;
    const [id, isExpired] = this.#row(FIND, this.#runningMs, values[VALUES.id] as Buffer) as [number, number];
    if (!isExpired || !this.#isRemoved(id)) return false;
    return this.#run(INSERT, ...values) > 0;
  }

  #isThere({ values }: BatchReader): boolean {
    const found = this.#row(FIND, this.#runningMs, values[VALUES.id] as Buffer);
    return found !== undefined && found[1] === 0;
  }

  /** Removes a row that has expired, unless it cannot be read: such rows are kept for operators. */
  #isRemoved(id: number): boolean {
    try {
      readSelected(() => this.#row(SELECT_HEAD, id));
    } catch (error) {
      if (error instanceof UnreadableRecord) return false;
      throw error;
    }
    return this.#run('DELETE FROM records WHERE id = ?', id) > 0;
  }

  #isVoid(token: Buffer): boolean {
    return (
      this.#row('SELECT 1 FROM void_tokens WHERE token = ? AND expires_at > ?', token, this.#runningMs) !==
      undefined
    );
  }

  #void(token: Buffer): void {
    this.#run(
      'INSERT OR REPLACE INTO void_tokens (token, expires_at) VALUES (?, ?)',
      token,
      this.#expiresIn(VOID_TOKEN_MS),
    );
    this.#anyVoid = true;
  }

  /** Without a record there is no lease. */
  #renew(id: Buffer, token: Buffer, leaseMs: number): 'kept' | 'taken' | 'lost' {
    const row = this.#row(
      'SELECT lease_token, (lease_until <= ?1) IS true FROM records WHERE record_id = ?2 AND expires_at > ?1',
      this.#runningMs,
      id,
    ) as [Uint8Array | null, number] | undefined;
    if (!row) return 'lost';
    const [holder, isOver] = row;
    const isFree = holder === null || isOver === 1;
    if (!isFree && Buffer.compare(holder, token) !== 0) return 'lost';
    this.#run(
      'UPDATE records SET lease_token = ?, lease_until = ? WHERE record_id = ?',
      token,
      this.#expiresIn(leaseMs),
      id,
    );
    return isFree ? 'taken' : 'kept';
  }

  #endLease(id: Buffer, token: Buffer): void {
    this.#run('UPDATE records SET lease_token = NULL WHERE record_id = ? AND lease_token = ?', id, token);
  }

  #keepResolution({ along, values }: BatchReader): void {
    const { audit, counted } = along ?? {};
    if (audit)
      this.#run(
        'INSERT INTO audit (record_id, entry, expires_at) VALUES (?, ?, ?)',
        values[VALUES.id] as Buffer,
        JSON.stringify(audit),
        this.#expiresIn(AUDIT_RETENTION_MS),
      );
    if (counted)
      this.#run(
        `INSERT INTO resolutions (resolved_as, source, number) VALUES (?, ?, 1)
         ON CONFLICT (resolved_as, source) DO UPDATE SET number = number + 1`,
        counted.as,
        counted.by,
      );
  }

  #mark({ mode, newId }: Extract<OtherCommand, { kind: 'mark' }>): unknown {
    this.#run(
      `UPDATE store SET mark = ifnull(mark, ?), marks = marks + 1, ${mode}_until = ?`,
      newId,
      this.#expiresIn(MARK_LASTS_MS),
    );
    return this.#row(SELECT_MARK);
  }

  #sweep(): Swept {
    const swept = { removed: 0, isRoundDone: true };
    for (const [i, half] of HALVES.entries()) {
      const found = this.#statement(
        `SELECT due, id FROM records WHERE ${half} AND due <= ? AND (due, id) > (?, ?) ORDER BY due, id LIMIT ${SWEPT_AT_ONCE}`,
      ).all(this.#runningMs, ...(this.#sweepAfter[i] as [number, number])) as unknown as [number, number][];
      for (const [, id] of found) if (this.#isRemoved(id)) swept.removed++;
      const last = found.length < SWEPT_AT_ONCE ? undefined : found.at(-1);
      this.#sweepAfter[i] = last ?? [Number.MIN_SAFE_INTEGER, 0];
      if (last) swept.isRoundDone = false;
    }
    for (const [table, key] of [
      ['void_tokens', 'token'],
      ['audit', 'id'],
    ] as const)
      swept.removed += this.#run(
        `DELETE FROM ${table} WHERE ${key} IN (SELECT ${key} FROM ${table} WHERE expires_at <= ? LIMIT ${SWEPT_AT_ONCE})`,
        this.#runningMs,
      );
    return swept;
  }

  #run(sql: string, ...values: SQLInputValue[]): number {
    const changes = this.#statement(sql).run(...values).changes as number;
    this.written += changes;
    return changes;
  }

  #row(sql: string, ...values: SQLInputValue[]): unknown[] | undefined {
    return this.#statement(sql).get(...values) as unknown as unknown[] | undefined;
  }

  #statement(sql: string): StatementSync {
    const known = this.#statements.get(sql);
    if (known) return known;
    const statement = this.#database.prepare(sql);
    statement.setReturnArrays(true);
    this.#statements.set(sql, statement);
    return statement;
  }

  /** Rounded up, so that a record never seems older than it is. */
  #expiresIn(durationMs: number): number {
    return Math.ceil(this.#runningMs + durationMs);
  }
}

const keys = (values: SQLInputValue[]): SQLInputValue[] => values.slice(0, VALUES.record);
