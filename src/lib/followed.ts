import { unwatchFile, watchFile } from 'node:fs';
import { messageOf } from './files.ts';

/** What the files hold at one time. */
export interface Version<T> {
  /** Tells versions apart: a second one with the same id is not news. */
  id: string;
  /** @throws Error with the reason if this version is refused */
  load(): T | Promise<T>;
}

export interface FollowedOptions<T> {
  paths: readonly string[];
  /** Milliseconds between two checks of the files for changes. */
  pollMs: number;
  /** @throws Error with the reason if a file cannot be read */
  read(): Promise<Version<T>>;
  /**
   * Puts a value in force. It is called for each new version that is not refused, and for each {@link Followed.reload}.
   *
   * @throws Error with the reason if the value is refused after all
   */
  apply(value: T, isAsked: boolean): void | Promise<void>;
  /** Called for each new version that is refused, and for each refused {@link Followed.reload}. Must not throw. */
  refused(error: unknown): void;
  /** Called for each retry that is refused for the same reason. Must not throw. */
  refusedAgain?(): void;
  /**
   * How often a version that was refused is read again, because its reason may pass. Milliseconds; more than two polls. Default: never.
   */
  retryMs?: number;
}

/** Why files are read: they have changed, the reason of a refusal may have passed, or a reload was requested. */
type Occasion = 'change' | 'retry' | 'asked';

/**
 * Files that are read again when they change. If a new version is refused or cannot be read, the last good one stays in force.
 *
 * Polls instead of using file system events: those follow the inode and not the path, get lost when an editor renames the
 * file or Kubernetes swaps the symlink of a config map, and do not exist on network file systems.
 */
export class Followed<T> {
  readonly #options: FollowedOptions<T>;
  /** The id of the newest version, or why it could not be read. */
  #id: string | undefined;
  #refusal: string | undefined;
  #closed = false;
  readonly #readSoon: NodeJS.Timeout;
  readonly #retry: NodeJS.Timeout | undefined;
  readonly #changed = (): void => void this.#readSoon.refresh();
  #reading = Promise.resolve();

  /** @param id of the version that is in force. Default: the first one that is read is news */
  constructor(options: FollowedOptions<T>, id?: string) {
    this.#options = options;
    this.#id = id;
    const { paths, pollMs, retryMs } = options;
    // Longer than a poll, so that the files are read only after a poll that found them unchanged. Half a list of keys can be
    // well-formed YAML, and a second write within one tick of the file system's clock does not count as a change. It also runs
    // once after the start, for changes since the first version was read.
    this.#readSoon = setTimeout(() => this.#read('change'), 1.5 * pollMs).unref();
    for (const path of paths) watchFile(path, { interval: pollMs, persistent: false }, this.#changed);
    if (retryMs !== undefined) this.#retry = setInterval(() => this.#read('retry'), retryMs).unref();
  }

  /** Why the newest version is not in force. */
  get refusal(): string | undefined {
    return this.#refusal;
  }

  /** Reads the files now, even if they are unchanged. Never rejects. */
  reload(): Promise<void> {
    return this.#read('asked');
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#readSoon);
    clearInterval(this.#retry);
    for (const path of this.#options.paths) unwatchFile(path, this.#changed);
  }

  /** Reads one after the other: an older read that ended last would restore what a newer one replaced. */
  #read(occasion: Occasion): Promise<void> {
    this.#reading = this.#reading.then(() => this.#readNow(occasion));
    return this.#reading;
  }

  async #readNow(occasion: Occasion): Promise<void> {
    const isRetry = occasion === 'retry';
    if (isRetry && this.#refusal === undefined) return;
    try {
      const { id, load } = await this.#newest();
      if (this.#closed || (id === this.#id && occasion === 'change')) return;
      // It may be half written.
      if (isRetry && id !== this.#id) return void this.#readSoon.refresh();
      this.#id = id;
      const value = await load();
      if (this.#closed) return;
      await this.#options.apply(value, occasion === 'asked');
      this.#refusal = undefined;
    } catch (error) {
      const reason = messageOf(error);
      if (this.#closed) return;
      if (isRetry && reason === this.#refusal) return this.#options.refusedAgain?.();
      this.#refusal = reason;
      this.#options.refused(error);
    }
  }

  /** What cannot be read is a version too, so that it is reported once. */
  async #newest(): Promise<Version<T>> {
    try {
      return await this.#options.read();
    } catch (error) {
      return { id: messageOf(error), load: () => Promise.reject(error) };
    }
  }
}
