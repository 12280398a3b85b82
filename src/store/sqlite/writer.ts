import { Worker } from 'node:worker_threads';
import type { Scope } from '../../lib/brands.ts';
import { afterReading } from '../../lib/clock.ts';
import { threadFile } from '../../lib/program-files.ts';
import { StoreClosed, StoreUnavailable } from '../contract.ts';
import type { Create, Replace, Reply, Seen } from '../register.ts';
import { ANSWERS, Batch, COMMANDS, type Value } from './batch.ts';
import { valuesOfWrite } from './changes.ts';
import { messageOf } from './database.ts';
import type { FromWriter, ToWriter, WriterData } from './writer-thread.ts';

const THREAD = threadFile('store/sqlite/writer-thread');

/** The limits of a batch, so that no transaction makes other processes wait for long. */
const COMMANDS_PER_BATCH = 256;
const BYTES_PER_BATCH = 4 * 1024 * 1024;
/** Memory of a larger batch is not kept for a later one. */
const BYTES_KEPT = 1024 * 1024;
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
 * @returns ends the thread if no writer took it
 */
export function prepareThread(): () => void {
  const thread = startThread();
  const isTaken = () => spareThread !== thread;
  // If it fails first, the writer starts another thread, and says why that one failed.
  const forget = () => {
    if (!isTaken()) spareThread = undefined;
  };
  thread.on('error', forget).once('exit', forget).unref();
  spareThread = thread;
  return () => {
    if (!isTaken()) void thread.terminate();
    forget();
  };
}

/** A command that is not answered yet. */
interface Pending {
  /** Of a create or a replace. */
  id: Scope | undefined;
  /** In its batch. */
  place: number;
  askedMs: number;
  resolve(answer: unknown): void;
  reject(error: Error): void;
}

class PendingBatch extends Batch {
  readonly pending: Pending[] = [];
}

export interface WriterOptions {
  data: Omit<WriterData, 'monotonicMs'>;
  monotonicMs(): number;
  /** What the store holds, for a create or a replace that was refused. */
  held(id: Scope): Promise<Seen | undefined>;
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
  readonly #options: WriterOptions;
  #offsetMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #thread: Worker | undefined;
  #queue: PendingBatch[] = [];
  #underWay: PendingBatch | undefined;
  /** Memory of a batch that was answered. */
  #memory: Batch['memory'] | undefined;
  #isScheduled = false;
  #closing: (() => void) | undefined;
  #isClosed = false;

  /** @throws {StoreUnavailable} with a message for the operator, if the database cannot be opened */
  static async open(options: WriterOptions): Promise<Writer> {
    const writer = new Writer(options);
    writer.#offsetMs = await writer.#startThread();
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
    return this.#options.monotonicMs() + this.#offsetMs;
  }

  /** @throws {StoreUnavailable} */
  write(id: Scope, write: Create | Replace): Promise<Reply> {
    return this.#ask(COMMANDS[write.kind], valuesOfWrite(id, write, this.runningMs), id);
  }

  /** @throws {StoreUnavailable} */
  ask<Answer>(command: number, ...values: Value[]): Promise<Answer> {
    return this.#ask(command, values);
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

  #ask<Answer>(command: number, values: Value[], id?: Scope): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) throw closed();
      let batch = this.#queue.at(-1);
      if (!batch || batch.count >= COMMANDS_PER_BATCH || batch.size >= BYTES_PER_BATCH) {
        batch = new PendingBatch(this.#memory);
        this.#memory = undefined;
        this.#queue.push(batch);
      }
      const place = batch.add(command, values);
      const askedMs = performance.now();
      batch.pending.push({
        id,
        place,
        askedMs,
        resolve: resolve as (answer: unknown) => void,
        reject,
      });
      this.#timer ??= this.#scheduleTimeouts();
      this.#schedule();
    });
  }

  #schedule(): void {
    if (this.#isScheduled || this.#underWay || !this.#thread || this.#queue.length === 0) return;
    this.#isScheduled = true;
    // All commands of this turn of the event loop and of the next one share a batch. Under load, batches of one turn only take
    // a seventh more CPU time for a payout, because there are more commits. An idle event loop takes a second turn at once.
    setImmediate(() => setImmediate(() => this.#sendBatch()));
  }

  #sendBatch(): void {
    this.#isScheduled = false;
    const batch = this.#thread && this.#queue.shift();
    if (!this.#thread || !batch) return;
    this.#underWay = batch;
    const beginByMs = (batch.pending[0]?.askedMs ?? 0) + this.#options.data.timeoutMs * SHARE_FOR_BEGIN;
    const beginWithinMs = Math.max(0, beginByMs - performance.now());
    post(this.#thread, { memory: batch.finish(), runningMs: this.runningMs, beginWithinMs });
  }

  #answered(answer: Extract<FromWriter, { kind: 'committed' | 'failed' }>): void {
    const { pending = [], memory } = this.#underWay ?? {};
    this.#underWay = undefined;
    if (memory && memory.length <= BYTES_KEPT) this.#memory = memory;
    if (answer.kind === 'failed') {
      const { message, maybeWritten, isLocked } = answer;
      if (!isLocked) this.failure = message;
      for (const { reject } of pending) reject(unavailable(message, maybeWritten));
    } else {
      if (answer.wrote) {
        this.failure = undefined;
        this.#options.onCommitted(answer.tookMs);
      }
      for (const [i, one] of pending.entries()) this.#settle(one, answer.answers[i]);
    }
    this.#next();
  }

  #settle({ id, resolve, reject }: Pending, answer: unknown): void {
    if (!id) resolve(answer);
    else if (answer === ANSWERS.done) resolve(DONE);
    else if (answer === ANSWERS.refused)
      resolve(this.#options.held(id).then((held) => ({ done: false, held })));
    else if (answer === ANSWERS.void)
      reject(unavailable('the execution was given up: its token is void', false));
    else reject(new StoreClosed());
  }

  #next(): void {
    if (this.#queue.length > 0) this.#schedule();
    else this.#closing?.();
  }

  /** One timer serves all commands, because a timer for each would cost more than its message. */
  #scheduleTimeouts(): NodeJS.Timeout {
    const check = () => {
      this.#rejectLate();
      const isIdle = this.#queue.length === 0 && !this.#underWay;
      this.#timer = isIdle ? undefined : this.#scheduleTimeouts();
    };
    return setTimeout(() => afterReading(check), Math.max(5, this.#options.data.timeoutMs / 20));
  }

  /** Late commands in the thread may still be written. Late commands in the queue are removed from it. */
  #rejectLate(): void {
    const { timeoutMs } = this.#options.data;
    const latestMs = performance.now() - timeoutMs;
    const isLate = ({ askedMs }: Pending) => askedMs <= latestMs;
    const message = `no answer within ${timeoutMs} ms`;
    for (const { reject } of this.#underWay?.pending.filter(isLate) ?? []) reject(unavailable(message, true));
    for (const batch of this.#queue)
      for (const { reject, place } of batch.pending.filter(isLate)) {
        reject(unavailable(message, false));
        batch.remove(place);
      }
    this.#queue = this.#queue.filter(({ pending }) => !pending.every(isLate));
    if (!this.#underWay) this.#next();
  }

  /** Resolves to the offset of running time. */
  async #startThread(): Promise<number> {
    const thread = spareThread ?? startThread();
    spareThread = undefined;
    thread.ref();
    let cause: Error | undefined;
    thread.on('error', (error) => {
      cause = error as Error;
    });
    return await new Promise((resolve, reject) => {
      thread.on('message', (message: FromWriter) => {
        if (message.kind === 'ready') {
          // An idle store must not keep the process alive. A pending command does so by its timer.
          thread.unref();
          if (this.#isDrained()) return post(thread, 'close');
          this.#thread = thread;
          resolve(message.offsetMs);
          this.#schedule();
        } else if (message.kind === 'refused') reject(unavailable(message.message, false));
        else this.#answered(message);
      });
      thread.postMessage({
        ...this.#options.data,
        monotonicMs: this.#options.monotonicMs(),
      } satisfies WriterData);
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
    for (const { reject } of this.#underWay?.pending ?? [])
      reject(unavailable(`the writer thread died: ${messageOf(error)}`, true));
    this.#underWay = undefined;
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

const DONE: Reply = { done: true };

const post = (thread: Worker, message: ToWriter) => thread.postMessage(message);

const unavailable = (message: string, maybeWritten: boolean) =>
  new StoreUnavailable(`sqlite: ${message}`, { maybeWritten });

export const closed = () => new StoreUnavailable('the store is closed', { maybeWritten: false });
