import type { ServerOptions } from './connection.ts';
import type { Lanes } from './lanes.ts';
import { CLOCK } from './tables.ts';

const SWEPT_AT_ONCE = 200;
const PAUSE_MS = 1000;
/** After a step that removed as many rows as it may. */
const SHORT_PAUSE_MS = 20;

/** Both, because a person who puts off when a record expires may leave `due` as it was. */
const IS_DUE = `due <= ${CLOCK} AND expires_at <= ${CLOCK}`;

/**
 * Removes rows that are due, a few at a time. The condition stands twice, because a row may have been taken by a new start since it was
 * selected; a row that a request is writing is passed over.
 */
export const statementsFor = (schema: string): string[] => [
  ...["state <> 'completed'", "state = 'completed'"].map(
    (half) => `DELETE FROM ${schema}.records WHERE id = ANY (ARRAY(
        SELECT id FROM ${schema}.records WHERE ${half} AND ${IS_DUE} ORDER BY due LIMIT ${SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED))
      AND ${IS_DUE} RETURNING 1`,
  ),
  `DELETE FROM ${schema}.audit WHERE number = ANY (ARRAY(
      SELECT number FROM ${schema}.audit WHERE expires_at <= ${CLOCK} LIMIT ${SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED)) RETURNING 1`,
];

/** Removes in the background what has expired. Every gateway does, and none waits for another. */
export class Sweep {
  readonly #lanes: Lanes;
  readonly #statements: string[];
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(lanes: Lanes, { schema }: ServerOptions) {
    this.#lanes = lanes;
    this.#statements = statementsFor(schema);
    this.#schedule(PAUSE_MS);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  #schedule(pauseMs: number): void {
    if (this.#isClosed) return;
    this.#timer = setTimeout(async () => {
      // The next step tries again.
      const removed = await this.step().catch(() => 0);
      this.#schedule(removed >= SWEPT_AT_ONCE ? SHORT_PAUSE_MS : PAUSE_MS);
    }, pauseMs).unref();
  }

  /** Resolves to the largest number of rows that one statement removed. */
  async step(): Promise<number> {
    let most = 0;
    for (const text of this.#statements) most = Math.max(most, (await this.#lanes.change(text)).length);
    return most;
  }
}
