import type { DatabaseSync } from 'node:sqlite';
import type { Now } from './running-time.ts';
import type { Writer } from './writer.ts';

const PAUSE_MS = 250;
/** A step that removed much is followed by the next one soon, so that expired rows stay a small part of the store. */
const SHORT_PAUSE_MS = 2;
const MANY = 5;
/** Rows that have expired and cannot be read stay, and must not be looked at four times a second. */
const PAUSE_AFTER_NOTHING_MS = 10_000;
/** How much running time may be forgotten if the machine stops while nothing is written. */
const STORE_CLOCK_EVERY_MS = 60_000;

/**
 * What the store does by itself: it removes what has expired, tries again after a failed write, and stores the running time
 * of an idle gateway. Only reads, unless there is something to do.
 */
export class Upkeep {
  readonly #writer: Writer;
  readonly #now: () => Now;
  readonly #mayWrite: () => boolean;
  readonly #anyExpired;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  #storedClockAt: number;
  #sweepAgainAt = Number.NEGATIVE_INFINITY;

  /** @param mayWrite asked before each step: a removal needs space in the WAL before it frees any */
  constructor(database: DatabaseSync, writer: Writer, now: () => Now, mayWrite: () => boolean) {
    this.#writer = writer;
    this.#now = now;
    this.#mayWrite = mayWrite;
    this.#storedClockAt = now().runningMs;
    const tables = ['records', 'voided_tokens', 'audit'];
    this.#anyExpired = tables.map((table) =>
      database.prepare(`SELECT 1 FROM ${table} WHERE expires_at <= ? LIMIT 1`),
    );
    this.#lookAfter(PAUSE_MS);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  #lookAfter(pauseMs: number): void {
    if (this.#isClosed) return;
    this.#timer = setTimeout(async () => {
      // A step that fails is tried again later; the writer remembers why it failed.
      const nextMs = await this.#step().catch(() => PAUSE_MS);
      this.#lookAfter(nextMs);
    }, pauseMs).unref();
  }

  /** Resolves to the pause before the next step. */
  async #step(): Promise<number> {
    if (this.#writer.failure !== undefined) {
      await this.#writer.write({ kind: 'probe' });
      return PAUSE_MS;
    }
    if (!this.#mayWrite()) return PAUSE_MS;
    const { runningMs } = this.#now();
    if (runningMs - this.#storedClockAt >= STORE_CLOCK_EVERY_MS) {
      this.#storedClockAt = runningMs;
      await this.#writer.write({ kind: 'probe' });
    }
    const monotonicMs = performance.now();
    if (monotonicMs < this.#sweepAgainAt) return PAUSE_MS;
    if (!this.#anyExpired.some((statement) => statement.get(runningMs) !== undefined)) return PAUSE_MS;
    const { removed, isRoundDone } = await this.#writer.write({ kind: 'sweep' });
    if (removed === 0 && isRoundDone) this.#sweepAgainAt = monotonicMs + PAUSE_AFTER_NOTHING_MS;
    return removed >= MANY ? SHORT_PAUSE_MS : PAUSE_MS;
  }
}
