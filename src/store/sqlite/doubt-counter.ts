import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Resolution } from '../contract.ts';
import {
  type CountOptions,
  type DoubtCount,
  DoubtSum,
  type ResolutionCount,
  type ResolutionSource,
} from '../doubt-count.ts';
import type { Now } from './running-time.ts';

/** Rows read in one turn of the event loop: less than a millisecond. Requests are served between the turns. */
const ROWS_PER_TURN = 500;

/**
 * Adds up a part of the index of rows that are not completed. The conditions are those of `isExpired` and `ownerIsAlive` in
 * records-table.ts. A damaged value is NULL or another type there, and must not hide the row: its owner counts as dead.
 */
const SELECT_PART = `
  SELECT operation, count(*), sum(in_doubt), sum(in_doubt AND state = 'executing'),
    CAST(min(CASE WHEN in_doubt AND typeof(created_at_ms) = 'integer' THEN created_at_ms END) AS REAL), max(id)
  FROM (
    SELECT id, operation, state, created_at_ms, (expires_at > :running_ms) IS NOT false AND (
      state = 'in_doubt' OR state = 'executing' AND
        (owner_gave_up = 0 AND alive_at >= :boot_began_at AND :running_ms - alive_at < lease_ms) IS NOT true
    ) AS in_doubt
    FROM records WHERE state <> 'completed' AND id > :after ORDER BY id LIMIT ${ROWS_PER_TURN}
  )
  GROUP BY operation`;

type Part = [
  operation: unknown,
  rows: number,
  inDoubt: number,
  ownerGone: number,
  sinceMs: number | null,
  lastId: number,
];

/** Counts the keys in doubt, on the connection that only reads. */
export class DoubtCounter {
  readonly #part: StatementSync;
  readonly #resolutions: StatementSync;
  readonly #now: () => Now;

  /** @param now throws after the store was closed */
  constructor(database: DatabaseSync, now: () => Now) {
    this.#part = database.prepare(SELECT_PART);
    this.#part.setReturnArrays(true);
    this.#resolutions = database.prepare('SELECT resolved_as, source, number FROM resolutions');
    this.#now = now;
  }

  async count({ signal }: Pick<CountOptions, 'signal'>): Promise<DoubtCount> {
    const sum = new DoubtSum();
    const countedAtMs = this.#now().wallMs;
    for (let [after, isDone] = [0, false]; !isDone; ) {
      signal?.throwIfAborted();
      const { runningMs, bootBeganAt } = this.#now();
      const found = this.#part.all({
        after,
        running_ms: runningMs,
        boot_began_at: bootBeganAt,
      }) as unknown as Part[];
      let rows = 0;
      for (const [operation, count, inDoubt, ownerGone, sinceMs, lastId] of found) {
        const name = typeof operation === 'string' ? operation : 'other';
        sum.add(name, { inDoubt, ownerGone }, sinceMs ?? Number.NaN);
        rows += count;
        after = Math.max(after, lastId);
      }
      isDone = rows < ROWS_PER_TURN;
      if (!isDone) await nextTurn();
    }
    const { operations, oldestSinceMs } = sum;
    return { countedAtMs, operations, oldestSinceMs, resolutions: this.#readResolutions() };
  }

  #readResolutions(): ResolutionCount[] {
    const rows = this.#resolutions.all() as { resolved_as: string; source: string; number: number }[];
    return rows.map(
      ({ resolved_as: as, source: by, number }) => ({ as, by, number: Number(number) }) as ResolutionCount,
    );
  }
}

/** Runs within the transaction that resolves the record. Resolutions are rare, so the statement is not kept. */
export function countResolution(
  database: DatabaseSync,
  as: Resolution['as'],
  source: ResolutionSource,
): void {
  database
    .prepare(
      `INSERT INTO resolutions (resolved_as, source, number) VALUES (?, ?, 1)
       ON CONFLICT (resolved_as, source) DO UPDATE SET number = number + 1`,
    )
    .run(as, source);
}
