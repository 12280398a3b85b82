import { hash } from 'node:crypto';
import type { Clock } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/context.ts';
import { readBounded } from './bounded-file.ts';
import { FileWatch } from './file-watch.ts';
import { parseKeyFile } from './key-file.ts';
import { parseKeyFileApart } from './key-file-thread.ts';
import { KeyIndex } from './key-index.ts';
import type { KeyEntry, KeySource, KeySourceHealth } from './key-source.ts';

/** Largest key file: 64 MiB. */
const MAX_BYTES = 64 * 1024 * 1024;

/** With the times to settle and to be parsed, a key that leaves the file is refused within a second. */
const POLL_MS = 300;

export interface FileKeySourceOptions {
  path: string;
  /** As in {@link KeyIndex.of}. */
  pepper?: string | undefined;
  clock: Clock;
  /** Milliseconds between two looks at the file. Default 300. */
  pollMs?: number;
  /** Called once for each change of the file, and for each {@link FileKeySource.reload}. Must not throw. */
  onReload?: (reload: KeyReload) => void;
}

/** Secret keys from a YAML file, read again when it changes. */
export class FileKeySource implements KeySource {
  readonly #options: FileKeySourceOptions;
  readonly #watch: FileWatch;
  #index: KeyIndex;
  #loadedAtMs: number;
  /** As in {@link KeyReload}, of the last reading. */
  #version: string;
  #refusal: string | undefined;
  #closed = false;
  #generation = 0;
  #reading: Promise<void> = Promise.resolve();
  readonly #listeners: (() => void)[] = [];

  private constructor(options: FileKeySourceOptions, bytes: Buffer) {
    this.#options = options;
    this.#index = KeyIndex.of(parseKeyFile(bytes), options.pepper);
    this.#version = digestOf(bytes);
    this.#loadedAtMs = options.clock.wallMs();
    this.#watch = new FileWatch(options.path, options.pollMs ?? POLL_MS, () => this.#readInTurn());
  }

  /** @throws Error that names the file and every mistake, a line each */
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

  again(earlier: KeyEntry): KeyEntry | undefined {
    return this.#index.again(earlier);
  }

  entries(): Iterable<KeyEntry> {
    return this.#index.entries();
  }

  async reload(): Promise<void> {
    await this.#readInTurn({ evenUnchanged: true });
  }

  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  /** Stays ok while old keys are in force: a mistake in a file must not take a gateway out of service. */
  health(): KeySourceHealth {
    const keys = this.#index.size;
    const held = `${keys} ${keys === 1 ? 'key' : 'keys'} from ${this.#options.path}`;
    const [refusal] = this.#refusal?.split('\n') ?? [];
    const detail =
      refusal === undefined ? held : `${held}, of an earlier state: the newest was refused: ${refusal}`;
    return { ok: true, detail, loadedAtMs: this.#loadedAtMs, keys };
  }

  close(): void {
    this.#closed = true;
    this.#watch.close();
  }

  /** One reading after the other: an older one that ends later would bring revoked keys back. */
  #readInTurn(how = { evenUnchanged: false }): Promise<void> {
    this.#reading = this.#reading.then(() => this.#read(how));
    return this.#reading;
  }

  async #read({ evenUnchanged }: { evenUnchanged: boolean }): Promise<void> {
    const read = await readBounded(this.#options.path, MAX_BYTES).catch(messageOf);
    const version = typeof read === 'string' ? read : digestOf(read);
    if (this.#closed || (version === this.#version && !evenUnchanged)) return;
    this.#version = version;
    try {
      if (typeof read === 'string') throw new Error(`the file: ${read}`);
      const index = KeyIndex.of(await parseKeyFileApart(read), this.#options.pepper);
      if (!this.#closed) this.#take(index);
    } catch (error) {
      if (!this.#closed) this.#refuse(messageOf(error));
    }
  }

  #take(index: KeyIndex): void {
    this.#index = index;
    this.#generation++;
    this.#loadedAtMs = this.#options.clock.wallMs();
    this.#refusal = undefined;
    for (const listener of this.#listeners) listener();
    this.#options.onReload?.({ ok: true, keys: index.size, version: this.#version });
  }

  #refuse(error: string): void {
    this.#refusal = error;
    this.#options.onReload?.({ ok: false, error, version: this.#version });
  }
}

function digestOf(bytes: Buffer): string {
  return hash('sha256', bytes);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : 'unknown error';
}
