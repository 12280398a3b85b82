import { markOf } from './bounded-file.ts';

const SETTLE_MS = 100;

/**
 * Calls `onChange` when the file at a path may hold something else than before.
 *
 * Looks every `pollMs` and does without file system events: those follow the file and not the path, get lost when an
 * editor renames or a config map turns its symlink, and do not exist on network file systems.
 */
export class FileWatch {
  readonly #path: string;
  readonly #pollMs: number;
  readonly #onChange: () => Promise<void>;
  #mark: string | undefined;
  #callsDue = 0;
  #closed = false;
  #timer: NodeJS.Timeout | undefined;

  /** `onChange` must not reject. It is called once in the beginning, too. */
  constructor(path: string, pollMs: number, onChange: () => Promise<void>) {
    this.#path = path;
    this.#pollMs = pollMs;
    this.#onChange = onChange;
    this.#lookIn(pollMs);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  async #look(): Promise<void> {
    const mark = await markOf(this.#path);
    if (mark !== this.#mark) {
      this.#mark = mark;
      // Twice, a poll apart: a second write within one tick of the file system's clock leaves the same mark.
      this.#callsDue = 2;
      // The file may be half written, and half a list of keys can be a well-formed list.
      return this.#lookIn(Math.min(SETTLE_MS, this.#pollMs));
    }
    if (this.#callsDue > 0 && !this.#closed) {
      this.#callsDue -= 1;
      await this.#onChange();
    }
    this.#lookIn(this.#pollMs);
  }

  #lookIn(ms: number): void {
    if (this.#closed) return;
    this.#timer = setTimeout(() => void this.#look(), ms).unref();
  }
}
