import { stat, statfsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import type { DatabaseSync } from 'node:sqlite';
import { HALVES, type Swept } from './changes.ts';
import type { Writer } from './writer.ts';

const PAUSE_MS = 250;
/** After a step that removed {@link MANY} rows or more, so that expired rows stay a small part of the store. */
const SHORT_PAUSE_MS = 2;
const MANY = 5;
/** Expired rows that cannot be read are kept. Without this pause they would be examined four times a second. */
const PAUSE_AFTER_NOTHING_MS = 10_000;
/** How much running time an idle store may lose if the machine stops. */
const STORE_CLOCK_EVERY_MS = 60_000;

const ANY_EXPIRED = [
  ...HALVES.map((half) => `SELECT 1 FROM records WHERE ${half} AND due <= ? LIMIT 1`),
  ...['void_tokens', 'audit'].map((table) => `SELECT 1 FROM ${table} WHERE expires_at <= ? LIMIT 1`),
];

/**
 * The main thread's timer for work that no request asks for. It removes expired rows, probes the disk after a failed write,
 * and stores the running time while the store is idle. It writes only if there is something to do.
 */
export class Upkeep {
  readonly #writer: Writer;
  readonly #mayWrite: () => boolean;
  readonly #anyExpired;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;
  #storedClockAt: number;
  #sweepAgainAt = Number.NEGATIVE_INFINITY;

  /** @param mayWrite false while the disk is short of space: a removal needs space in the WAL before it frees any */
  constructor(database: DatabaseSync, writer: Writer, mayWrite: () => boolean) {
    this.#writer = writer;
    this.#mayWrite = mayWrite;
    this.#storedClockAt = writer.runningMs;
    this.#anyExpired = ANY_EXPIRED.map((sql) => database.prepare(sql));
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
    if (this.#writer.failure === undefined && !this.#mayWrite()) return PAUSE_MS;
    const { runningMs } = this.#writer;
    const isClockDue = runningMs - this.#storedClockAt >= STORE_CLOCK_EVERY_MS;
    if (isClockDue) this.#storedClockAt = runningMs;
    if (isClockDue || this.#writer.failure !== undefined) await this.#writer.other({ kind: 'probe' });
    const monotonicMs = performance.now();
    if (monotonicMs < this.#sweepAgainAt) return PAUSE_MS;
    if (!this.#anyExpired.some((statement) => statement.get(runningMs) !== undefined)) return PAUSE_MS;
    const { removed, isRoundDone } = await this.#writer.other<Swept>({ kind: 'sweep' });
    if (removed === 0 && isRoundDone) this.#sweepAgainAt = monotonicMs + PAUSE_AFTER_NOTHING_MS;
    return removed >= MANY ? SHORT_PAUSE_MS : PAUSE_MS;
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
  /** Infinity: the file system does not say. */
  freeBytes: number;
  /** As it was measured last. */
  walBytes = 0;
  readonly #path: string;
  readonly #keepFreeBytes: number;
  readonly #timer: NodeJS.Timeout;

  constructor(path: string, walFile: string, keepFreeBytes = DEFAULT_KEEP_FREE_BYTES) {
    this.#path = path;
    this.#keepFreeBytes = keepFreeBytes;
    this.freeBytes = freeBytesIn(statfsSync(path));
    const measure = () => {
      stat(walFile, (_error, stats) => {
        this.walBytes = stats?.size ?? 0;
      });
      // If the folder is gone, the writer reports it.
      statfs(path).then(
        (stats) => {
          this.freeBytes = freeBytesIn(stats);
        },
        () => {},
      );
    };
    this.#timer = setInterval(measure, MEASURE_EVERY_MS).unref();
  }

  /** Why new executions are refused, for the operator. Undefined: there is enough space. */
  get shortage(): string | undefined {
    if (this.freeBytes >= this.#keepFreeBytes) return undefined;
    const [free, keep] = [this.freeBytes, this.#keepFreeBytes].map((bytes) => Math.floor(bytes / MIB));
    return `new executions are refused: the disk of ${this.#path} has ${free} MiB left, and ${keep} MiB are reserved for the results of requests already sent`;
  }

  close(): void {
    clearInterval(this.#timer);
  }
}

/** Some file systems report no size. They count as having space. */
function freeBytesIn({ blocks, bavail, bsize }: { blocks: number; bavail: number; bsize: number }): number {
  return blocks === 0 ? Number.POSITIVE_INFINITY : bavail * bsize;
}
