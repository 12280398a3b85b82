import { Worker } from 'node:worker_threads';
import { afterReading, type Clock } from '../../lib/clock.ts';
import { messageOf } from '../../lib/files.ts';
import { threadFile } from '../../lib/program.ts';
import type { Emit } from '../../telemetry/emit.ts';
import { Batch, type Value } from './batch.ts';
import { unavailable } from './database.ts';
import type { FromWriter, ToWriter, WriterData } from './writer-thread.ts';

const NO_LABELS = {};

const THREAD = threadFile('store/sqlite/writer-thread');

/** The limits of a batch, so that no transaction makes other processes wait for long. */
const COMMANDS_PER_BATCH = 256;
const BYTES_PER_BATCH = 4 * 1024 * 1024;
/**
 * The thread may wait for the write lock for this share of the time limit. It answers before the limit is over, so that the
 * caller learns that nothing was written.
 */
const SHARE_FOR_BEGIN = 0.9;
const RETRY_REPLACEMENT_MS = 500;

const startThread = () => new Worker(THREAD, { name: 'sqlite-writer' });

/** A thread that waits for its first message. */
let spareThread: Worker | undefined;

/**
 * Starts the thread of the next writer, so that it starts while this thread loads modules.
 *
 * @returns a function that ends the thread if no writer has taken it
 */
export function prepareThread(): () => void {
  const thread = startThread();
  spareThread = thread;
  const isSpare = () => spareThread === thread;
  // If it fails first, the writer starts another thread, and says why that one failed.
  const forget = () => {
    if (isSpare()) spareThread = undefined;
  };
  thread.on('error', forget).once('exit', forget).unref();
  return () => {
    if (isSpare()) void thread.terminate();
    forget();
  };
}

interface Pending {
  command: number;
  /** Called when the command is sent. */
  values: () => Value[];
  askedMs: number;
  resolve(answer: never): void;
  reject(error: Error): void;
}

export interface SqliteRegisterOptions {
  /** The folder of the database. The register makes it if it is missing, readable and writable by this user only. */
  path: string;
  /** After this time a write fails with StoreUnavailable, though it may still happen. */
  timeoutMs: number;
  clock: Clock;
  /** New executions are refused while the disk has less free space than this. Default: 64 MiB. */
  keepFreeBytes?: number;
  emit?: Emit;
  /** The file with the boot id. Default: that of Linux. */
  bootIdFile?: string;
}

/** Who applies the commands of a register: the writer thread, or the connection of an application. */
export type CommandWriter = Pick<Writer, 'failure' | 'queued' | 'runningMs' | 'ask' | 'close'>;

export type WriterOptions = Omit<SqliteRegisterOptions, 'path'> & Pick<WriterData, 'file' | 'boot'>;

/**
 * The main thread's side of the writer. The thread commits one batch at a time, and all commands that arrive meanwhile form
 * the next batch. So the event loop never waits for the disk, and a busy gateway syncs the disk once for many writes.
 */
export class Writer {
  /** Why the last batch could not be written. Undefined after the next write that succeeds. */
  failure: string | undefined;
  readonly #options: WriterOptions;
  readonly #batch = new Batch();
  #offsetMs = 0;
  /** Those of the database's files. A thread that is replaced must not go on in others. */
  #inodes: readonly string[] | undefined;
  #timer: NodeJS.Timeout | undefined;
  #thread: Worker | undefined;
  #queue: Pending[] = [];
  /** The commands of the batch that the thread has. */
  #underWay: Pending[] = [];
  #isScheduled = false;
  #isClosed = false;
  #closed = () => {};

  /** @throws {StoreUnavailable} with a message for the operator, if the database cannot be opened */
  static async open(options: WriterOptions): Promise<Writer> {
    const writer = new Writer(options);
    writer.#offsetMs = await writer.#startThread();
    return writer;
  }

  private constructor(options: WriterOptions) {
    this.#options = options;
  }

  get queued(): number {
    return this.#queue.length;
  }

  get runningMs(): number {
    return this.#options.clock.monotonicMs() + this.#offsetMs;
  }

  /**
   * @param values called when the command is sent, so that a batch can copy them at once
   * @throws {StoreUnavailable}
   */
  ask<Answer>(command: number, values: () => Value[] = () => []): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) throw closed();
      this.#queue.push({ command, values, askedMs: performance.now(), resolve, reject });
      this.#timer ??= this.#scheduleTimeouts();
      this.#schedule();
    });
  }

  /** Resolves when all commands are answered and the thread has ended. */
  close(): Promise<void> {
    this.#isClosed = true;
    return new Promise((resolve) => {
      this.#closed = resolve;
      this.#next();
    });
  }

  #schedule(): void {
    if (this.#isScheduled || this.#underWay.length > 0 || !this.#thread || this.#queue.length === 0) return;
    this.#isScheduled = true;
    // All commands of this turn of the event loop and of the next one share a batch. Under load, batches of one turn only take
    // a seventh more CPU time for a payout, because there are more commits. An idle event loop takes a second turn at once.
    setImmediate(() => setImmediate(() => this.#sendBatch()));
  }

  #sendBatch(): void {
    this.#isScheduled = false;
    const [first] = this.#queue;
    if (!this.#thread || !first) return;
    let count = 0;
    this.#batch.clear();
    for (const pending of this.#queue) {
      if (this.#underWay.length === COMMANDS_PER_BATCH || this.#batch.size >= BYTES_PER_BATCH) break;
      if (this.#encode(pending)) this.#underWay.push(pending);
      count++;
    }
    this.#queue.splice(0, count);
    if (this.#underWay.length === 0) {
      this.#next();
      return;
    }
    const beginByMs = first.askedMs + this.#options.timeoutMs * SHARE_FOR_BEGIN;
    const beginWithinMs = Math.max(0, beginByMs - performance.now());
    const message: ToWriter = { memory: this.#batch.finish(), runningMs: this.runningMs, beginWithinMs };
    this.#thread.postMessage(message);
  }

  /** A command that cannot be encoded fails alone. */
  #encode({ command, values, reject }: Pending): boolean {
    try {
      this.#batch.add(command, values());
      return true;
    } catch (error) {
      reject(error as Error);
      return false;
    }
  }

  #answered(answer: Exclude<FromWriter, { kind: 'ready' }>): void {
    const pending = this.#underWay;
    this.#underWay = [];
    if (answer.kind === 'failed') {
      const { message, maybeWritten, isLocked } = answer;
      if (!isLocked) this.failure = message;
      for (const { reject } of pending) reject(unavailable(message, maybeWritten));
    } else {
      if (answer.wrote) {
        this.failure = undefined;
        this.#options.emit?.('sqliteCommitSeconds', NO_LABELS, answer.tookMs / 1000);
      }
      for (const [i, { resolve }] of pending.entries()) resolve(answer.answers[i] as never);
    }
    this.#next();
  }

  /** Goes on with the queue. If it is closed and empty, ends the thread. */
  #next(): void {
    this.#schedule();
    if (!this.#isDrained()) return;
    clearTimeout(this.#timer);
    const [thread, closed] = [this.#thread, this.#closed];
    this.#closed = () => {};
    // The exit of this thread is intended, so it must not be replaced.
    this.#thread = undefined;
    if (thread) {
      thread.ref();
      thread.once('exit', closed);
      thread.postMessage('close' satisfies ToWriter);
    } else closed();
  }

  /** One timer serves all commands, because a timer for each would cost more than its message. */
  #scheduleTimeouts(): NodeJS.Timeout {
    const check = () => {
      this.#rejectLate();
      const isIdle = this.#queue.length === 0 && this.#underWay.length === 0;
      this.#timer = isIdle ? undefined : this.#scheduleTimeouts();
    };
    return setTimeout(() => afterReading(check), Math.max(5, this.#options.timeoutMs / 20));
  }

  /** Late commands in the thread may still be written. Late commands in the queue are removed from it. */
  #rejectLate(): void {
    const { timeoutMs } = this.#options;
    const latestMs = performance.now() - timeoutMs;
    const isLate = ({ askedMs }: Pending) => askedMs <= latestMs;
    const message = `no answer within ${timeoutMs} ms`;
    for (const { reject } of this.#underWay.filter(isLate)) reject(unavailable(message, true));
    for (const { reject } of this.#queue.filter(isLate)) reject(unavailable(message));
    this.#queue = this.#queue.filter((pending) => !isLate(pending));
    this.#next();
  }

  /** Resolves to the offset of running time. */
  async #startThread(): Promise<number> {
    const { file, boot, timeoutMs, clock } = this.#options;
    const thread = spareThread ?? startThread();
    spareThread = undefined;
    thread.ref();
    let cause: Error | undefined;
    thread.on('error', (error) => {
      cause = error as Error;
    });
    return await new Promise((resolve, reject) => {
      thread.on('message', (message: FromWriter) => {
        if (message.kind !== 'ready') return this.#answered(message);
        // An idle store must not keep the process alive. A pending command does so by its timer.
        thread.unref();
        this.#thread = thread;
        this.#inodes = message.inodes;
        resolve(message.offsetMs);
        this.#next();
      });
      thread.once('exit', (code) => {
        const error = cause ?? new Error(`the writer thread ended with code ${code}`);
        reject(unavailable(messageOf(error)));
        if (this.#thread === thread) this.#lostThread(error);
      });
      const monotonicMs = clock.monotonicMs();
      const data: WriterData = { file, boot, timeoutMs, monotonicMs, inodes: this.#inodes };
      thread.postMessage(data);
    });
  }

  /** The batch in the dead thread may have been written. The commands in the queue go to the next thread. */
  #lostThread(error: Error): void {
    this.#thread = undefined;
    for (const { reject } of this.#underWay)
      reject(unavailable(`the writer thread died: ${messageOf(error)}`, true));
    this.#underWay = [];
    if (this.#isDrained()) this.#next();
    else {
      this.#options.emit?.('writer_replaced', { err: error });
      this.#replaceThread();
    }
  }

  #isDrained = () => this.#isClosed && this.#queue.length === 0 && this.#underWay.length === 0;

  #replaceThread(): void {
    this.#startThread().catch((error) => {
      this.failure = messageOf(error);
      if (this.#isDrained()) this.#next();
      else setTimeout(() => this.#replaceThread(), RETRY_REPLACEMENT_MS).unref();
    });
  }
}

export const closed = () => unavailable('the store is closed');
