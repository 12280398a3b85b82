import { Worker } from 'node:worker_threads';
import type { Scope } from '../../../lib/brands.ts';
import { afterReading } from '../../../lib/clock.ts';
import { threadFile } from '../../../lib/program-files.ts';
import { StoreUnavailable } from '../../contract.ts';
import type { Create, Replace, Reply } from '../../register.ts';
import { ANSWERS, Batch, type OtherCommand } from './commands.ts';
import { messageOf } from './database.ts';
import type { BatchAnswer, FromWriter, ToWriter, WriterData } from './writer-thread.ts';

const THREAD = threadFile('store/sqlite/v3/writer-thread');

/** The limits of a batch, so that no transaction makes other processes wait for long. */
const COMMANDS_PER_BATCH = 256;
const BYTES_PER_BATCH = 4 * 1024 * 1024;
/** Memory of larger batches is not kept for later ones. */
const BYTES_KEPT = 1024 * 1024;
/**
 * The thread may wait for the write lock for this share of the time limit. It answers before the limit is over, so that the
 * caller learns that nothing was written.
 */
const SHARE_FOR_BEGIN = 0.9;
const RETRY_REPLACEMENT_MS = 500;

/** A thread that waits for its first message. */
let spareThread: Worker | undefined;

/**
 * Starts the thread of the next writer, so that it starts while this thread loads modules.
 *
 * @returns ends the thread if no writer took it
 */
export function prepareThread(): () => void {
  const thread = startThread();
  const isSpare = () => spareThread === thread;
  // If it fails first, the writer starts another thread, and says why that one failed.
  const forget = () => {
    if (isSpare()) spareThread = undefined;
  };
  thread.on('error', forget).once('exit', forget).unref();
  spareThread = thread;
  return () => {
    if (isSpare()) void thread.terminate();
    forget();
  };
}

function takeThread(): Worker {
  const thread = spareThread ?? startThread();
  spareThread = undefined;
  thread.ref();
  return thread;
}

const startThread = () => new Worker(THREAD, { name: 'sqlite-writer' });

/** A command that is not answered yet. */
interface Pending {
  /** Of a create or a replace. */
  id: Scope | undefined;
  write: Create | Replace | undefined;
  /** In its batch. */
  place: number;
  askedMs: number;
  resolve(answer: unknown): void;
  reject(error: Error): void;
}

class PendingBatch extends Batch {
  pending: Pending[] = [];
}

export interface WriterOptions {
  data: Omit<WriterData, 'monotonicMs'>;
  monotonicMs(): number;
  /** What the store holds, for a create or a replace that was refused. */
  refused(id: Scope, write: Create | Replace): Promise<Reply>;
  /** Called when the thread has died, before a new one replaces it. */
  onReplaced(error: Error): void;
  /** Called for each transaction that changed something. */
  onCommitted(ms: number): void;
}

/**
 * The main thread's side of the writer. The thread commits one batch at a time, and all commands that arrive meanwhile form
 * the next batch. So the event loop never waits for the disk, and a busy gateway syncs the disk once for many writes.
 */
export class Writer {
  /** Why the last batch could not be written. Undefined after the next write that succeeds. */
  failure: string | undefined;
  /** Running time minus the monotonic clock. */
  offsetMs = 0;
  readonly #options: WriterOptions;
  #timer: NodeJS.Timeout | undefined;
  #thread: Worker | undefined;
  #queue: PendingBatch[] = [];
  #underWay: PendingBatch | undefined;
  #memory: Buffer | undefined;
  #isScheduled = false;
  #closing: (() => void) | undefined;
  #isClosed = false;

  /** @throws {StoreUnavailable} with a message for the operator, if the database cannot be opened */
  static async open(options: WriterOptions): Promise<Writer> {
    const writer = new Writer(options);
    writer.offsetMs = await writer.#startThread();
    return writer;
  }

  private constructor(options: WriterOptions) {
    this.#options = options;
  }

  /** Commands that wait for the end of the transaction before theirs. */
  get queued(): number {
    return this.#queue.reduce((sum, { count }) => sum + count, 0);
  }

  get runningMs(): number {
    return this.#options.monotonicMs() + this.offsetMs;
  }

  /** @throws {StoreUnavailable} */
  write(id: Scope, write: Create | Replace): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const batch = this.#batch();
      const place = write.kind === 'create' ? batch.create(id, write) : batch.replace(id, write);
      this.#add(batch, { id, write, place, askedMs: performance.now(), resolve: resolve as never, reject });
    });
  }

  /** @throws {StoreUnavailable} */
  other<Answer>(command: OtherCommand): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const batch = this.#batch();
      const askedMs = performance.now();
      const place = batch.other(command);
      const pending = { id: undefined, write: undefined, place, askedMs, resolve: resolve as never, reject };
      this.#add(batch, pending);
    });
  }

  /** Resolves when all commands are answered and the thread has ended. */
  async close(): Promise<void> {
    this.#isClosed = true;
    if (this.#queue.length > 0 || this.#underWay)
      await new Promise<void>((resolve) => {
        this.#closing = resolve;
      });
    clearTimeout(this.#timer);
    const thread = this.#thread;
    if (!thread) return;
    // The exit of this thread is intended, so it must not be replaced.
    this.#thread = undefined;
    thread.ref();
    await new Promise((resolve) => {
      thread.once('exit', resolve);
      post(thread, 'close');
    });
  }

  /** The batch that takes the next command. */
  #batch(): PendingBatch {
    if (this.#isClosed) throw closed();
    const last = this.#queue.at(-1);
    if (last && last.count < COMMANDS_PER_BATCH && last.size < BYTES_PER_BATCH) return last;
    const batch = new PendingBatch(this.#memory);
    this.#memory = undefined;
    this.#queue.push(batch);
    return batch;
  }

  #add(batch: PendingBatch, pending: Pending): void {
    batch.pending.push(pending);
    this.#timer ??= this.#scheduleTimeouts();
    this.#schedule();
  }

  #schedule(): void {
    if (this.#isScheduled || this.#underWay || !this.#thread || this.#queue.length === 0) return;
    this.#isScheduled = true;
    // All commands of this turn of the event loop and of the next one share a batch. Under load, batches of one turn only take
    // a seventh more CPU time for a payout, because there are more commits. An idle event loop takes a second turn at once.
    setImmediate(() => setImmediate(this.#sendBatch));
  }

  readonly #sendBatch = (): void => {
    this.#isScheduled = false;
    const thread = this.#thread;
    const batch = thread && this.#queue.shift();
    if (!batch) return;
    this.#underWay = batch;
    const beginByMs = (batch.pending[0]?.askedMs ?? 0) + this.#options.data.timeoutMs * SHARE_FOR_BEGIN;
    const bytes = batch.finish(this.runningMs, Math.max(0, beginByMs - performance.now()));
    thread.postMessage(bytes satisfies ToWriter, [bytes.buffer as ArrayBuffer]);
  };

  #answered(answer: BatchAnswer): void {
    const pending = this.#underWay?.pending ?? [];
    this.#underWay = undefined;
    if (answer.kind === 'committed') {
      if (answer.wrote) {
        this.failure = undefined;
        this.#options.onCommitted(answer.tookMs);
      }
      this.#resolve(pending, answer.bytes, answer.others);
      if (answer.bytes.length <= BYTES_KEPT) this.#memory = Buffer.from(answer.bytes.buffer as ArrayBuffer);
    } else {
      const { message, maybeWritten, isBusy } = answer;
      if (!isBusy) this.failure = message;
      for (const { reject } of pending) reject(unavailable(message, maybeWritten));
    }
    this.#next();
  }

  #resolve(pending: Pending[], answers: Uint8Array, others: unknown[]): void {
    for (const [i, { id, write, resolve, reject }] of pending.entries()) {
      if (!id || !write) resolve(others[i]);
      else if (answers[i] === ANSWERS.done) resolve(DONE);
      else if (answers[i] === ANSWERS.refused) resolve(this.#options.refused(id, write));
      else if (answers[i] === ANSWERS.void)
        reject(unavailable('the execution was given up: its token is void', false));
      else reject(unavailable(CLOSED, false));
    }
  }

  #next(): void {
    if (this.#queue.length > 0) this.#schedule();
    else this.#closing?.();
  }

  /** One timer serves all commands, because a timer for each would cost more than its message. */
  #scheduleTimeouts(): NodeJS.Timeout {
    return setTimeout(
      () =>
        afterReading(() => {
          this.#rejectLate();
          const isIdle = this.#queue.length === 0 && !this.#underWay;
          this.#timer = isIdle ? undefined : this.#scheduleTimeouts();
        }),
      Math.max(5, this.#options.data.timeoutMs / 20),
    );
  }

  /** Late commands in the thread may still be written. Late commands in the queue are removed from it. */
  #rejectLate(): void {
    const { timeoutMs } = this.#options.data;
    const latestMs = performance.now() - timeoutMs;
    const message = `no answer within ${timeoutMs} ms`;
    for (const { askedMs, reject } of this.#underWay?.pending ?? [])
      if (askedMs <= latestMs) reject(unavailable(message, true));
    const isLate = ({ askedMs }: Pending) => askedMs <= latestMs;
    for (const batch of this.#queue)
      for (const pending of batch.pending.filter(isLate)) {
        pending.reject(unavailable(message, false));
        batch.remove(pending.place);
      }
    const before = this.#queue.length;
    this.#queue = this.#queue.filter(({ pending }) => !pending.every(isLate));
    if (this.#queue.length < before && !this.#underWay) this.#next();
  }

  /** Resolves to the offset of running time. */
  async #startThread(): Promise<number> {
    const thread = takeThread();
    let cause: Error | undefined;
    thread.on('error', (error) => {
      cause = error as Error;
    });
    return await new Promise((resolve, reject) => {
      thread.on('message', (message: FromWriter) => {
        if (message.kind === 'ready') {
          // An idle store must not keep the process alive. A pending command does so by its timer.
          thread.unref();
          if (this.#isDrained()) return void post(thread, 'close');
          this.#thread = thread;
          resolve(message.offsetMs);
          this.#schedule();
        } else if (message.kind === 'refused') reject(unavailable(message.message, false));
        else this.#answered(message);
      });
      post(thread, { ...this.#options.data, monotonicMs: this.#options.monotonicMs() });
      thread.once('exit', (code) => {
        const error = cause ?? new Error(`the writer thread ended with code ${code}`);
        reject(unavailable(messageOf(error), false));
        if (this.#thread === thread) this.#lostThread(error);
      });
    });
  }

  /** The batch in the dead thread may have been written. The commands in the queue go to the next thread. */
  #lostThread(error: Error): void {
    this.#thread = undefined;
    const batch = this.#underWay?.pending ?? [];
    this.#underWay = undefined;
    for (const { reject } of batch) reject(unavailable(`the writer thread died: ${messageOf(error)}`, true));
    if (this.#isDrained()) this.#closing?.();
    else {
      this.#options.onReplaced(error);
      this.#replaceThread();
    }
  }

  #isDrained = () => this.#isClosed && this.#queue.length === 0;

  #replaceThread(): void {
    this.#startThread().catch((error) => {
      this.failure = messageOf(error);
      if (this.#isDrained()) this.#closing?.();
      else setTimeout(() => this.#replaceThread(), RETRY_REPLACEMENT_MS).unref();
    });
  }
}

export const CLOSED = 'the store is closed, because its records are being copied to another store, or were';

export const DONE: Reply = { done: true };

const post = (thread: Worker, message: ToWriter) => thread.postMessage(message);

const unavailable = (message: string, maybeWritten: boolean) =>
  new StoreUnavailable(`sqlite: ${message}`, { maybeWritten });

export const closed = () => new StoreUnavailable('the store is closed', { maybeWritten: false });
