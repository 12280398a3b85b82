import { statfsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import type { DatabaseSync, SQLOutputValue, StatementSync } from 'node:sqlite';
import { UnreadableRecord } from '../../store.ts';
import type { Answers } from './messages.ts';
import { ROW_COLUMNS_WITHOUT_BODY, readSelected } from './records-table.ts';
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

const LOOK_EVERY_MS = 1000;
const MIB = 1024 * 1024;
/** Thousands of small responses fit into it, and some dozens of 1 MiB. */
const DEFAULT_KEEP_FREE_BYTES = 64 * MIB;

/**
 * The disk reserve. New executions are refused below it, so that those that were already sent can still be completed.
 */
export class Room {
  readonly #path: string;
  readonly #keepFreeBytes: number;
  readonly #timer: NodeJS.Timeout;
  #freeBytes: number;

  constructor(path: string, keepFreeBytes = DEFAULT_KEEP_FREE_BYTES) {
    this.#path = path;
    this.#keepFreeBytes = keepFreeBytes;
    this.#freeBytes = freeIn(statfsSync(path));
    this.#timer = setInterval(() => void this.#look(), LOOK_EVERY_MS).unref();
  }

  /** For the operator: why nothing new is started, or undefined. */
  get shortage(): string | undefined {
    if (this.#freeBytes >= this.#keepFreeBytes) return undefined;
    const [free, keep] = [this.#freeBytes, this.#keepFreeBytes].map((bytes) => Math.floor(bytes / MIB));
    return `nothing new is started: the disk of ${this.#path} has ${free} MiB left, and ${keep} MiB are kept for what was already sent`;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #look(): Promise<void> {
    // If the folder is gone, the writer says so.
    this.#freeBytes = await statfs(this.#path).then(freeIn, () => this.#freeBytes);
  }
}

/** Some file systems report no size. */
function freeIn({ blocks, bavail, bsize }: { blocks: number; bavail: number; bsize: number }): number {
  return blocks === 0 ? Number.POSITIVE_INFINITY : bavail * bsize;
}
