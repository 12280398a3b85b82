import { hash } from 'node:crypto';
import type { KeyReload } from '../lib/context.ts';
import { FileWatch, messageOf, oneAtATime, readBounded } from '../lib/watched-file.ts';
import { parseKeyFile, parseKeyFileAside } from './key-file.ts';
import { KeyIndex } from './key-index.ts';
import type { KeyEntry, KeySource, KeySourceHealth } from './key-source.ts';

/** Largest accepted key file: 64 MiB. */
const MAX_BYTES = 64 * 1024 * 1024;

/** Short enough that a removed key is refused within a second, unless the file is so large that it takes long to parse. */
const POLL_MS = 100;

export interface FileKeySourceOptions {
  path: string;
  /** As for {@link KeyIndex.of}. */
  pepper?: string | undefined;
  /** Milliseconds between two checks of the file for changes. Default 100. */
  pollMs?: number;
  /** Called once for each change of the keys and for each {@link FileKeySource.reload}. Must not throw. */
  onReload?: (reload: KeyReload) => void;
}

/**
 * Secret keys from a YAML file, which is read again when it changes. If a new version is refused or cannot be read, the old
 * keys stay in force.
 */
export class FileKeySource implements KeySource {
  readonly #options: FileKeySourceOptions;
  readonly #watch: FileWatch;
  readonly #listeners: (() => void)[] = [];
  #index: KeyIndex;
  /** A digest of the file at the last attempt to read it, or why it could not be read. */
  #version: string;
  /** Why the newest version is not in force; undefined: it is. */
  #refusal: string | undefined;
  #generation = 0;
  #closed = false;
  readonly #readSerially = oneAtATime((options?: { evenUnchanged: boolean }) => this.#read(options));

  private constructor(options: FileKeySourceOptions, bytes: Buffer) {
    this.#options = options;
    this.#index = KeyIndex.of(parseKeyFile(bytes), options.pepper);
    this.#version = hash('sha256', bytes);
    this.#watch = new FileWatch(options.path, options.pollMs ?? POLL_MS, () => this.#readSerially());
  }

  /** @throws Error with the path of the file and all mistakes, one line each */
  static async open(options: FileKeySourceOptions): Promise<FileKeySource> {
    try {
      return new FileKeySource(options, await readBounded(options.path, MAX_BYTES));
    } catch (error) {
      const lines = messageOf(error).split('\n');
      throw new Error(
        `the key file ${options.path} is refused:\n${lines.map((line) => `  ${line}`).join('\n')}`,
      );
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
    const [refusal] = this.#refusal?.split('\n') ?? [];
    if (refusal === undefined) return { detail: loaded, keys };
    return { detail: `${loaded}, from an earlier version: the newest version was refused: ${refusal}`, keys };
  }

  async reload(): Promise<void> {
    await this.#readSerially({ evenUnchanged: true });
  }

  close(): void {
    this.#closed = true;
    this.#watch.close();
  }

  async #read({ evenUnchanged } = { evenUnchanged: false }): Promise<void> {
    const read = await readBounded(this.#options.path, MAX_BYTES).catch(messageOf);
    const version = typeof read === 'string' ? read : hash('sha256', read);
    if (this.#closed || (version === this.#version && !evenUnchanged)) return;
    this.#version = version;
    try {
      if (typeof read === 'string') throw new Error(`the file: ${read}`);
      const index = KeyIndex.of(await parseKeyFileAside(read), this.#options.pepper);
      if (!this.#closed) this.#accept(index);
    } catch (error) {
      if (this.#closed) return;
      this.#refusal = messageOf(error);
      this.#options.onReload?.({ ok: false, error: this.#refusal });
    }
  }

  #accept(index: KeyIndex): void {
    this.#index = index;
    this.#generation++;
    this.#refusal = undefined;
    for (const listener of this.#listeners) listener();
    this.#options.onReload?.({ ok: true, keys: index.size });
  }
}
