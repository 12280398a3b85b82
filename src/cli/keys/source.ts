import { readFileSync } from 'node:fs';
import { type KeyFile, parseKeyFile } from '../../auth/key-file.ts';
import { editKeyFile, type KeyEditor } from '../../auth/key-file-editor.ts';
import { fieldOf, type RedisKeyList } from '../../auth/redis/key-list.ts';
import { editRedisKeys } from '../../auth/redis/redis-key-editor.ts';
import { Exit } from '../arguments.ts';

/** The options that say where the keys are. */
export const SOURCE_OPTIONS = { config: { type: 'string' }, file: { type: 'string' } } as const;

const DEFAULT_FILE = './keys.yaml';

/** The keys that a command reads or changes. */
export interface Source {
  /** For messages: the path of a file, or which Redis. */
  readonly place: string;
  /** @throws {Exit} if there is no `auth.pepper`, and no ONCEGATE_PEPPER */
  pepper(): string;
  /** @throws {Exit} if the keys cannot be read */
  read(): Promise<KeyFile>;
  /** Changes all or nothing. `edit` may be called several times. @param pepper needed to add keys */
  edit<T>(edit: (editor: KeyEditor) => T, pepper?: string): Promise<T>;
  /** The last day, in UTC, on which a key was used. Undefined: this source does not note it. */
  lastUses(): Promise<((merchantCode: string, keyId: string) => string | undefined) | undefined>;
}

/** Opens the source that `--config` or `--file` names, by default the file ./keys.yaml, and closes it after `work`. */
export async function withSource<T>(
  { config, file }: { config?: string | undefined; file?: string | undefined },
  usage: string,
  work: (source: Source) => T | Promise<T>,
): Promise<T> {
  if (config === undefined) return await work(fileSource(file ?? DEFAULT_FILE, undefined));
  if (file !== undefined) throw new Exit(`name one of --config and --file\n\n${usage}`, 64);
  // Commands on a key file need neither, and loading them takes time.
  const { loadConfig } = await import('../../config/load.ts');
  const { openKeyList } = await import('../../gateway/key-sources.ts');
  const { keys, pepper } = loadConfig(config, process.env).auth;
  if (keys.source === 'file') return await work(fileSource(keys.path, pepper));
  if (keys.source === 'upstream')
    throw new Exit(
      `${config} has auth.keys.source: upstream: the backend has the keys, and there is no list`,
      78,
    );
  const list = await openKeyList(keys);
  try {
    return await work(redisSource(list, pepper));
  } finally {
    list.close();
  }
}

function fileSource(path: string, pepper: string | undefined): Source {
  return {
    place: path,
    pepper: () => pepper ?? pepperOf(process.env),
    async read() {
      return parseKeyFile(bytesOf(path));
    },
    async edit(edit, with_) {
      return editKeyFile(path, edit, with_);
    },
    async lastUses() {
      return undefined;
    },
  };
}

function redisSource(list: RedisKeyList, pepper: string | undefined): Source {
  return {
    place: list.place,
    pepper: () => pepper ?? pepperOf(process.env),
    async read() {
      const stored = await list.read();
      if (!stored) throw new Exit(`there are no secret keys in ${list.place}`, 78);
      return sorted(stored.file);
    },
    edit: (edit, with_) => editRedisKeys(list, edit, with_),
    async lastUses() {
      const days = await list.lastUses();
      return (merchantCode, keyId) => days.get(fieldOf({ merchantCode, keyId }));
    },
  };
}

/** By merchant and id. Redis has no order. */
function sorted(file: KeyFile): KeyFile {
  const before = (a: string, b: string) => (a < b ? -1 : 1);
  const merchants = file.merchants.map(({ code, keys }) => ({
    code,
    keys: keys.toSorted((a, b) => before(a.id, b.id)),
  }));
  return { ...file, merchants: merchants.toSorted((a, b) => before(a.code, b.code)) };
}

/** @throws {Exit} 78 */
export function pepperOf(env: NodeJS.ProcessEnv): string {
  const pepper = env.ONCEGATE_PEPPER ?? '';
  if (pepper.length < 16) throw new Exit('ONCEGATE_PEPPER must be set, with at least 16 characters', 78);
  return pepper;
}

function bytesOf(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new Exit(`${path} cannot be read (${(error as NodeJS.ErrnoException).code})`, 78);
  }
}
