import { constants } from 'node:fs';
import { open, stat } from 'node:fs/promises';

/** Changes whenever the file at a path may have changed: by writing, by renaming over it, by turning a symlink. */
export async function markOf(path: string): Promise<string> {
  try {
    const { dev, ino, size, mtimeNs, ctimeNs } = await stat(path, { bigint: true });
    return [dev, ino, size, mtimeNs, ctimeNs].join(' ');
  } catch (error) {
    return codeOf(error);
  }
}

/**
 * The bytes of a regular file.
 *
 * @throws Error with a message without the path if it cannot be read, is larger than `maxBytes`, or grows meanwhile
 */
export async function readBounded(path: string, maxBytes: number): Promise<Buffer> {
  // O_NONBLOCK: opening a FIFO must fail the test below, and not wait for a writer.
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
    if (length !== stats.size) throw new Error('was changed while it was read');
    return buffer.subarray(0, length);
  } finally {
    await handle.close();
  }
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? 'unknown error';
}
