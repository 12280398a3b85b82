import { stat, statfsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import type { DatabaseSync, SQLOutputValue, StatementSync } from 'node:sqlite';
import { UnreadableRecord } from '../contract.ts';
import type { Answers } from './messages.ts';
import { ROW_COLUMNS_WITHOUT_BODY, readSelected } from './records-table.ts';
import type { Now } from './running-time.ts';
import type { Writer } from './writer.ts';

const PAUSE_MS = 250;
/** After a step that removed {@link MANY} rows or more, so that expired rows stay a small part of the store. */
const SHORT_PAUSE_MS = 2;
const MANY = 5;
/** Expired rows that cannot be read are kept. Without this pause they would be examined four times a second. */
const PAUSE_AFTER_NOTHING_MS = 10_000;
/** How much running time an idle store may lose if the machine stops. */
const STORE_CLOCK_EVERY_MS = 60_000;

/**
 * The main thread's timer for work that no request asks for. It removes expired rows, probes the disk after a failed write,
 * and stores the running time while the store is idle. It writes only if there is something to do.
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

  /** @param mayWrite false while the disk is short of space: a removal needs space in the WAL before it frees any */
  constructor(database: DatabaseSync, writer: Writer, now: () => Now, mayWrite: () => boolean) {
    this.#writer = writer;
    this.#now = now;
    this.#mayWrite = mayWrite;
    this.#storedClockAt = now().runningMs;
    const tables = ['records', 'voided_tokens', 'audit'];
    this.#anyExpired = tables.map((table) =>
      database.prepare(`SELECT 1 FROM ${table} WHERE expires_at <= ? LIMIT 1`),
    );
    this.#scheduleStep(PAUSE_MS);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  #scheduleStep(pauseMs: number): void {
    if (this.#isClosed) return;
    this.#timer = setTimeout(async () => {
      // The next step tries again. `Writer.failure` says why this one failed.
      const nextMs = await this.#step().catch(() => PAUSE_MS);
      this.#scheduleStep(nextMs);
    }, pauseMs).unref();
  }

  /** Resolves to the pause before the next step, in milliseconds. */
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

/** A step shares its transaction with payouts, so it must be short. */
const ROWS_PER_STEP = 50;

/** Removes expired rows, a few at a time. Runs in the writer thread, within the transaction of a batch. */
export class Sweeper {
  readonly #expired: StatementSync;
  readonly #row: StatementSync;
  readonly #remove: StatementSync;
  readonly #others: StatementSync[];
  /** The last row that was examined. Rows that cannot be read are kept for operators, so the next step must skip them. */
  #after = { expiresAt: Number.MIN_SAFE_INTEGER, id: 0 };

  constructor(database: DatabaseSync) {
    this.#expired = database.prepare(
      `SELECT expires_at, id FROM records WHERE expires_at <= ? AND (expires_at, id) > (?, ?)
       ORDER BY expires_at, id LIMIT ${ROWS_PER_STEP}`,
    );
    this.#expired.setReturnArrays(true);
    this.#row = database.prepare(`SELECT ${ROW_COLUMNS_WITHOUT_BODY} FROM records WHERE id = ?`);
    this.#row.setReturnArrays(true);
    this.#remove = database.prepare('DELETE FROM records WHERE id = ?');
    this.#others = [
      `DELETE FROM voided_tokens WHERE token IN (SELECT token FROM voided_tokens WHERE expires_at <= ? LIMIT ${ROWS_PER_STEP})`,
      `DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE expires_at <= ? LIMIT ${ROWS_PER_STEP})`,
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
    const last = found.length < ROWS_PER_STEP ? undefined : found.at(-1);
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

const MEASURE_EVERY_MS = 1000;
const MIB = 1024 * 1024;
/** Enough for thousands of small responses, or dozens of 1 MiB. */
const DEFAULT_KEEP_FREE_BYTES = 64 * MIB;

/**
 * Measures the free space of the disk, and the size of the write-ahead log. Below the reserve the store refuses new executions, so
 * that the results of requests that were already sent can still be stored.
 */
export class DiskReserve {
  readonly #path: string;
  readonly #keepFreeBytes: number;
  readonly #timer: NodeJS.Timeout;
  readonly #walFile: string;
  #freeBytes: number;
  #walBytes = 0;

  constructor(path: string, walFile: string, keepFreeBytes = DEFAULT_KEEP_FREE_BYTES) {
    this.#path = path;
    this.#walFile = walFile;
    this.#keepFreeBytes = keepFreeBytes;
    this.#freeBytes = freeBytesIn(statfsSync(path));
    this.#timer = setInterval(() => void this.#measure(), MEASURE_EVERY_MS).unref();
  }

  /** Infinity: the file system does not say. */
  get freeBytes(): number {
    return this.#freeBytes;
  }

  /** As it was measured last. */
  get walBytes(): number {
    return this.#walBytes;
  }

  /** Why new executions are refused, for the operator. Undefined: there is enough space. */
  get shortage(): string | undefined {
    if (this.#freeBytes >= this.#keepFreeBytes) return undefined;
    const [free, keep] = [this.#freeBytes, this.#keepFreeBytes].map((bytes) => Math.floor(bytes / MIB));
    return `new executions are refused: the disk of ${this.#path} has ${free} MiB left, and ${keep} MiB are reserved for the results of requests already sent`;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #measure(): Promise<void> {
    stat(this.#walFile, (_error, stats) => {
      this.#walBytes = stats?.size ?? 0;
    });
    // If the folder is gone, the writer reports it.
    this.#freeBytes = await statfs(this.#path).then(freeBytesIn, () => this.#freeBytes);
  }
}

/** Some file systems report no size. They count as having space. */
function freeBytesIn({ blocks, bavail, bsize }: { blocks: number; bavail: number; bsize: number }): number {
  return blocks === 0 ? Number.POSITIVE_INFINITY : bavail * bsize;
}
