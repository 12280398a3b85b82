import { Worker } from 'node:worker_threads';
import { afterReading } from '../../lib/clock.ts';
import { threadFile } from '../../lib/program-files.ts';
import { StoreUnavailable, UnreadableRecord } from '../contract.ts';
import { messageOf } from './database.ts';
import {
  type Answer,
  type Answers,
  type BatchAnswer,
  type Command,
  type FromWriter,
  type ToWriter,
  toMessage,
  type WriterData,
} from './messages.ts';
import type { ClockState, RunningTime } from './running-time.ts';

const THREAD = threadFile('store/sqlite/writer-thread');

/** The limits of a batch, so that no transaction makes other processes wait for long. */
const COMMANDS_PER_BATCH = 256;
const BODY_BYTES_PER_BATCH = 4 * 1024 * 1024;
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

interface Pending {
  command: Command;
  askedMs: number;
  resolve(answer: never): void;
  reject(error: StoreUnavailable): void;
}

export interface WriterOptions {
  data: Omit<WriterData, 'monotonicMs'>;
  monotonicMs(): number;
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
  #timer: NodeJS.Timeout | undefined;
  #time: RunningTime | undefined;
  #thread: Worker | undefined;
  #queue: Pending[] = [];
  #underWay: Pending[] = [];
  #isScheduled = false;
  #closing: (() => void) | undefined;
  #isClosed = false;

  /** @throws {StoreUnavailable} with a message for the operator, if the database cannot be opened */
  static async open(options: WriterOptions): Promise<{ writer: Writer; clock: ClockState }> {
    const writer = new Writer(options);
    const clock = await writer.#startThread();
    return { writer, clock };
  }

  private constructor(options: WriterOptions) {
    this.#options = options;
  }

  /** Commands that wait for the end of the transaction before theirs. */
  get queued(): number {
    return this.#queue.length;
  }

  useClock(time: RunningTime): void {
    this.#time = time;
  }

  /** @throws {StoreUnavailable} */
  write<K extends Command['kind']>(command: Command & { kind: K }): Promise<Answers[K]> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) {
        reject(closed());
        return;
      }
      this.#queue.push({ command, askedMs: performance.now(), resolve, reject });
      this.#timer ??= this.#scheduleTimeouts();
      this.#schedule();
    });
  }

  /** Resolves when all commands are answered and the thread has ended. */
  async close(): Promise<void> {
    this.#isClosed = true;
    if (this.#queue.length > 0 || this.#underWay.length > 0)
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

  #schedule(): void {
    if (this.#isScheduled || this.#underWay.length > 0 || !this.#thread || this.#queue.length === 0) return;
    this.#isScheduled = true;
    // All commands of this turn of the event loop and of the next one share a batch. Under load, batches of one turn only take
    // a seventh more CPU time for a payout, because there are more commits. An idle event loop takes a second turn at once.
    setImmediate(() =>
      setImmediate(() => {
        this.#isScheduled = false;
        this.#sendBatch();
      }),
    );
  }

  #sendBatch(): void {
    const first = this.#queue[0];
    const thread = this.#thread;
    if (!first || !thread || !this.#time) return;
    let count = 0;
    for (
      let bytes = 0;
      count < this.#queue.length && count < COMMANDS_PER_BATCH && bytes < BODY_BYTES_PER_BATCH;
    ) {
      const { command } = this.#queue[count++] as Pending;
      if (command.kind === 'complete' || command.kind === 'create') bytes += command.body?.length ?? 0;
    }
    this.#underWay = this.#queue.splice(0, count);
    const beginByMs = first.askedMs + this.#options.data.timeoutMs * SHARE_FOR_BEGIN;
    post(thread, {
      messages: this.#underWay.map(({ command }) => toMessage(command)),
      now: this.#time.now(),
      beginWithinMs: Math.max(0, beginByMs - performance.now()),
    });
  }

  #answered(answer: BatchAnswer): void {
    const batch = this.#underWay;
    this.#underWay = [];
    if (answer.kind === 'committed') {
      if (answer.wrote) {
        this.failure = undefined;
        this.#options.onCommitted(answer.tookMs);
      }
      if (answer.observedAt !== undefined) this.#time?.catchUpWith(answer.observedAt);
      for (const [i, pending] of batch.entries()) answerPending(pending, answer.answers[i] as Answer);
    } else {
      const { message, maybeWritten, isBusy } = answer;
      if (!isBusy) this.failure = message;
      for (const { reject } of batch) reject(unavailable(message, maybeWritten));
    }
    this.#next();
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
          const isIdle = this.#queue.length === 0 && this.#underWay.length === 0;
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
    for (const { askedMs, reject } of this.#underWay) {
      if (askedMs <= latestMs) reject(unavailable(message, true));
    }
    const inTime = this.#queue.findIndex(({ askedMs }) => askedMs > latestMs);
    const late = this.#queue.splice(0, inTime === -1 ? this.#queue.length : inTime);
    for (const { reject } of late) reject(unavailable(message, false));
    if (late.length > 0 && this.#underWay.length === 0) this.#next();
  }

  async #startThread(): Promise<ClockState> {
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
          resolve(message.clock);
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
    const batch = this.#underWay;
    this.#underWay = [];
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

const post = (thread: Worker, message: ToWriter) => thread.postMessage(message);

function answerPending({ resolve, reject }: Pending, answer: Answer): void {
  if (typeof answer === 'object' && 'unreadable' in answer) reject(new UnreadableRecord(answer.unreadable));
  else if (typeof answer === 'object' && 'closed' in answer) reject(unavailable(answer.closed, false));
  // `write` declares which answers its kind of command has.
  else resolve(answer as never);
}

const unavailable = (message: string, maybeWritten: boolean) =>
  new StoreUnavailable(`sqlite: ${message}`, { maybeWritten });

export const closed = () => new StoreUnavailable('the store is closed', { maybeWritten: false });
