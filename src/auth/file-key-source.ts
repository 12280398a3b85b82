import { hash } from 'node:crypto';
import { FileWatch, readBounded } from '../kernel/watched-file.ts';
import { parseKeyFile, parseKeyFileInThread } from './key-file.ts';
import { KeyIndex } from './key-index.ts';
import { messageOf, ReloadableKeys, type ReloadableKeysOptions } from './reloadable-keys.ts';

/** Largest accepted key file: 64 MiB. */
const MAX_BYTES = 64 * 1024 * 1024;

/** Short enough that a removed key is refused within a second, unless the file is so large that it takes long to parse. */
const POLL_MS = 300;

export interface FileKeySourceOptions extends ReloadableKeysOptions {
  path: string;
  /** As for {@link KeyIndex.of}. */
  pepper?: string | undefined;
  /** Milliseconds between two checks of the file for changes. Default 300. */
  pollMs?: number;
}

/** Secret keys from a YAML file, which is read again when it changes. */
export class FileKeySource extends ReloadableKeys {
  readonly #options: FileKeySourceOptions;
  readonly #watch: FileWatch;
  /** The file's version at the last attempt to read it: the `version` of `KeyReload`. */
  #version: string;
  #closed = false;
  #reading: Promise<void> = Promise.resolve();

  private constructor(options: FileKeySourceOptions, bytes: Buffer) {
    super(options.path, KeyIndex.of(parseKeyFile(bytes), options.pepper), options);
    this.#options = options;
    this.#version = digestOf(bytes);
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

  async reload(): Promise<void> {
    await this.#readSerially({ evenUnchanged: true });
  }

  close(): void {
    this.#closed = true;
    this.#watch.close();
  }

  /** Reads one at a time: if two reads overlapped and the older one finished last, it would restore revoked keys. */
  #readSerially(options = { evenUnchanged: false }): Promise<void> {
    this.#reading = this.#reading.then(() => this.#read(options));
    return this.#reading;
  }

  async #read({ evenUnchanged }: { evenUnchanged: boolean }): Promise<void> {
    const read = await readBounded(this.#options.path, MAX_BYTES).catch(messageOf);
    const version = typeof read === 'string' ? read : digestOf(read);
    if (this.#closed || (version === this.#version && !evenUnchanged)) return;
    this.#version = version;
    try {
      if (typeof read === 'string') throw new Error(`the file: ${read}`);
      const index = KeyIndex.of(await parseKeyFileInThread(read), this.#options.pepper);
      if (!this.#closed) this.accept(index, version);
    } catch (error) {
      const message = messageOf(error);
      const summary = `from an earlier version: the newest version was refused: ${message}`;
      if (!this.#closed) this.refuse(message, version, summary);
    }
  }
}

function digestOf(bytes: Buffer): string {
  return hash('sha256', bytes);
}
