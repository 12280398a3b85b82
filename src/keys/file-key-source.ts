import { hash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { messageOf, readBounded } from '../lib/files.ts';
import { Followed, type Version } from '../lib/followed.ts';
import type { Emit } from '../telemetry/emit.ts';
import { parseKeyFileAside } from './key-file.ts';
import { KeyIndex } from './key-index.ts';
import type { KeyEntry, KeySource, KeySourceHealth } from './key-source.ts';

/** Largest accepted key file: 64 MiB. */
const MAX_BYTES = 64 * 1024 * 1024;

/** Short enough that a removed key is refused within a second, unless the file is so large that it takes long to parse. */
const POLL_MS = 100;
/** A version that could not be read for lack of file descriptors or memory must not leave a revoked key in force. */
const RETRY_MS = 10_000;
/** A line of the log names at most so many merchants. */
const MOST_NAMED = 20;

export interface FileKeySourceOptions {
  path: string;
  /** See {@link KeyIndex.of}. */
  pepper?: string | undefined;
  /** Milliseconds between two checks of the file for changes. Default 100. */
  pollMs?: number;
  /** How often a version that was refused is read again. Default 10 s. */
  retryMs?: number;
  /** Is told each change of the keys and each {@link FileKeySource.reload}. */
  emit?: Emit;
}

/**
 * Secret keys from a YAML file, which is read again when it changes. If a new version is refused or cannot be read, the old
 * keys stay in force.
 */
export class FileKeySource implements KeySource {
  readonly #options: FileKeySourceOptions;
  readonly #followed: Followed<KeyIndex>;
  readonly #listeners: (() => void)[] = [];
  #index: KeyIndex;
  #generation = 0;

  private constructor(options: FileKeySourceOptions, id: string, index: KeyIndex) {
    const { path, pollMs = POLL_MS, retryMs = RETRY_MS, emit } = options;
    this.#options = options;
    this.#index = index;
    const read = () => readKeys(options);
    const refused = (error: unknown) => emit?.('keys_refused', { reason: messageOf(error) });
    // The alert lasts as long as the file is refused, and the log has one line.
    const refusedAgain = () => emit?.('keyReloads', { result: 'refused' });
    const apply = (changed: KeyIndex) => this.#accept(changed);
    this.#followed = new Followed({ paths: [path], pollMs, retryMs, read, apply, refused, refusedAgain }, id);
  }

  /** @throws Error with the path of the file and all mistakes, one line each */
  static async open(options: FileKeySourceOptions): Promise<FileKeySource> {
    try {
      const { id, load } = await readKeys(options);
      return new FileKeySource(options, id, await load());
    } catch (error) {
      const { path } = options;
      const lines = messageOf(error).split('\n');
      if (!existsSync(path)) {
        lines.push(`oncegate keys issue --file ${path} --merchant CODE makes it, with a first secret key;`);
        lines.push('oncegate init makes a configuration and its key file');
      }
      throw new Error(`the key file ${path} is refused:\n${lines.map((line) => `  ${line}`).join('\n')}`);
    }
  }

  get generation(): number {
    return this.#generation;
  }

  find(secret: string): KeyEntry | undefined {
    return this.#index.find(secret);
  }

  current(earlier: KeyEntry): KeyEntry | undefined {
    return this.#index.current(earlier);
  }

  entries(): Iterable<KeyEntry> {
    return this.#index.entries();
  }

  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  health(): KeySourceHealth {
    const keys = this.#index.size;
    const loaded = `${keys} ${keys === 1 ? 'key' : 'keys'} from ${this.#options.path}`;
    const [refusal] = this.#followed.refusal?.split('\n') ?? [];
    if (refusal === undefined) return { detail: loaded, keys };
    return {
      detail: `${loaded}, from an earlier version: the newest version was refused: ${refusal}`,
      keys,
      warning: 'the newest version was refused: a key that it revokes still works',
    };
  }

  reload(): Promise<void> {
    return this.#followed.reload();
  }

  close(): void {
    this.#followed.close();
  }

  #accept(index: KeyIndex): void {
    const earlier = this.#index;
    this.#index = index;
    this.#generation++;
    for (const listener of this.#listeners) listener();
    this.#options.emit?.('keys_reloaded', { keys: index.size });
    const left = new Set(validIn(index).map(({ merchantCode }) => merchantCode));
    const lost = validIn(earlier)
      .filter((key) => index.current(key)?.merchantCode !== key.merchantCode)
      .map(({ merchantCode }) => merchantCode);
    const gone = [...new Set(lost)].filter((code) => !left.has(code));
    if (gone.length > 0)
      this.#options.emit?.('merchants_removed', {
        removed: gone.length,
        merchants: gone.slice(0, MOST_NAMED),
      });
  }
}

/** The keys that are in force now or later. Somebody has decided about the others. */
const validIn = (index: KeyIndex, nowMs = Date.now()): KeyEntry[] =>
  [...index.entries()].filter(({ expiresAtMs, revokedAtMs }) => Math.min(expiresAtMs, revokedAtMs) > nowMs);

async function readKeys({ path, pepper }: FileKeySourceOptions): Promise<Version<KeyIndex>> {
  const bytes = await readBounded(path, MAX_BYTES).catch((error: unknown) => {
    throw new Error(`the file: ${messageOf(error)}`);
  });
  const load = async () => KeyIndex.of(await parseKeyFileAside(bytes), pepper);
  return { id: hash('sha256', bytes), load };
}
