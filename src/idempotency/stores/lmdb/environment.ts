import { randomBytes } from 'node:crypto';
import { accessSync, constants } from 'node:fs';
import { open, type RootDatabase } from 'lmdb';
import { makeFolder } from '../../../kernel/folder.ts';
import { StoreUnavailable } from '../../store.ts';
import { messageOf } from './answering.ts';
import { Commits } from './commits.ts';
import { Presence } from './presence.ts';

/**
 * Address space for the map of the file: 64 GiB, and neither memory nor disk. It is no limit. A map that becomes too small is
 * replaced by one of twice the size, by several threads, while it is in use; and the old one stays, with all its pages.
 */
const MAP_BYTES = 2 ** 36;

/** Unique, not counted up: a scope that was removed and claimed anew must not come back to a version once read. */
export const newVersion = (): number => randomBytes(6).readUIntBE(0, 6);

/** The database, and what every write to it goes through. */
export interface Environment {
  readonly records: RootDatabase<Buffer, Buffer>;
  readonly commits: Commits;
  close(): Promise<void>;
}

/**
 * @param onFailure told of the first commit that failed: nothing is written any more after it
 * @throws {StoreUnavailable} where the folder cannot be used
 */
export async function openEnvironment(
  path: string,
  onFailure: (failure: StoreUnavailable) => void = () => {},
): Promise<Environment> {
  try {
    makeFolder(path);
    accessSync(path, constants.W_OK);
    const { opened: records, presence } = await Presence.enter(path, () => openRecords(path));
    const commits = new Commits(presence, onFailure);
    const close = async () => {
      await commits.end();
      await records.close();
      presence.leave();
    };
    return { records, commits, close };
  } catch (error) {
    if (error instanceof StoreUnavailable) throw error;
    throw new StoreUnavailable(`the data folder ${path} cannot be used: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

function openRecords(path: string): RootDatabase<Buffer, Buffer> {
  const options = {
    path,
    // A name with a dot would be taken for a file's.
    noSubdir: false,
    encoding: 'binary',
    keyEncoding: 'binary',
    useVersions: true,
    cache: false,
    overlappingSync: false,
    mapSize: MAP_BYTES,
    permissionsMode: 0o600,
  };
  return open<Buffer, Buffer>(options as Parameters<typeof open>[0] & { path: string }) as RootDatabase<
    Buffer,
    Buffer
  >;
}
