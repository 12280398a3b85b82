/**
 * The writer thread: it has one connection, and commits each batch that the main thread sends in one transaction. The other
 * side is writer.ts.
 */
import { type MessagePort, parentPort } from 'node:worker_threads';
import { messageOf } from '../../lib/files.ts';
import { applyAll } from './batch.ts';
import { Changes } from './changes.ts';
import { checkInodes, inodesOfOpened, isBusy, openForWriting } from './database.ts';
import { enterBoot } from './running-time.ts';

/** The first message to the thread: what it opens. It ends with an error if it cannot open the database. */
export interface WriterData {
  file: string;
  timeoutMs: number;
  /** See `bootId` in running-time.ts. */
  boot: Uint8Array | undefined;
  /** The monotonic clock when this message was sent. */
  monotonicMs: number;
  /** Those of the files that an earlier thread has opened: the readers still have them open. */
  inodes: readonly string[] | undefined;
}

interface ToCommit {
  /** What `Batch.finish` returned. */
  memory: Uint8Array;
  runningMs: number;
  /** How long the thread may try to get the write lock, in milliseconds. */
  beginWithinMs: number;
}

/** The other messages to the thread. */
export type ToWriter = 'close' | ToCommit;

export type FromWriter =
  | { kind: 'ready'; offsetMs: number; inodes: readonly string[] }
  /** `wrote`: the batch changed a row. `tookMs`: from BEGIN to the end of COMMIT, with the wait for other processes. */
  | { kind: 'committed'; answers: unknown[]; wrote: boolean; tookMs: number }
  /** `maybeWritten`: the COMMIT failed. `isLocked`: another process held the write lock. */
  | { kind: 'failed'; message: string; maybeWritten: boolean; isLocked: boolean };

/**
 * The pause between two attempts to get the write lock. SQLite's own busy handler starves some processes for hundreds of
 * milliseconds; short random pauses give each process its turn.
 */
const SHORTEST_WAIT_MS = 0.1;
const LONGEST_WAIT_MS = 0.5;
/** Opening may take this long, because another process may be moving a large WAL into the database file. */
const OPEN_WITHIN_MS = 10_000;

class WriterThread {
  readonly offsetMs: number;
  readonly #data: WriterData;
  readonly #neverWoken = new Int32Array(new SharedArrayBuffer(4));
  readonly #inodes: readonly string[];
  /** Undefined after a failure. The next batch opens a new connection. */
  #changes: Changes | undefined;

  constructor(data: WriterData) {
    const { file, boot, monotonicMs, inodes } = data;
    this.#data = data;
    if (inodes) checkInodes(file, inodes);
    const database = this.#retryWhileBusy(OPEN_WITHIN_MS, () => openForWriting(file));
    this.offsetMs = this.#retryWhileBusy(OPEN_WITHIN_MS, () => enterBoot(database, boot, monotonicMs));
    this.#changes = new Changes(database);
    this.#inodes = inodes ?? inodesOfOpened(file);
  }

  get inodes(): readonly string[] {
    return this.#inodes;
  }

  commit({ memory, runningMs, beginWithinMs }: ToCommit): FromWriter {
    const { file } = this.#data;
    // Readers and recovery ignore WAL frames without a commit mark, and only COMMIT writes that mark.
    let maybeWritten = false;
    let hasBegun = false;
    const startedMs = performance.now();
    try {
      checkInodes(file, this.#inodes);
      const changes = this.#changes ?? this.#reconnect();
      this.#retryWhileBusy(beginWithinMs, () => changes.database.exec('BEGIN IMMEDIATE'));
      hasBegun = true;
      changes.begin(file, runningMs);
      const answers = applyAll(memory, (command, values) => changes.apply(command, values));
      const wrote = changes.written > 0;
      changes.storeClock();
      // If COMMIT fails, the frames may still be in the WAL. They become valid if this process dies before the next write.
      maybeWritten = wrote;
      changes.database.exec('COMMIT');
      return { kind: 'committed', answers, wrote, tookMs: performance.now() - startedMs };
    } catch (error) {
      const isLocked = !hasBegun && isBusy(error);
      // It also rolls back, because after some errors a ROLLBACK fails as well. SQLite keeps the WAL, because the main thread's
      // connection is still open.
      if (!isLocked) this.close();
      const message = isLocked ? 'another process holds the write lock' : messageOf(error);
      return { kind: 'failed', message, maybeWritten, isLocked };
    }
  }

  close(): void {
    const changes = this.#changes;
    this.#changes = undefined;
    changes?.database.close();
  }

  #retryWhileBusy<T>(withinMs: number, attempt: () => T): T {
    const startedMs = performance.now();
    for (;;) {
      try {
        return attempt();
      } catch (error) {
        if (!isBusy(error) || performance.now() - startedMs >= withinMs) throw error;
      }
      const waitMs = SHORTEST_WAIT_MS + Math.random() * (LONGEST_WAIT_MS - SHORTEST_WAIT_MS);
      Atomics.wait(this.#neverWoken, 0, 0, waitMs);
    }
  }

  /** If it fails after the connection was opened, `commit` closes it. */
  #reconnect(): Changes {
    const { file, timeoutMs } = this.#data;
    const changes = new Changes(this.#retryWhileBusy(timeoutMs, () => openForWriting(file)));
    this.#changes = changes;
    checkInodes(file, this.#inodes);
    try {
      // On a full disk this may free space: SQLite can reuse the WAL when its pages are in the database file.
      changes.database.exec('PRAGMA wal_checkpoint(PASSIVE)');
    } catch {
      // The next write may still succeed.
    }
    return changes;
  }
}

function serve(port: MessagePort, data: WriterData): void {
  const answer = (message: FromWriter) => port.postMessage(message);
  // A busy database throws for each attempt, and stack traces are expensive.
  Error.stackTraceLimit = 0;
  const thread = new WriterThread(data);
  const { offsetMs, inodes } = thread;
  answer({ kind: 'ready', offsetMs, inodes });
  port.on('message', (message: ToWriter) => {
    if (message !== 'close') return answer(thread.commit(message));
    thread.close();
    port.close();
  });
}

const port = parentPort;
port?.once('message', (data: WriterData) => serve(port, data));
