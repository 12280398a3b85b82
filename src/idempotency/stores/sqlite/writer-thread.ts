/**
 * The writer's thread: one connection, one transaction for each batch that the main thread sends. See writer.ts.
 */
import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { Identity, messageOf, openForWriting, resultCodeOf, SQLITE_BUSY } from './database.ts';
import {
  type Answer,
  type Batch,
  type BatchAnswer,
  type FromWriter,
  fromMessage,
  type ToWriter,
  type WriterData,
} from './messages.ts';
import { type ClockState, enterBoot, knownClock } from './running-time.ts';
import { Transitions } from './transitions.ts';

/**
 * SQLite's own waiting for the write lock starves some processes for hundreds of milliseconds. Short waits of random
 * length give each process its turn.
 */
const SHORTEST_WAIT_MS = 0.1;
const LONGEST_WAIT_MS = 0.5;
/** Another process that opens or closes the database may be moving a large WAL into the file. */
const OPEN_WITHIN_MS = 10_000;
/** How much running time may be forgotten if the machine stops. */
const STORE_CLOCK_EVERY_MS = 1000;

class WriterThread {
  readonly clock: ClockState;
  readonly #data: WriterData;
  readonly #neverWoken = new Int32Array(new SharedArrayBuffer(4));
  readonly #identity: Identity;
  /** Undefined after a failure: the next batch opens another one. */
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
    this.#identity = new Identity(data.file);
  }

  commit({ messages, now, beginWithinMs }: Batch): BatchAnswer {
    // Only a COMMIT can leave a commit mark in the WAL. Frames without one are ignored by every reader and by recovery.
    let maybeWritten = false;
    try {
      this.#identity.check();
      this.#connection ??= this.#reconnect();
      const { transitions, commit } = this.#connection;
      if (!this.#begin(this.#connection, beginWithinMs))
        return { kind: 'failed', message: BUSY, maybeWritten, isBusy: true };
      transitions.begin(now);
      const answers: Answer[] = [];
      for (const message of messages) answers.push(transitions.apply(fromMessage(message)));
      const observedAt = this.#storeClock(this.#connection, now.runningMs);
      // If it fails, the frames may be in the WAL all the same, and become valid if this process dies before the next write.
      maybeWritten = transitions.written > 0;
      commit.run();
      return { kind: 'committed', answers, wrote: transitions.written > 0, observedAt };
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

  /** False: another process held the write lock all the time. */
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
   * Goes along with a batch that writes anyway. Without a boot id also returns what time others have stored, because the
   * processes of one boot then do not know that they share a clock.
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
      // On a full disk this may make room: the WAL can be reused when its pages are in the database file.
      connection.database.exec('PRAGMA wal_checkpoint(PASSIVE)');
    } catch {
      // The write that follows may succeed all the same.
    }
    return connection;
  }

  /** Rolls back, also if the error was so bad that a ROLLBACK would fail. The main thread's connection keeps the WAL in place. */
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
  storeClock: StatementSync;
  observedAt: StatementSync;
}

const BUSY = 'another process holds the write lock';

function serve(port: MessagePort, data: WriterData): void {
  const answer = (message: FromWriter) => port.postMessage(message);
  // An error for each busy database must not cost a stack trace.
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
  port.on('message', (message: ToWriter) => {
    if (message === 'close') {
      thread.close();
      port.close();
    } else answer(thread.commit(message));
  });
}

if (parentPort) serve(parentPort, workerData as WriterData);
