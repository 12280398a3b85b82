import { setTimeout as sleep } from 'node:timers/promises';
import { Tally } from '../kernel/tally.ts';
import { StoreUnavailable } from './store.ts';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;

/**
 * Writes that the store has not answered and that must not be forgotten: a settlement, or the taking back of a
 * claim whose reply was lost. Each is repeated until the store answers; repeating is safe, since each shows its token.
 */
export class Persistence {
  #pending = new Tally();
  readonly #ending = new AbortController();

  /** Writes that the store has not answered; while closing, those that began since. */
  get count(): number {
    return this.#pending.count;
  }

  /**
   * Repeats `write` until it answers. Resolves to its answer; or to undefined after `forMs`, where the store will never
   * answer this process again, or when closing.
   */
  async untilAnswered<T>(write: () => Promise<T>, forMs: number): Promise<T | undefined> {
    const pending = this.#pending;
    pending.begin();
    try {
      return await this.#repeat(write, forMs);
    } finally {
      pending.end();
    }
  }

  async #repeat<T>(write: () => Promise<T>, forMs: number): Promise<T | undefined> {
    const { signal } = this.#ending;
    let pauseMs = FIRST_PAUSE_MS;
    let waitedMs = 0;
    do {
      try {
        return await write();
      } catch (error) {
        if (error instanceof StoreUnavailable && error.forGood) return undefined;
        await sleep(pauseMs, undefined, { signal }).catch(() => {});
        waitedMs += pauseMs;
        pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS);
      }
    } while (waitedMs < forMs && !signal.aborted);
    return undefined;
  }

  /** Waits for what is pending, at most `ms`; then repeats nothing any more, and waits for the attempts that are under way. */
  async close(ms: number): Promise<void> {
    if (this.#pending.count > 0) {
      await Promise.race([this.#pending.idle(), sleep(ms, undefined, { ref: false })]);
    }
    this.#ending.abort();
    const underWay = this.#pending;
    // What begins from here on is not waited for, or this could last as long as there are executions.
    this.#pending = new Tally();
    await underWay.idle();
  }
}
