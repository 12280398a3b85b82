import { accessSync, closeSync, constants, existsSync, openSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { makeFolder } from '../../../kernel/folder.ts';
import { StoreUnavailable } from '../../store.ts';

/**
 * Makes the folder and the file if they are missing, for this user only.
 *
 * An existing file is not opened here: closing a descriptor drops all POSIX locks that the process holds on the file,
 * SQLite's included.
 */
export function prepareFiles(folder: string): string {
  if (existsSync(join(folder, 'data.mdb')))
    throw new StoreUnavailable(
      `${folder} holds an LMDB store, which this version cannot read: move the folder away, or configure another store.path`,
      { maybeWritten: false },
    );
  makeFolder(folder);
  const file = join(folder, 'records.db');
  try {
    // SQLite gives its other files the mode of this one.
    closeSync(openSync(file, 'wx', 0o600));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  // On a read-only file SQLite would open, and could never write again, even if the file became writable later.
  for (const path of [folder, file]) accessSync(path, constants.W_OK);
  return file;
}

/** SQLite's files, and which ones they were when the database was opened. */
export class Identity {
  readonly #files: { path: string; inode: string }[];

  constructor(file: string) {
    this.#files = [file, `${file}-wal`, `${file}-shm`].map((path) => ({ path, inode: inodeOf(path) }));
  }

  /** @throws if a path does not name its file any more: what was written there would be lost to all other processes */
  check(): void {
    for (const { path, inode } of this.#files) {
      if (inodeOf(path) !== inode)
        throw new Error(
          `${path} was removed or replaced while the gateway used it: put the file back, or restart the gateway`,
        );
    }
  }
}

/** By stat, never by opening the file. */
function inodeOf(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat ? `${stat.dev}:${stat.ino}` : 'none';
}
