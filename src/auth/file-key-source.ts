import { hash } from 'node:crypto';
import type { Clock } from '../kernel/clock.ts';
import { readBounded } from './bounded-file.ts';
import { FileWatch } from './file-watch.ts';
import { parseKeyFile } from './key-file.ts';
import { parseKeyFileApart } from './key-file-thread.ts';
import { KeyIndex } from './key-index.ts';
import type { KeyEntry, KeySource, KeySourceHealth } from './key-source.ts';

/** Largest key file: 64 MiB. */
const MAX_BYTES = 64 * 1024 * 1024;

/** A changed key file was taken, or refused: then the old keys stay in force. `error` is safe to log. */
export type Reload = { ok: true; keys: number } | { ok: false; error: string };

export interface FileKeySourceOptions {
  path: string;
  /** As in {@link KeyIndex.of}. */
  pepper?: string | undefined;
  clock: Clock;
  /** Milliseconds between two looks at the file. Default 1000. */
  pollMs?: number;
  /** Told of every change of the file, once. Must not throw. */
  onReload?: (reload: Reload) => void;
}

/** Secret keys from a YAML file, read again when it changes. */
export class FileKeySource implements KeySource {
  readonly #options: FileKeySourceOptions;
  readonly #watch: FileWatch;
  #index: KeyIndex;
  #loadedAtMs: number;
  /** What the file was when last looked into: a digest of its bytes, or why there were none. */
  #state: string;
  #refusal: string | undefined;
  #closed = false;
  #generation = 0;

  private constructor(options: FileKeySourceOptions, bytes: Buffer) {
    this.#options = options;
    this.#index = KeyIndex.of(parseKeyFile(bytes), options.pepper);
    this.#state = digestOf(bytes);
    this.#loadedAtMs = options.clock.wallMs();
    this.#watch = new FileWatch(options.path, options.pollMs ?? 1000, () => this.#reload());
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

  async #reload(): Promise<void> {
    const read = await readBounded(this.#options.path, MAX_BYTES).catch(messageOf);
    const state = typeof read === 'string' ? read : digestOf(read);
    if (state === this.#state || this.#closed) return;
    this.#state = state;
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
    this.#options.onReload?.({ ok: true, keys: index.size });
  }

  #refuse(error: string): void {
    this.#refusal = error;
    this.#options.onReload?.({ ok: false, error });
  }
}

function digestOf(bytes: Buffer): string {
  return hash('sha256', bytes);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : 'unknown error';
}
