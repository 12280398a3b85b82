import { setImmediate as nextTurn } from 'node:timers/promises';
import { StoreUnavailable } from '../../store.ts';
import { messageOf } from './answering.ts';
import type { Presence } from './presence.ts';

interface Waiting {
  write(): Promise<boolean>;
  resolve(held: boolean): void;
  reject(error: StoreUnavailable): void;
}

/**
 * One commit at a time, and none after one that failed.
 *
 * What is written while a commit is under way goes into the next one, together. After a commit that could not be written
 * (the disk is full, say) the LMDB that the package brings is broken in this process: it damages its heap, and a begin that
 * it told as done was gone under its payout, which was then made twice. So nothing is written any more, and whoever opened the
 * store is told, to end the process. Other processes, and the next one, find the last commit intact.
 */
export class Commits {
  readonly #presence: Presence;
  readonly #onFailure: (failure: StoreUnavailable) => void;
  #waiting: Waiting[] = [];
  #committing: Promise<void> | undefined;
  #lastEndMs = 0;
  #closed: StoreUnavailable | undefined;
  /** What everybody is told after a commit that failed. */
  #failure: StoreUnavailable | undefined;

  /** @param onFailure told once, of the first commit that failed */
  constructor(presence: Presence, onFailure: (failure: StoreUnavailable) => void) {
    this.#presence = presence;
    this.#onFailure = onFailure;
    if (!process.listeners('unhandledRejection').includes(hearCommitOfLmdb))
      process.on('unhandledRejection', hearCommitOfLmdb);
  }

  /**
   * `write` issues a conditional write. Resolves when it is on the disk; false: its condition did not hold.
   *
   * @throws {StoreUnavailable}
   */
  write(write: () => Promise<boolean>): Promise<boolean> {
    const over = this.#failure ?? this.#closed;
    if (over) return Promise.reject(over);
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    this.#waiting.push({ write, resolve, reject });
    this.#committing ??= this.#commitAll();
    return promise;
  }

  /** @throws what an operator has to know, where writes have waited for a commit to end for longer than `limitMs` */
  refuseStalled(limitMs: number): void {
    const waitedMs = this.#committing === undefined ? 0 : performance.now() - this.#lastEndMs;
    if (waitedMs <= limitMs) return;
    const ms = Math.floor(waitedMs);
    throw new Error(
      `no commit has ended for ${ms} ms: the disk, or a process that stands still, holds them up`,
    );
  }

  /** Takes nothing any more, and resolves when all that it had taken is committed. */
  async end(): Promise<void> {
    this.#closed = new StoreUnavailable('lmdb is closed', { maybeWritten: false });
    await this.#committing;
  }

  async #commitAll(): Promise<void> {
    this.#lastEndMs = performance.now();
    // Whatever is written in this turn goes along.
    await Promise.resolve();
    while (this.#waiting.length > 0) {
      await this.#presence.write(() => this.#commit(this.#waiting.splice(0)));
      this.#lastEndMs = performance.now();
    }
    this.#committing = undefined;
  }

  /** All in one turn, which lmdb makes one commit. Where it failed nobody knows what became of any of them. */
  async #commit(group: readonly Waiting[]): Promise<void> {
    if (this.#failure) {
      for (const { reject } of group) reject(this.#failure);
      return;
    }
    const ends = await Promise.allSettled(group.map(async ({ write }) => await write()));
    const failed = ends.find((end) => end.status === 'rejected');
    const unknown = failed && (await this.#fail(failed.reason));
    for (const [i, { resolve, reject }] of group.entries()) {
      const end = ends[i];
      if (unknown) reject(unknown);
      else if (end?.status === 'fulfilled') resolve(end.value);
    }
  }

  async #fail(error: unknown): Promise<StoreUnavailable> {
    const cause = await reasonOf(error);
    const message = `lmdb could not write: ${messageOf(cause)}`;
    this.#failure = new StoreUnavailable(message, { cause, maybeWritten: false, forGood: true });
    this.#onFailure(this.#failure);
    return new StoreUnavailable(message, { cause, forGood: true });
  }
}

/** lmdb tells why a commit failed by a promise on the error, which is rejected within the turn. */
async function reasonOf(error: unknown): Promise<unknown> {
  const { commitError } = error as { commitError?: Promise<never> };
  if (!commitError) return error;
  return await Promise.race([commitError.catch((reason: unknown) => reason), nextTurn(error)]);
}

/** lmdb tells of a failed commit by a promise of its own besides, which nobody can listen to: it would end the process. */
function hearCommitOfLmdb(reason: unknown): void {
  if (!(reason instanceof Error && 'commitError' in reason)) throw reason;
}
