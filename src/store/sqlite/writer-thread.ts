/**
 * The writer thread: it has one connection, and commits each batch that the main thread sends in one transaction. The other
 * side is writer.ts.
 */
import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { type MessagePort, parentPort } from 'node:worker_threads';
import {
  FileIdentity,
  messageOf,
  openForWriting,
  refuseOtherSchema,
  resultCodeOf,
  SELECT_VERSION,
  SQLITE_BUSY,
  versionIn,
} from './database.ts';
import {
  type Answer,
  type Batch,
  type BatchAnswer,
  type FromWriter,
  fromMessage,
  type WriterData,
} from './messages.ts';
import { type ClockState, enterBoot, knownClock } from './running-time.ts';
import { Transitions } from './transitions.ts';

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

class WriterThread {
  readonly clock: ClockState;
  readonly #data: WriterData;
  readonly #neverWoken = new Int32Array(new SharedArrayBuffer(4));
  readonly #identity: FileIdentity;
  /** Undefined after a failure. The next batch opens a new connection. */
  #connection: Connection | undefined;
  #storedClockAt = Number.NEGATIVE_INFINITY;

  constructor(data: WriterData) {
    this.#data = data;
    const connection = this.#retryWhileBusy(OPEN_WITHIN_MS, () => this.#connect());
    this.clock = this.#retryWhileBusy(
      OPEN_WITHIN_MS,
      () => knownClock(connection.database, data.boot) ?? this.#enterBoot(connection),
    );
    this.#connection = connection;
    this.#identity = new FileIdentity(data.file);
  }

  commit({ messages, now, beginWithinMs }: Batch): BatchAnswer {
    // Readers and recovery ignore WAL frames without a commit mark, and only COMMIT writes that mark.
    let maybeWritten = false;
    const startedMs = performance.now();
    try {
      this.#identity.check();
      this.#connection ??= this.#reconnect();
      const { transitions, commit, schema } = this.#connection;
      if (!this.#begin(this.#connection, beginWithinMs))
        return { kind: 'failed', message: BUSY, maybeWritten, isBusy: true };
      // A later version may have migrated the file since it was opened, and this one would misread what it holds.
      refuseOtherSchema(this.#data.file, versionIn(schema));
      transitions.begin(now);
      const answers: Answer[] = [];
      for (const message of messages) answers.push(transitions.apply(fromMessage(message)));
      const observedAt = this.#storeClock(this.#connection, now.runningMs);
      // If COMMIT fails, the frames may still be in the WAL. They become valid if this process dies before the next write.
      maybeWritten = transitions.written > 0;
      commit.run();
      const tookMs = performance.now() - startedMs;
      return { kind: 'committed', answers, wrote: transitions.written > 0, tookMs, observedAt };
    } catch (error) {
      this.#disconnect();
      return { kind: 'failed', message: messageOf(error), maybeWritten, isBusy: false };
    }
  }

  close(): void {
    this.#connection?.database.close();
  }

  #enterBoot(connection: Connection): ClockState {
    connection.begin.run();
    const clock = enterBoot(connection.database, this.#data.boot, this.#data.monotonicMs);
    connection.commit.run();
    return clock;
  }

  /** False: another process held the write lock until the time was over. */
  #begin({ begin }: Connection, withinMs: number): boolean {
    try {
      this.#retryWhileBusy(withinMs, () => begin.run());
      return true;
    } catch (error) {
      if (resultCodeOf(error) === SQLITE_BUSY) return false;
      throw error;
    }
  }

  #retryWhileBusy<T>(withinMs: number, attempt: () => T): T {
    const startedMs = performance.now();
    for (;;) {
      try {
        return attempt();
      } catch (error) {
        if (resultCodeOf(error) !== SQLITE_BUSY || performance.now() - startedMs >= withinMs) throw error;
      }
      const waitMs = SHORTEST_WAIT_MS + Math.random() * (LONGEST_WAIT_MS - SHORTEST_WAIT_MS);
      Atomics.wait(this.#neverWoken, 0, 0, waitMs);
    }
  }

  /**
   * Stores the running time, if the batch writes anyway and it is due. Without a boot id also returns the time that other
   * processes have stored, because processes then cannot know that they share a clock.
   */
  #storeClock({ storeClock, observedAt, transitions }: Connection, runningMs: number): number | undefined {
    const isBootUnknown = this.#data.boot === undefined;
    const isDue = isBootUnknown || runningMs - this.#storedClockAt >= STORE_CLOCK_EVERY_MS;
    if (!isDue || transitions.written === 0) return undefined;
    storeClock.run(Math.floor(runningMs));
    this.#storedClockAt = runningMs;
    if (!isBootUnknown) return undefined;
    return (observedAt.get() as { observed_at: number }).observed_at;
  }

  /** @throws with SQLITE_BUSY while another process opens, closes or recovers the database */
  #connect(): Connection {
    const { file, gatewayId, lifetimes } = this.#data;
    const database = openForWriting(file);
    try {
      return {
        database,
        transitions: new Transitions(database, gatewayId, lifetimes),
        begin: database.prepare('BEGIN IMMEDIATE'),
        commit: database.prepare('COMMIT'),
        schema: database.prepare(SELECT_VERSION),
        storeClock: database.prepare('UPDATE clock SET observed_at = max(observed_at, ?)'),
        observedAt: database.prepare('SELECT observed_at FROM clock'),
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

interface Connection {
  database: DatabaseSync;
  transitions: Transitions;
  begin: StatementSync;
  commit: StatementSync;
  schema: StatementSync;
  storeClock: StatementSync;
  observedAt: StatementSync;
}

const BUSY = 'another process holds the write lock';

function serve(port: MessagePort, data: WriterData): void {
  const answer = (message: FromWriter) => port.postMessage(message);
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
  answer({ kind: 'ready', clock: thread.clock });
  port.on('message', (message: Batch | 'close') => {
    if (message === 'close') {
      thread.close();
      port.close();
    } else answer(thread.commit(message));
  });
}

const port = parentPort;
port?.once('message', (data: WriterData) => serve(port, data));
