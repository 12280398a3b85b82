import { stat, statfs, statfsSync } from 'node:fs';
import { dirname } from 'node:path';
import type { StatementSync } from 'node:sqlite';
import { COMMANDS } from './batch.ts';
import { EXPIRING, HALVES } from './changes.ts';
import type { Tables } from './database.ts';
import type { CommandWriter } from './writer.ts';

const PAUSE_MS = 250;
/** After a step that removed {@link MANY} rows or more, so that expired rows stay a small part of the store. */
const SHORT_PAUSE_MS = 2;
const MANY = 5;
/** How much running time an idle store may lose if the machine stops. */
const STORE_CLOCK_EVERY_MS = 60_000;
const MEASURE_EVERY_MS = 1000;

const MIB = 1024 * 1024;
/** Enough for thousands of small responses, or dozens of 1 MiB. */
const DEFAULT_KEEP_FREE_BYTES = 64 * MIB;

const EXPIRED = [
  ...HALVES.map((half) => `records WHERE ${half} AND due <= ?1`),
  ...Object.keys(EXPIRING).map((table) => `${table} WHERE expires_at <= ?1`),
];
const SELECT_ANY_EXPIRED = `SELECT 1 WHERE ${EXPIRED.map((rows) => `EXISTS (SELECT 1 FROM ${rows})`).join(' OR ')}`;

/**
 * The main thread's timer for work that no request asks for. It measures the disk, removes expired rows, probes the disk after a
 * failed write, and stores the running time while the store is idle. It writes only if there is something to do.
 */
export class Maintenance {
  /** Infinity: the file system does not say. */
  freeBytes: number;
  walBytes = 0;
  readonly #path: string;
  readonly #file: string;
  readonly #writer: CommandWriter;
  readonly #keepFreeBytes: number;
  readonly #anyExpired: StatementSync;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  #storedClockAt: number;
  #measuredAt = Number.NEGATIVE_INFINITY;

  constructor(
    file: string,
    database: Tables,
    writer: CommandWriter,
    keepFreeBytes = DEFAULT_KEEP_FREE_BYTES,
  ) {
    this.#file = file;
    this.#path = dirname(file);
    this.#writer = writer;
    this.#keepFreeBytes = keepFreeBytes;
    this.freeBytes = freeBytesIn(statfsSync(this.#path));
    this.#storedClockAt = writer.runningMs;
    this.#anyExpired = database.prepare(SELECT_ANY_EXPIRED);
    this.#scheduleStep(PAUSE_MS);
  }

  /**
   * Tells the operator why new executions are refused, if the free space is less than the reserve. The reserve is for the results of
   * requests that were already sent.
   */
  get shortage(): string | undefined {
    if (this.freeBytes >= this.#keepFreeBytes) return undefined;
    const [free, keep] = [this.freeBytes, this.#keepFreeBytes].map((bytes) => Math.floor(bytes / MIB));
    return `new executions are refused: the disk of ${this.#path} has ${free} MiB left, and ${keep} MiB are reserved for the results of requests already sent`;
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
    const { runningMs, failure } = this.#writer;
    this.#measure();
    // A removal needs space in the WAL before it frees any.
    if (failure === undefined && this.shortage !== undefined) return PAUSE_MS;
    const isClockDue = runningMs - this.#storedClockAt >= STORE_CLOCK_EVERY_MS;
    if (isClockDue) this.#storedClockAt = runningMs;
    if (isClockDue || failure !== undefined) await this.#writer.ask(COMMANDS.probe);
    if (!this.#anyExpired.get(runningMs)) return PAUSE_MS;
    return (await this.#writer.ask<number>(COMMANDS.sweep)) >= MANY ? SHORT_PAUSE_MS : PAUSE_MS;
  }

  #measure(): void {
    if (performance.now() - this.#measuredAt < MEASURE_EVERY_MS) return;
    this.#measuredAt = performance.now();
    stat(`${this.#file}-wal`, (_error, stats) => {
      this.walBytes = stats?.size ?? 0;
    });
    // If the folder is gone, the writer reports it.
    statfs(this.#path, (error, stats) => {
      if (!error) this.freeBytes = freeBytesIn(stats);
    });
  }
}

/** Some file systems report no size. They count as having space. */
function freeBytesIn({ blocks, bavail, bsize }: { blocks: number; bavail: number; bsize: number }): number {
  return blocks === 0 ? Number.POSITIVE_INFINITY : bavail * bsize;
}
