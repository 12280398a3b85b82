import { setTimeout as sleep } from 'node:timers/promises';
import { afterReading } from '../../lib/clock.ts';
import { StoreUnavailable } from '../types.ts';
import { Batches, type Change, type Command, nextBatch, type Pending } from './batch.ts';
import { Connection, failureOf, NOT_WRITTEN, type ServerOptions } from './connection.ts';

/** Connections that write, and those that read: a read never waits behind a write that waits for a standby. */
const WRITERS = 4;
const READERS = 2;
const LOOK_EVERY_MS = 250;
const RETRY_MS = 100;
/** Why a server that is starting cannot be reached: its port, its name, or itself says so. */
const STARTING: ReadonlySet<unknown> = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ENOTFOUND',
  'EAI_AGAIN',
  '57P03',
]);
/** A write that works is not cancelled, because its repetition would take as long: a large response would never be stored. */
const LONGEST_WRITE_MS = 60_000;

/** A connection that is opened again when it ends. */
interface Lane {
  connection?: Connection | undefined;
  isConnecting: boolean;
  /** When the statement was sent that is under way. */
  sentMs?: number | undefined;
}

const isIdle = ({ connection, sentMs }: Lane) => connection?.isOpen && sentMs === undefined;

const newLanes = (number: number): Lane[] => Array.from({ length: number }, () => ({ isConnecting: false }));

/**
 * The connections of a register. All commands of one turn of the event loop, and those that arrive while every connection writes, form a
 * batch, which is one transaction.
 *
 * **A write without an answer is not cancelled.** A backend of PostgreSQL that waits for a standby holds a transaction that nobody
 * sees yet. Cancelled, it would be visible without being on the standby. So its commands fail after their time limit, its connection
 * stays busy until the server answers, and nothing grows. It is dropped only if the server has nothing to do for it (the answer was
 * lost), answers nothing at all, or is no longer where the address leads.
 */
export class Lanes {
  /** Names the server process that was reached last. */
  server: string | undefined;
  /** Another one for each time that no connection was left. A server that has recovered from a crash keeps its name, and not every table. */
  connection: string | undefined;
  /** Why no connection could be opened last. */
  failure: string | undefined;
  readonly #options: ServerOptions;
  readonly #batches: Batches;
  readonly #writers = newLanes(WRITERS);
  readonly #readers = newLanes(READERS);
  readonly #all: readonly Lane[] = [...this.#writers, ...this.#readers];
  #queue: Pending[] = [];
  #underWay = new Set<Pending>();
  #waitingReads: ((lane: Lane | undefined) => void)[] = [];
  #isScheduled = false;
  #isClosed = false;
  #timer: NodeJS.Timeout | undefined;
  readonly #listeners: (() => void)[] = [];
  #times = 0;
  #looking: NodeJS.Timeout | undefined;
  /** When it was last asked what became of writes without an answer. */
  #lookedMs = Number.NEGATIVE_INFINITY;

  constructor(options: ServerOptions) {
    this.#options = options;
    this.#batches = new Batches(options.schema);
  }

  /** Opens a connection of each kind, and the others in the background. @throws {StoreUnavailable} with a message for the operator */
  async open(): Promise<void> {
    const untilMs = performance.now() + this.#options.connectTimeoutMs;
    for (const [lane] of [this.#readers, this.#writers]) await this.#connectBy(lane as Lane, untilMs);
    for (const lane of this.#all) if (!lane.connection) this.#connect(lane).catch(ignore);
    // Only now: before, it would open a second connection for a lane, and nobody would close the first one.
    this.#looking = setInterval(() => void this.#look(), LOOK_EVERY_MS).unref();
  }

  onConnected(act: () => void): void {
    this.#listeners.push(act);
  }

  get isConnected(): boolean {
    for (const { connection } of this.#all) if (connection?.isOpen) return true;
    return false;
  }

  /** Adds a command to the next batch, or a statement after it. */
  write(command: Command | Change): void {
    if (this.#isClosed) {
      command.reject(closed());
      return;
    }
    this.#queue.push({ ...command, askedMs: performance.now() });
    this.#timer ??= this.#scheduleTimeouts();
    this.#schedule();
  }

  /** Runs a statement that writes what needs no batch. @throws {StoreUnavailable} */
  change<Row extends unknown[]>(text: string, values: unknown[] = []): Promise<Row[]> {
    return new Promise((resolve, reject) => {
      this.write({ text, values, resolve: resolve as Change['resolve'], reject });
    });
  }

  /** Runs a statement that only reads. @throws {StoreUnavailable} */
  async ask<Row extends unknown[]>(text: string, values: unknown[] = []): Promise<Row[]> {
    const { timeoutMs, schema } = this.#options;
    const startedMs = performance.now();
    const lane = await this.#readerWithin(timeoutMs);
    const connection = lane?.connection;
    if (!lane || !connection) throw this.#notConnected();
    let isOver = false;
    // A read holds nothing, so its connection can be dropped.
    const timer = setTimeout(
      () =>
        afterReading(() => {
          if (!isOver) connection.drop();
        }),
      Math.max(1, timeoutMs - (performance.now() - startedMs)),
    );
    try {
      return await connection.run<Row>({ name: '', text }, values);
    } catch (error) {
      if (!connection.isOpen && !(error instanceof StoreUnavailable))
        throw new StoreUnavailable(`postgres: no answer within ${timeoutMs} ms`, {
          maybeWritten: false,
          cause: error,
        });
      throw failureOf(error, schema, false);
    } finally {
      isOver = true;
      clearTimeout(timer);
      this.#free(lane);
    }
  }

  /** Works on a connection of its own. @throws {StoreUnavailable} */
  async apart<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    const connection = await Connection.open(this.#options, ignore);
    try {
      return await work(connection);
    } catch (error) {
      throw failureOf(error, this.#options.schema, true);
    } finally {
      await connection.close();
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearInterval(this.#looking);
    clearTimeout(this.#timer);
    for (const { reject } of this.#queue) reject(closed());
    for (const { reject } of this.#underWay) reject(new StoreUnavailable('postgres: the store is closed'));
    for (const give of this.#waitingReads) give(undefined);
    await Promise.all(
      this.#all.map(({ connection, sentMs }) =>
        sentMs === undefined ? connection?.close() : connection?.drop(),
      ),
    );
  }

  /** Tries again while the server is not there, because it may be starting together with this process. */
  async #connectBy(lane: Lane, untilMs: number): Promise<void> {
    for (;;) {
      try {
        await this.#connect(lane, Math.max(1, Math.ceil(untilMs - performance.now())));
        return;
      } catch (error) {
        const { code } = ((error as Error).cause ?? {}) as { code?: string };
        if (!STARTING.has(code) || performance.now() + RETRY_MS > untilMs) throw error;
        await sleep(RETRY_MS);
      }
    }
  }

  async #connect(lane: Lane, limitMs?: number): Promise<void> {
    lane.isConnecting = true;
    let connection: Connection | undefined;
    try {
      const { timeoutMs } = this.#options;
      const statementMs = this.#readers.includes(lane) ? timeoutMs : Math.max(timeoutMs, LONGEST_WRITE_MS);
      const options = { ...this.#options, statementMs };
      const ended = () => this.#ended(lane, connection);
      connection = await Connection.open(options, ended, undefined, limitMs);
      if (this.#isClosed) return connection.drop();
      if (connection.server !== this.server || !this.isConnected) this.#isOtherServer(connection.server);
      lane.connection = connection;
      this.failure = undefined;
    } catch (error) {
      this.failure = (error as Error).message;
      throw error;
    } finally {
      lane.isConnecting = false;
    }
    this.#free(lane);
    this.#schedule();
  }

  /** After a failover some connections may still lead to the server before. What waits was meant for it, too. */
  #isOtherServer(server: string): void {
    this.server = server;
    this.connection = `${server} ${++this.#times}`;
    for (const { reject } of this.#queue.splice(0))
      reject(new StoreUnavailable('postgres: it was connected again', NOT_WRITTEN));
    for (const { connection } of this.#all) if (connection && connection.server !== server) connection.drop();
    for (const act of this.#listeners) act();
  }

  #ended(lane: Lane, connection: Connection | undefined): void {
    if (!connection || lane.connection !== connection) return;
    lane.connection = undefined;
  }

  #schedule(): void {
    if (this.#isScheduled || this.#queue.length === 0) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      for (const lane of this.#writers)
        if (this.#queue.length > 0 && lane.connection?.isOpen && lane.sentMs === undefined)
          void this.#send(lane, nextBatch(this.#queue));
    });
  }

  async #send(lane: Lane, batch: Pending[]): Promise<void> {
    lane.sentMs = performance.now();
    for (const pending of batch) this.#underWay.add(pending);
    await this.#batches.apply(lane.connection as Connection, batch);
    for (const pending of batch) this.#underWay.delete(pending);
    lane.sentMs = undefined;
    this.#schedule();
  }

  #readerWithin(ms: number): Promise<Lane | undefined> {
    const lane = this.#readers.find(isIdle);
    if (lane) {
      lane.sentMs = performance.now();
      return Promise.resolve(lane);
    }
    return new Promise((resolve) => {
      const give = (lane: Lane | undefined) => {
        clearTimeout(timer);
        resolve(lane);
      };
      const timer = setTimeout(() => {
        this.#waitingReads.splice(this.#waitingReads.indexOf(give), 1);
        resolve(undefined);
      }, ms);
      this.#waitingReads.push(give);
    });
  }

  /** A reader has nothing to do. */
  #free(lane: Lane): void {
    lane.sentMs = undefined;
    if (!this.#readers.includes(lane) || !lane.connection?.isOpen) return;
    const give = this.#waitingReads.shift();
    if (!give) return;
    lane.sentMs = performance.now();
    give(lane);
  }

  #notConnected(): StoreUnavailable {
    const why = this.failure ?? 'no connection is free';
    return new StoreUnavailable(why.startsWith('postgres') ? why : `postgres: ${why}`, NOT_WRITTEN);
  }

  /** One timer serves all commands. */
  #scheduleTimeouts(): NodeJS.Timeout {
    const check = () => {
      const { timeoutMs } = this.#options;
      const latestMs = performance.now() - timeoutMs;
      const isLate = ({ askedMs }: Pending) => askedMs <= latestMs;
      const late = this.#queue.filter(isLate);
      this.#queue = this.#queue.filter((pending) => !isLate(pending));
      for (const { reject } of late)
        reject(this.isConnected ? noAnswer(timeoutMs, NOT_WRITTEN) : this.#notConnected());
      for (const pending of this.#underWay) if (isLate(pending)) pending.reject(noAnswer(timeoutMs));
      this.#timer = this.#queue.length + this.#underWay.size === 0 ? undefined : this.#scheduleTimeouts();
    };
    return setTimeout(() => afterReading(check), Math.max(5, this.#options.timeoutMs / 20));
  }

  /** Opens connections that have ended, and finds those whose server has forgotten them. */
  async #look(): Promise<void> {
    for (const lane of this.#all)
      if (!lane.connection?.isOpen && !lane.isConnecting && !this.#isClosed)
        this.#connect(lane).catch(ignore);
    const nowMs = performance.now();
    const latestMs = nowMs - this.#options.timeoutMs;
    const hung = this.#writers
      .filter(({ connection, sentMs = Number.POSITIVE_INFINITY }) => connection?.isOpen && sentMs < latestMs)
      .map((lane) => ({ lane, sentMs: lane.sentMs, connection: lane.connection as Connection }));
    if (hung.length === 0 || this.#lookedMs > latestMs) return;
    this.#lookedMs = nowMs;
    // A new connection, because the address may lead to another server meanwhile.
    const reader = this.#readers.find(isIdle);
    reader?.connection?.drop();
    if (reader) await this.#connect(reader).catch(ignore);
    const pids = await this.#busyOf(hung.map(({ connection }) => connection.pid));
    // Whose answer has arrived meanwhile is not forgotten, and may write again by now.
    for (const { lane, sentMs, connection } of hung)
      if (lane.sentMs === sentMs && !pids.includes(connection.pid)) connection.drop();
  }

  /** Which of its backends still have something to do: none if the server answers nothing. */
  async #busyOf(pids: number[]): Promise<number[]> {
    if (!this.#readers.some(({ connection }) => connection?.isOpen)) return [];
    return await this.#busy(pids).catch(() => pids);
  }

  /** Whether this backend of the server still has something to do. @throws {StoreUnavailable} */
  async isBusy(pid: number): Promise<boolean> {
    return (await this.#busy([pid])).length > 0;
  }

  async #busy(pids: number[]): Promise<number[]> {
    const text = `SELECT pid FROM pg_stat_activity WHERE pid = ANY($1) AND state <> 'idle'`;
    return (await this.ask<[number]>(text, [pids])).map(([pid]) => pid);
  }
}

const ignore = () => {};

const closed = () => new StoreUnavailable('postgres: the store is closed', NOT_WRITTEN);

const noAnswer = (timeoutMs: number, options?: typeof NOT_WRITTEN) =>
  new StoreUnavailable(`postgres: no answer within ${timeoutMs} ms`, options);
