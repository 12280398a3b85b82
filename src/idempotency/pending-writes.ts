import { type Clock, pause, within } from '../lib/clock.ts';
import { InFlightCounter } from '../lib/collections.ts';
import { StoreClosed, UnreadableRecord } from '../store/types.ts';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 500;
/** How many writes are tried at once: while the store does not answer, and at most. */
const SMALLEST_BATCH = 16;
const LARGEST_BATCH = 256;

interface Pending {
  write(): Promise<unknown>;
  untilMs: number;
  resolve(answer: unknown): void;
}

/**
 * Writes that the store did not answer and that must not be lost: results, and starts to be taken back. Each is repeated
 * until the store answers; repeating is safe because each carries its owner's token.
 *
 * All writes share one loop. While the store does not answer, only a few are tried at once, with growing pauses. Otherwise a
 * frozen server would queue one command for every write and every attempt.
 */
export class PendingWrites {
  readonly #clock: Clock;
  readonly #writes: Pending[] = [];
  readonly #pending = new InFlightCounter();
  readonly #ending = new AbortController();
  #working = false;
  #isClosing = false;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get count(): number {
    return this.#pending.count;
  }

  /** Repeats `write` until the store answers. Gives it up after `forMs`, and when {@link close} does, without an answer. */
  add<T>(write: () => Promise<T>, forMs: number): Promise<T | undefined> {
    const untilMs = this.#clock.monotonicMs() + forMs;
    this.#pending.begin();
    const answer = new Promise<T | undefined>((resolve) => {
      this.#writes.push({ write, untilMs, resolve: resolve as Pending['resolve'] });
    }).finally(() => this.#pending.end());
    if (!this.#working) void this.#work();
    return answer;
  }

  /**
   * Waits at most `ms` until every write is answered or refused by a store that a copy has closed. Then tries the others once more, and
   * gives up those that fail.
   */
  async close(ms: number): Promise<void> {
    this.#isClosing = true;
    await within(this.#clock, this.#pending.idle(), ms);
    this.#ending.abort();
    await this.#pending.idle();
  }

  async #work(): Promise<void> {
    this.#working = true;
    const { signal } = this.#ending;
    let pauseMs = FIRST_PAUSE_MS;
    let batchSize = SMALLEST_BATCH;
    while (this.#writes.length > 0) {
      await pause(this.#clock, pauseMs, signal);
      const batch = this.#writes.splice(0, signal.aborted ? this.#writes.length : batchSize);
      const failed = (await Promise.all(batch.map((pending) => this.#attempt(pending)))).filter(
        (pending) => pending !== undefined,
      );
      if (failed.length === batch.length) {
        batchSize = SMALLEST_BATCH;
        pauseMs = Math.min(Math.max(pauseMs * 2, FIRST_PAUSE_MS), LONGEST_PAUSE_MS);
      } else {
        batchSize = Math.min(batchSize * 2, LARGEST_BATCH);
        pauseMs = failed.length > 0 ? FIRST_PAUSE_MS : 0;
      }
      this.#writes.push(...failed);
    }
    this.#working = false;
  }

  /** Returns the write if it must be repeated. */
  async #attempt(pending: Pending): Promise<Pending | undefined> {
    try {
      pending.resolve(await pending.write());
      return undefined;
    } catch (error) {
      // A copy that is undone opens the store again, so a gateway that is not closing repeats what a closed store has refused.
      const isRefused = error instanceof StoreClosed && this.#isClosing;
      const isFinal = isRefused || error instanceof UnreadableRecord || this.#ending.signal.aborted;
      if (!isFinal && this.#clock.monotonicMs() < pending.untilMs) return pending;
      pending.resolve(undefined);
      return undefined;
    }
  }
}
