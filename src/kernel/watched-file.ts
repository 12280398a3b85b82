import { constants } from 'node:fs';
import { open, stat } from 'node:fs/promises';

/** Wait after a change before the file is read, so that a writer can finish. */
const SETTLE_MS = 100;

/**
 * Calls `onChange` when the content of the file at a path may have changed.
 *
 * Polls instead of using file system events: those follow the inode and not the path, get lost when an editor renames the
 * file or Kubernetes swaps the symlink of a config map, and do not exist on network file systems.
 */
export class FileWatch {
  readonly #path: string;
  readonly #pollMs: number;
  readonly #onChange: () => Promise<void>;
  #mark: string | undefined;
  #callsDue = 0;
  #closed = false;
  #timer: NodeJS.Timeout | undefined;

  /** @param onChange is called twice after the start, and twice after each change. Must not reject */
  constructor(path: string, pollMs: number, onChange: () => Promise<void>) {
    this.#path = path;
    this.#pollMs = pollMs;
    this.#onChange = onChange;
    this.#pollIn(pollMs);
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  async #poll(): Promise<void> {
    const mark = await markOf(this.#path);
    if (mark !== this.#mark) {
      this.#mark = mark;
      // Two calls, one poll apart: a second write within one tick of the file system's clock does not change the mark.
      this.#callsDue = 2;
      // The file may be half written, and half a list of keys can be well-formed YAML.
      return this.#pollIn(Math.min(SETTLE_MS, this.#pollMs));
    }
    if (this.#callsDue > 0 && !this.#closed) {
      this.#callsDue -= 1;
      await this.#onChange();
    }
    this.#pollIn(this.#pollMs);
  }

  #pollIn(ms: number): void {
    if (this.#closed) return;
    this.#timer = setTimeout(() => void this.#poll(), ms).unref();
  }
}

/** Changes when the file at a path is written, replaced by a rename, or reached by another symlink. */
async function markOf(path: string): Promise<string> {
  try {
    const { dev, ino, size, mtimeNs, ctimeNs } = await stat(path, { bigint: true });
    return [dev, ino, size, mtimeNs, ctimeNs].join(' ');
  } catch (error) {
    return codeOf(error);
  }
}

/**
 * Reads a whole regular file.
 *
 * @throws Error if the file cannot be read, is no regular file, is larger than `maxBytes`, or changes its size meanwhile.
 * The message does not contain the path
 */
export async function readBounded(path: string, maxBytes: number): Promise<Buffer> {
  // With O_NONBLOCK, opening a FIFO returns at once, and isFile() refuses it. Otherwise open would wait for a writer.
  const handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch((error: unknown) => {
    throw new Error(`cannot be read (${codeOf(error)})`);
  });
  try {
    const stats = await handle.stat();
    if (!stats.isFile()) throw new Error('is not a regular file');
    if (stats.size > maxBytes) throw new Error(`is larger than ${maxBytes} bytes`);
    const buffer = Buffer.alloc(stats.size + 1);
    let length = 0;
    for (let read = -1; read !== 0 && length < buffer.length; length += read) {
      read = (await handle.read(buffer, length, buffer.length - length, length)).bytesRead;
    }
    if (length !== stats.size) throw new Error('changed while it was read');
    return buffer.subarray(0, length);
  } finally {
    await handle.close();
  }
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? 'unknown error';
}
