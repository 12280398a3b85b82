import type { DatabaseSync, SQLOutputValue, StatementSync } from 'node:sqlite';
import { UnreadableRecord } from '../../store.ts';
import type { Answers } from './commands.ts';
import { ROW_COLUMNS_WITHOUT_BODY, readSelected } from './row.ts';

/** Small enough that the payouts in the same batch hardly notice. */
const ROWS_A_STEP = 50;

/** Removes what has expired, a few rows at a time, in the writer's thread. */
export class Sweeper {
  readonly #expired: StatementSync;
  readonly #row: StatementSync;
  readonly #remove: StatementSync;
  readonly #others: StatementSync[];
  /** Rows that cannot be read are kept for people to look at, so the next step must begin behind them. */
  #after = { expiresAt: Number.MIN_SAFE_INTEGER, id: 0 };

  constructor(database: DatabaseSync) {
    this.#expired = database.prepare(
      `SELECT expires_at, id FROM records WHERE expires_at <= ? AND (expires_at, id) > (?, ?)
       ORDER BY expires_at, id LIMIT ${ROWS_A_STEP}`,
    );
    this.#expired.setReturnArrays(true);
    this.#row = database.prepare(`SELECT ${ROW_COLUMNS_WITHOUT_BODY} FROM records WHERE id = ?`);
    this.#row.setReturnArrays(true);
    this.#remove = database.prepare('DELETE FROM records WHERE id = ?');
    this.#others = [
      `DELETE FROM voided_tokens WHERE token IN (SELECT token FROM voided_tokens WHERE expires_at <= ? LIMIT ${ROWS_A_STEP})`,
      `DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE expires_at <= ? LIMIT ${ROWS_A_STEP})`,
    ].map((sql) => database.prepare(sql));
  }

  step(runningMs: number): Answers['sweep'] {
    const { expiresAt, id } = this.#after;
    const found = this.#expired.all(runningMs, expiresAt, id) as unknown as [number, number][];
    let removed = 0;
    for (const [, expiredId] of found) {
      if (!this.#isReadable(expiredId)) continue;
      this.#remove.run(expiredId);
      removed++;
    }
    const last = found.length < ROWS_A_STEP ? undefined : found.at(-1);
    this.#after = last ? { expiresAt: last[0], id: last[1] } : { expiresAt: Number.MIN_SAFE_INTEGER, id: 0 };
    for (const remove of this.#others) removed += remove.run(runningMs).changes as number;
    return { removed, isRoundDone: last === undefined };
  }

  #isReadable(id: number): boolean {
    try {
      return readSelected(() => this.#row.get(id) as SQLOutputValue[] | undefined) !== undefined;
    } catch (error) {
      if (error instanceof UnreadableRecord) return false;
      throw error;
    }
  }
}
