/**
 * The writer thread: it has one connection, and commits each batch that the main thread sends in one transaction. The other
 * side is writer.ts.
 */
import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { type MessagePort, parentPort } from 'node:worker_threads';
import { Changes } from './changes.ts';
import { BatchReader, type OtherCommand } from './commands.ts';
import {
  FileIdentity,
  isBusy,
  messageOf,
  openForWriting,
  refuseOtherFormat,
  SELECT_VERSION,
} from './database.ts';
import { enterBoot, knownOffsetMs } from './running-time.ts';

/** What the thread opens: its first message. */
export interface WriterData {
  file: string;
  timeoutMs: number;
  /** See `bootId` in running-time.ts. */
  boot: Uint8Array | undefined;
  /** The monotonic clock when this message was sent. */
  monotonicMs: number;
}

/** Its other messages: a batch, or the order to end. */
export type ToWriter = WriterData | Uint8Array | 'close';

export type BatchAnswer =
  | {
      kind: 'committed';
      /** The memory of the batch. It begins with an answer for each command, in one byte (`ANSWERS`). */
      bytes: Uint8Array;
      /** The answers to other commands than create and replace, each at the place of its command. */
      others: unknown[];
      /** False: the batch changed no row. */
      wrote: boolean;
      /** From BEGIN to the end of COMMIT, with the wait for other processes, in milliseconds. */
      tookMs: number;
    }
  /** `maybeWritten`: the COMMIT failed. `isBusy`: another process held the write lock. */
  | { kind: 'failed'; message: string; maybeWritten: boolean; isBusy: boolean };

export type FromWriter =
  | { kind: 'ready'; offsetMs: number }
  /** The thread could not open the database, and ends. */
  | { kind: 'refused'; message: string }
  | BatchAnswer;

/**
 * The pause between two attempts to get the write lock. SQLite's own busy handler starves some processes for hundreds of
 * milliseconds; short random pauses give each process its turn.
 */
const SHORTEST_WAIT_MS = 0.1;
const LONGEST_WAIT_MS = 0.5;
/** Opening may take this long, because another process may be moving a large WAL into the database file. */
const OPEN_WITHIN_MS = 10_000;
/** How much running time a busy store may lose if the machine stops. */
const STORE_CLOCK_EVERY_MS = 1000;

interface Connection {
  database: DatabaseSync;
  changes: Changes;
  begin: StatementSync;
  commit: StatementSync;
  version: StatementSync;
  storeClock: StatementSync;
}

class WriterThread {
  readonly offsetMs: number;
  readonly #data: WriterData;
  readonly #neverWoken = new Int32Array(new SharedArrayBuffer(4));
  readonly #identity: FileIdentity;
  /** Undefined after a failure. The next batch opens a new connection. */
  #connection: Connection | undefined;
  #storedClockAt = Number.NEGATIVE_INFINITY;

  constructor(data: WriterData) {
    this.#data = data;
    const connection = this.#retryWhileBusy(OPEN_WITHIN_MS, () => this.#connect());
    this.offsetMs = this.#retryWhileBusy(
      OPEN_WITHIN_MS,
      () => knownOffsetMs(connection.database, data.boot) ?? this.#enterBoot(connection),
    );
    this.#connection = connection;
    this.#identity = new FileIdentity(data.file);
  }

  commit(bytes: Uint8Array): BatchAnswer {
    // Readers and recovery ignore WAL frames without a commit mark, and only COMMIT writes that mark.
    let maybeWritten = false;
    const startedMs = performance.now();
    try {
      const reader = new BatchReader(Buffer.from(bytes.buffer as ArrayBuffer));
      const { runningMs, beginWithinMs, count } = reader;
      this.#identity.check();
      this.#connection ??= this.#reconnect();
      const { changes, commit, version } = this.#connection;
      if (!this.#begin(this.#connection, beginWithinMs))
        return { kind: 'failed', message: BUSY, maybeWritten, isBusy: true };
      // A later version may have migrated the file since it was opened, and this one would misread what it holds.
      refuseOtherFormat(this.#data.file, (version.get() as { user_version: number }).user_version);
      changes.begin(runningMs);
      const others: unknown[] = [];
      for (let i = 0; i < count; i++) {
        reader.read();
        // The memory before the commands that follow is not read any more.
        if (reader.kind === 'create') bytes[i] = changes.create(reader);
        else if (reader.kind === 'replace') bytes[i] = changes.replace(reader);
        else if (reader.kind === 'other') others[i] = changes.other(reader.other as OtherCommand);
      }
      this.#storeClock(this.#connection, runningMs);
      // If COMMIT fails, the frames may still be in the WAL. They become valid if this process dies before the next write.
      maybeWritten = changes.written > 0;
      commit.run();
      const tookMs = performance.now() - startedMs;
      return { kind: 'committed', bytes, others, wrote: changes.written > 0, tookMs };
    } catch (error) {
      this.#disconnect();
      return { kind: 'failed', message: messageOf(error), maybeWritten, isBusy: false };
    }
  }

  close(): void {
    this.#connection?.database.close();
  }

  #enterBoot({ begin, database, commit }: Connection): number {
    begin.run();
    const offsetMs = enterBoot(database, this.#data.boot, this.#data.monotonicMs);
    commit.run();
    return offsetMs;
  }

  /** False: another process held the write lock until the time was over. */
  #begin({ begin }: Connection, withinMs: number): boolean {
    try {
      this.#retryWhileBusy(withinMs, () => begin.run());
      return true;
    } catch (error) {
      if (isBusy(error)) return false;
      throw error;
    }
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

  /** Stores the running time, if the batch writes anyway and it is due. */
  #storeClock({ storeClock, changes }: Connection, runningMs: number): void {
    if (changes.written === 0 || runningMs - this.#storedClockAt < STORE_CLOCK_EVERY_MS) return;
    storeClock.run(Math.floor(runningMs));
    this.#storedClockAt = runningMs;
  }

  /** @throws with SQLITE_BUSY while another process opens, closes or recovers the database */
  #connect(): Connection {
    const database = openForWriting(this.#data.file);
    try {
      return {
        database,
        changes: new Changes(database),
        begin: database.prepare('BEGIN IMMEDIATE'),
        commit: database.prepare('COMMIT'),
        version: database.prepare(SELECT_VERSION),
        storeClock: database.prepare('UPDATE store SET observed_at = max(observed_at, ?)'),
      };
    } catch (error) {
      database.close();
      throw error;
    }
  }

  #reconnect(): Connection {
    const connection = this.#retryWhileBusy(this.#data.timeoutMs, () => this.#connect());
    try {
      this.#identity.check();
    } catch (error) {
      connection.database.close();
      throw error;
    }
    try {
      // On a full disk this may free space: SQLite can reuse the WAL when its pages are in the database file.
      connection.database.exec('PRAGMA wal_checkpoint(PASSIVE)');
    } catch {
      // The next write may still succeed.
    }
    return connection;
  }

  /**
   * Rolls back by closing the connection, because after some errors a ROLLBACK fails as well. SQLite keeps the WAL, because
   * the main thread's connection is still open.
   */
  #disconnect(): void {
    const connection = this.#connection;
    this.#connection = undefined;
    connection?.database.close();
  }
}

const BUSY = 'another process holds the write lock';

function serve(port: MessagePort, data: WriterData): void {
  const answer = (message: FromWriter) =>
    port.postMessage(message, message.kind === 'committed' ? [message.bytes.buffer as ArrayBuffer] : []);
  // A busy database throws for each attempt, and stack traces are expensive.
  Error.stackTraceLimit = 0;
  let thread: WriterThread;
  try {
    thread = new WriterThread(data);
  } catch (error) {
    answer({ kind: 'refused', message: messageOf(error) });
    port.close();
    return;
  }
  answer({ kind: 'ready', offsetMs: thread.offsetMs });
  port.on('message', (message: Uint8Array | 'close') => {
    if (message === 'close') {
      thread.close();
      port.close();
    } else answer(thread.commit(message));
  });
}

const port = parentPort;
port?.once('message', (data: WriterData) => serve(port, data));
