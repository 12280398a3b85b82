import type { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { messageOf } from '../../lib/files.ts';
import { STORE_FORMAT, StoreClosed, StoreUnavailable } from '../types.ts';
import { ANSWERS, COMMANDS, type Value } from './batch.ts';
import { Changes } from './changes.ts';
import {
  checkInodes,
  inodesOfOpened,
  isBusy,
  isConstraint,
  mayRollBack,
  refuseOtherFormat,
  SELECT_VERSION,
  TABLES,
  type Tables,
  unavailable,
} from './database.ts';
import { enterBoot } from './running-time.ts';
import { type CommandWriter, closed, type WriterOptions } from './writer.ts';

/** The names of tables, and of their indexes. No column has the name of a table. */
const NAMES = /\b(records|void_tokens|audit|resolutions|store|probe)(?=\b|_\w+ ON )/g;
const MAKE_TABLES = `${TABLES} ALTER TABLE store ADD COLUMN format INTEGER NOT NULL DEFAULT ${STORE_FORMAT};`;

/** The version of a database is its application's, so the store has its own. */
const inApplication = (sql: string): string =>
  sql === SELECT_VERSION ? 'SELECT format FROM oncegate_store' : sql.replace(NAMES, 'oncegate_$1');

/** The store's tables in the database of an application, whose names begin with `oncegate_`. Only an own connection is closed. */
export const tablesIn = (database: DatabaseSync, isOwn = false): Tables => ({
  prepare: (sql) => {
    const statement = database.prepare(inApplication(sql));
    // The application may have chosen otherwise for its own statements.
    statement.setReadBigInts(false);
    statement.setReturnArrays(false);
    return statement;
  },
  exec: (sql) => database.exec(inApplication(sql)),
  close: () => {
    if (isOwn) database.close();
  },
});

export const hasTables = (database: DatabaseSync): boolean =>
  database.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'oncegate_store'").get() !== undefined;

/** The shortest and the longest pause between two attempts to begin a transaction. See writer-thread.ts. */
const [SHORTEST_WAIT_MS, LONGEST_WAIT_MS] = [1, 3];
/** Opening may take this long, because another process may be opening the same database. */
const OPEN_WITHIN_MS = 10_000;

/** What the function of an application has thrown. */
class Thrown extends Error {}

const NOT_ENDED = 'the function must not end the transaction itself';

/** Whether SQLite may have rolled back itself for it. Libraries wrap its errors. */
const mayEndItself = (error: unknown): boolean => {
  const { cause } = (error ?? {}) as { cause?: unknown };
  return mayRollBack(error) || (cause !== undefined && mayEndItself(cause));
};

/**
 * Writes on the connection of an application, each command in a transaction of its own. A transaction begins and ends in one turn of
 * the event loop, so no statement of another request gets into it; a commit therefore keeps the event loop waiting for the disk. While
 * the application itself has a transaction open, commands wait, because its rollback would take them along.
 */
export class ApplicationWriter implements CommandWriter {
  failure: string | undefined;
  readonly queued = 0;
  readonly #options: WriterOptions;
  readonly #database: DatabaseSync;
  readonly #tables: Tables;
  readonly #changes: Changes;
  #inodes: readonly string[] = [];
  #offsetMs = 0;
  #isClosed = false;

  static async open(database: DatabaseSync, options: WriterOptions): Promise<ApplicationWriter> {
    const writer = new ApplicationWriter(database, options);
    await writer.#whenFree(OPEN_WITHIN_MS, () => writer.#prepare());
    return writer;
  }

  private constructor(database: DatabaseSync, options: WriterOptions) {
    this.#database = database;
    this.#options = options;
    this.#tables = tablesIn(database);
    this.#changes = new Changes(this.#tables);
  }

  get runningMs(): number {
    return this.#options.clock.monotonicMs() + this.#offsetMs;
  }

  ask<Answer>(
    command: number,
    values: () => Value[] = () => [],
    withinMs = this.#options.timeoutMs,
  ): Promise<Answer> {
    return this.#whenFree(withinMs, () =>
      this.#inTransaction((changes) => changes.apply(command, values()) as Answer),
    );
  }

  /**
   * Commits the write of the values of `claim`, what `work` does, and the write whose values it returns, if any, in one transaction.
   *
   * @returns false if the claim was refused. Then `work` was not called
   * @throws what `work` throws: nothing was written, unless `work` has ended the transaction itself. Then only the claim is there
   */
  async commit(
    claim: () => Value[],
    work: (database: DatabaseSync) => Value[] | undefined,
  ): Promise<boolean> {
    if (this.#database.isTransaction)
      throw new TypeError('a transaction is open on this connection: call transaction() outside of it');
    let isEnded = false;
    const act = (changes: Changes) => {
      const answer = changes.apply(COMMANDS.write, claim());
      if (answer === ANSWERS.closed) throw new StoreClosed();
      if (answer !== ANSWERS.done) return false;
      // It is gone when the function has ended the transaction, even if it has begun another one.
      this.#database.exec('SAVEPOINT oncegate');
      let values: Value[] | undefined;
      try {
        values = ofFunction(() => work(this.#database));
      } catch (error) {
        // SQLite itself ends it for some errors, and then the function has stopped at that.
        isEnded = !mayEndItself(error) && !this.#endSavepoint();
        throw error;
      }
      isEnded = !this.#endSavepoint();
      if (isEnded) throw new Thrown('', { cause: new TypeError(NOT_ENDED) });
      if (values && changes.apply(COMMANDS.write, values) !== ANSWERS.done)
        throw unavailable('the claim is gone');
      return true;
    };
    try {
      return await this.#whenFree(this.#options.timeoutMs, () => this.#inTransaction(act));
    } catch (error) {
      // What the function did after a ROLLBACK may have been committed, without the claim. It waits for as long as another process holds
      // the database, because without it the key would be free.
      if (isEnded) await this.ask(COMMANDS.write, claim, Number.POSITIVE_INFINITY).catch(() => {});
      throw error instanceof Thrown ? error.cause : error;
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
  }

  #prepare(): void {
    const database = this.#database;
    const { boot, clock, file } = this.#options;
    this.#safeJournalMode();
    // SQLite shortens what is read as one value (records.ts) to an even length there.
    if (this.#setting('encoding') !== 'UTF-8')
      throw new Error('its texts are UTF-16, which shortens answers: make it with PRAGMA encoding = UTF-8');
    try {
      database.exec('BEGIN IMMEDIATE');
      if (!hasTables(database)) this.#tables.exec(MAKE_TABLES);
      database.exec('COMMIT');
      const { format } = this.#tables.prepare(SELECT_VERSION).get() as { format: number };
      refuseOtherFormat(file, format);
      this.#offsetMs = enterBoot(this.#tables, boot, clock.monotonicMs());
    } catch (error) {
      this.#rollBack();
      throw error;
    }
    this.#inodes = inodesOfOpened(file);
  }

  /** Calls `attempt` when the connection is in no transaction, and again while another process holds the lock. */
  async #whenFree<T>(withinMs: number, attempt: () => T): Promise<T> {
    for (const startedMs = performance.now(); ; ) {
      if (this.#isClosed) throw closed();
      try {
        if (!this.#database.isTransaction) return attempt();
      } catch (error) {
        if (!isBusy(error)) throw error;
      }
      if (performance.now() - startedMs >= withinMs)
        throw unavailable('another transaction holds the database of the application');
      await sleep(SHORTEST_WAIT_MS + Math.random() * (LONGEST_WAIT_MS - SHORTEST_WAIT_MS));
    }
  }

  /** @throws SQLITE_BUSY: it has not begun */
  #inTransaction<T>(act: (changes: Changes) => T): T {
    const restore = this.#surviveCrashes();
    let [hasBegun, maybeWritten] = [false, false];
    try {
      const { file } = this.#options;
      checkInodes(file, this.#inodes);
      // With a rollback journal, readers make the COMMIT of an IMMEDIATE transaction fail.
      this.#database.exec('BEGIN EXCLUSIVE');
      hasBegun = true;
      this.#changes.begin(file, this.runningMs);
      const answer = act(this.#changes);
      this.#changes.storeClock();
      // See writer-thread.ts: a COMMIT that has failed may still count after a crash, until the next one succeeds.
      maybeWritten = true;
      this.#database.exec('COMMIT');
      this.failure = undefined;
      return answer;
    } catch (error) {
      if (!hasBegun && isBusy(error)) throw error;
      this.#rollBack();
      if (error instanceof Thrown || error instanceof StoreUnavailable) throw error;
      // Deferred foreign keys of the application are checked by COMMIT, which then has written nothing.
      if (maybeWritten && isConstraint(error)) throw new Thrown(messageOf(error), { cause: error });
      this.failure = messageOf(error);
      throw unavailable(this.failure, maybeWritten, error);
    } finally {
      restore();
    }
  }

  /** @returns false if the transaction has ended meanwhile */
  #endSavepoint(): boolean {
    try {
      this.#database.exec('RELEASE oncegate');
      return true;
    } catch {
      return false;
    }
  }

  #rollBack(): void {
    try {
      // After some errors SQLite has rolled back by itself.
      if (this.#database.isTransaction) this.#database.exec('ROLLBACK');
    } catch (error) {
      this.failure = messageOf(error);
    }
  }

  /** Read for each transaction, because the application may set it at any time. @throws {StoreUnavailable} if a crash could damage the database */
  #safeJournalMode(): unknown {
    const mode = this.#setting('journal_mode');
    if (mode === 'off' || mode === 'memory')
      throw unavailable(`journal_mode is ${mode}, so a crash damages the database: set it to WAL`);
    return mode;
  }

  /** The row is an object or an array, as the application has chosen. */
  #setting(name: string): unknown {
    return Object.values(this.#database.prepare(`PRAGMA ${name}`).get() ?? {})[0];
  }

  /**
   * Makes the next commit survive a power cut, whatever the application has set. Returns what restores its setting. OFF becomes NORMAL:
   * with OFF, a later commit of the application moves the WAL into the file and overwrites it, without a sync.
   */
  #surviveCrashes(): () => void {
    const found = Number(this.#setting('synchronous'));
    const needed = this.#safeJournalMode() === 'wal' ? FULL : EXTRA;
    if (found >= needed) return () => {};
    this.#database.exec(`PRAGMA synchronous = ${needed}`);
    return () => {
      if (!this.#database.isTransaction)
        this.#database.exec(`PRAGMA synchronous = ${Math.max(found, NORMAL)}`);
    };
  }
}

/** @throws {Thrown} */
function ofFunction<T>(act: () => T): T {
  try {
    return act();
  } catch (cause) {
    throw new Thrown('', { cause });
  }
}

/** Levels of `PRAGMA synchronous`. A rollback journal needs EXTRA, because with FULL a power cut can bring it back. */
const [NORMAL, FULL, EXTRA] = [1, 2, 3];
