import { constants, existsSync, mkdirSync, statSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { dirname } from 'node:path';

/**
 * Creates a folder that only this user can access, and its missing parents. (`mkdirSync` with `recursive` never returns in
 * places such as /proc, where the parent exists and nothing can be created in it.)
 *
 * @throws {Error} with a message for the operator if it cannot be created
 */
export function makeFolder(path: string): void {
  if (existsSync(path)) {
    if (!statSync(path).isDirectory()) throw new Error(`${path} is not a folder`);
    return;
  }
  const parent = dirname(path);
  if (parent !== path) makeFolder(parent);
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    // Gateways may start together: another one may have created the folder after the check above.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
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
  const handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch(
    (error: NodeJS.ErrnoException) => {
      throw new Error(`cannot be read (${error.code})`);
    },
  );
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

/** What a person can read of anything that was thrown. */
export const messageOf = (error: unknown): string =>
  error instanceof Error ? error.message : 'unknown error';
