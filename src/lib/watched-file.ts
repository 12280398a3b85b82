import { constants, unwatchFile, watchFile } from 'node:fs';
import { open } from 'node:fs/promises';

/**
 * Calls `onChange` once after the start, and after each change of the file at a path.
 *
 * Polls instead of using file system events: those follow the inode and not the path, get lost when an editor renames the
 * file or Kubernetes swaps the symlink of a config map, and do not exist on network file systems.
 */
export class FileWatch {
  readonly #path: string;
  readonly #timer: NodeJS.Timeout;
  readonly #changed = (): void => void this.#timer.refresh();

  /** @param onChange must not reject */
  constructor(path: string, pollMs: number, onChange: () => Promise<void>) {
    this.#path = path;
    // Longer than a poll, so that the file is read only after a poll that found it unchanged. Half a list of keys can be
    // well-formed YAML, and a second write within one tick of the file system's clock does not count as a change.
    this.#timer = setTimeout(() => void onChange(), 1.5 * pollMs).unref();
    watchFile(path, { interval: pollMs, persistent: false }, this.#changed);
  }

  close(): void {
    unwatchFile(this.#path, this.#changed);
    clearTimeout(this.#timer);
  }
}

/** Makes a function whose calls run one after the other: an older read that ended last would restore what a newer one replaced. */
export function oneAtATime<T extends unknown[]>(read: (...args: T) => Promise<void>) {
  let last = Promise.resolve();
  return (...args: T): Promise<void> => {
    last = last.then(() => read(...args));
    return last;
  };
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

/** Of what {@link readBounded} and the readers of its files throw. */
export const messageOf = (error: unknown): string =>
  error instanceof Error ? error.message : 'unknown error';

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? 'unknown error';
}
