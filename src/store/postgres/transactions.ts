import type { Pool, PoolClient, QueryResult } from 'pg';
import type { RecordId } from '../../lib/brands.ts';
import { pause, within } from '../../lib/clock.ts';
import {
  type Create,
  KeyLocked,
  type Replace,
  type SqlClient,
  type Transaction,
  type TransactionOptions,
  type Transactions,
} from '../register.ts';
import { type Revision, StoreClosed, StoreUnavailable } from '../types.ts';
import { bytesOf, columnsOf, commandOf } from './commands.ts';
import { configOf, failureOf, isOtherServer, limitOf, loadedPackage, NOT_WRITTEN } from './connection.ts';
import type { PostgresOptions } from './health.ts';
import type { Lanes } from './lanes.ts';

/** The connections of the register, and where they lead: the store was watched there. */
type Watched = Pick<Lanes, 'server' | 'isBusy'>;

/** See {@link Transactions}. The connections are opened when the first transaction begins. */
export class PostgresTransactions implements Transactions {
  readonly #options: PostgresOptions;
  readonly #open = new Set<PostgresTransaction>();
  readonly #lanes: Watched;
  #pool: Pool | undefined;

  constructor(options: PostgresOptions, lanes: Watched) {
    this.#options = options;
    this.#lanes = lanes;
  }

  async begin({ isolation, idleMs }: TransactionOptions): Promise<Transaction> {
    const { schema } = this.#options;
    try {
      const pool = this.#opened();
      const client = await pool.connect();
      const transaction = new PostgresTransaction(client, this.#options, this.#lanes, () =>
        this.#open.delete(transaction),
      );
      this.#open.add(transaction);
      await transaction.begin(isolation, idleMs);
      return transaction;
    } catch (error) {
      throw failureOf(error, schema, false);
    }
  }

  async claim(client: SqlClient, id: RecordId, { record, expiresInMs }: Create): Promise<boolean> {
    const members = { ...columnsOf(record), lives_ms: expiresInMs, server: this.#lanes.server };
    const answer = await this.#call(client, 'claim', commandOf('claim', id, members));
    if (answer === 'closed') throw new StoreClosed();
    if (answer === 'savepoint') throw new TypeError(IN_SAVEPOINT);
    return answer === 'done';
  }

  async complete(client: SqlClient, id: RecordId, expected: Revision, write: Replace): Promise<void> {
    const { record, expiresInMs } = write;
    const members = { ...(record && columnsOf(record)), expected: bytesOf(expected), lives_ms: expiresInMs };
    const answer = await this.#call(client, 'complete', commandOf('complete', id, members));
    if (answer === 'savepoint') throw new TypeError(IN_SAVEPOINT);
    if (answer !== 'done') throw new TypeError(IN_OTHER);
  }

  async close(): Promise<void> {
    const ended = this.#pool?.end();
    for (const transaction of this.#open) transaction.drop();
    await ended;
  }

  /** One statement with one value, whose result is one row with one column: adapters need no more. */
  async #call(client: SqlClient, name: string, command: string): Promise<unknown> {
    const { schema } = this.#options;
    try {
      const asked = client.query(`SELECT ${schema}.${name}($1) AS answer`, [command]);
      const result = await answerOf(asked, this.#options);
      const rows = Array.isArray(result) ? result : (result as { rows?: unknown } | undefined)?.rows;
      const [row] = Array.isArray(rows) ? rows : [];
      const answer = (row as { answer?: unknown } | undefined)?.answer;
      if (typeof answer !== 'string')
        throw new TypeError('the client of the transaction must return { rows } or the rows, as objects');
      return answer;
    } catch (error) {
      const failure = failureOf(error, schema, false);
      // Other errors are the application's, which knows their codes.
      throw failure instanceof KeyLocked || isOtherServer(error) ? failure : error;
    }
  }

  #opened(): Pool {
    if (!this.#pool) {
      const { Pool } = loadedPackage();
      this.#pool = new Pool({
        ...configOf(this.#options),
        connectionTimeoutMillis: limitOf(this.#options),
        max: this.#options.maxTransactions ?? 10,
      });
      // Without a listener an error on an idle connection would end the process.
      this.#pool.on('error', ignore);
    }
    return this.#pool;
  }
}

/** A transaction on a connection of the pool. */
class PostgresTransaction implements Transaction {
  /** Goes back to the pool when the transaction has ended, so the application must not use it any longer. */
  readonly client: SqlClient;
  readonly #client: PoolClient;
  readonly #options: PostgresOptions;
  readonly #lanes: Watched;
  /** Where the register's connections led when it began. A claim requires that this one leads there too. */
  readonly #server: string | undefined;
  readonly #ended: () => void;
  #pid = 0;
  #running = 0;
  #isOver = false;
  /** COMMIT was sent. */
  #isSent = false;
  #isReleased = false;
  #warning: string | undefined;

  constructor(client: PoolClient, options: PostgresOptions, lanes: Watched, ended: () => void) {
    this.#client = client;
    this.#options = options;
    this.#lanes = lanes;
    this.#server = lanes.server;
    this.#ended = ended;
    this.client = { query: (...args: unknown[]) => this.#query(args) };
    client.on('error', ignore);
    client.on('notice', this.#onNotice);
    client.on('end', this.#onEnd);
  }

  async begin(isolation: TransactionOptions['isolation'], idleMs: number): Promise<void> {
    const level = isolation.toUpperCase();
    const text = `BEGIN ISOLATION LEVEL ${level} READ WRITE; SET LOCAL idle_in_transaction_session_timeout = ${idleMs};
      SELECT pg_backend_pid() AS pid`;
    try {
      const results: unknown = await answerOf(this.#client.query(text), this.#options);
      const [, , { rows }] = results as [unknown, unknown, QueryResult<{ pid: unknown }>];
      this.#pid = Number(rows[0]?.pid);
    } catch (error) {
      this.#release(true);
      throw error;
    }
  }

  async commit(): Promise<void> {
    const { schema, timeoutMs, clock } = this.#options;
    if (this.#running > 0)
      throw new TypeError('a statement was still running when the function returned: await every statement');
    this.#isOver = true;
    this.#isSent = true;
    const answered = this.#client.query('COMMIT').then(
      (result: QueryResult) => {
        this.#release();
        return result.command;
      },
      (error: unknown) => {
        this.#release(true);
        const failure = failureOf(error, schema, true);
        throw failure.maybeWritten ? failure : error;
      },
    );
    // A wait for a standby that is away has no end. Cancelled, it would make visible what the standby does not have.
    const tag = await within(clock, answered, timeoutMs);
    if (tag === undefined) {
      void this.#dropIfForgotten();
      throw new StoreUnavailable(`postgres: no answer to COMMIT within ${timeoutMs} ms`);
    }
    if (tag !== 'COMMIT') throw new TypeError(ABORTED);
    if (this.#warning !== undefined) throw new StoreUnavailable(`postgres: ${this.#warning}`);
  }

  async rollback(): Promise<void> {
    this.#isOver = true;
    // After a COMMIT without an answer the connection is busy until there is one.
    if (this.#isReleased || this.#isSent) return;
    const { timeoutMs, clock } = this.#options;
    const answered = this.#client.query('ROLLBACK').then(() => true, ignore);
    this.#release((await within(clock, answered, timeoutMs)) !== true);
  }

  /** Ends it at once. The server may still execute a COMMIT that was sent. */
  drop(): void {
    this.#isOver = true;
    this.#release(true);
  }

  /**
   * Ends a connection whose answer to COMMIT was lost, as {@link Lanes} does: it would keep its place in the pool until TCP gives up. One
   * for which the server still waits stays.
   */
  async #dropIfForgotten(): Promise<void> {
    const { clock, timeoutMs } = this.#options;
    while (!this.#isReleased) {
      const isElsewhere = this.#lanes.server !== this.#server;
      if (isElsewhere || !(await this.#lanes.isBusy(this.#pid).catch(() => true))) this.drop();
      else await pause(clock, timeoutMs, undefined, true);
    }
  }

  /** @param isBroken the connection is closed */
  #release(isBroken = false): void {
    if (this.#isReleased) return;
    this.#isReleased = true;
    this.#client.off('notice', this.#onNotice);
    this.#client.off('end', this.#onEnd);
    if (!isBroken) this.#client.off('error', ignore);
    this.#client.release(isBroken);
    this.#ended();
  }

  /** A function that never returns must not keep its place in the pool when the server has ended its transaction. */
  #onEnd = () => this.#release(true);

  /** If the function has ended the transaction, each further statement would be committed without its key. */
  #noteEnd(): void {
    if (this.#client.getTransactionStatus() === 'I') this.#isOver = true;
  }

  /** After COMMIT, a notice says that standbys may not have the transaction. */
  #onNotice = ({ code, message }: { code?: string | undefined; message?: string | undefined }) => {
    if (this.#isOver && code !== '00000') this.#warning = message;
  };

  async #query(args: unknown[]): Promise<unknown> {
    this.#noteEnd();
    if (this.#isOver) throw new TypeError(OVER);
    this.#running++;
    try {
      const query = this.#client.query as unknown as (...args: unknown[]) => Promise<unknown>;
      return await query.apply(this.#client, args);
    } catch (error) {
      if (isOtherServer(error)) this.drop();
      throw error;
    } finally {
      this.#running--;
      this.#noteEnd();
    }
  }
}

/** @throws {StoreUnavailable} not written: there is no answer within the time limit */
async function answerOf<T>(asked: Promise<T>, { clock, timeoutMs }: PostgresOptions): Promise<T> {
  const answer = await within(
    clock,
    asked.then((value) => ({ value })),
    timeoutMs,
  );
  if (!answer) throw new StoreUnavailable(`postgres: no answer within ${timeoutMs} ms`, NOT_WRITTEN);
  return answer.value;
}

const OVER =
  'the transaction has ended: the function must await every statement, and must not end the transaction itself';
const ABORTED =
  'the transaction was aborted by an error that the function has caught: nothing was committed, and the key is free';
const IN_SAVEPOINT =
  "the record of the key must be written by the transaction itself, not in a savepoint: call it outside of the library's nested transactions";
const IN_OTHER =
  "the record of the key is not in this transaction: the function must not end the transaction itself, and startIn and completeIn must get the same transaction's client";

const ignore = () => {};
