import type { Clock } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/context.ts';
import type { KeyIndex } from './key-index.ts';
import type { KeyEntry, KeySource, KeySourceHealth } from './key-source.ts';

export interface ReloadableKeysOptions {
  clock: Clock;
  /** Called once for each change of the keys and for each {@link KeySource.reload}. Must not throw. */
  onReload?: (reload: KeyReload) => void;
}

/** Keys that are read again when they change. If a new version is refused or cannot be read, the old keys stay in force. */
export abstract class ReloadableKeys implements KeySource {
  readonly #place: string;
  readonly #options: ReloadableKeysOptions;
  readonly #listeners: (() => void)[] = [];
  #index: KeyIndex;
  #loadedAtMs: number;
  /** Why the newest version is not in force; undefined: it is. */
  #refusal: string | undefined;
  #generation = 0;

  /** @param place where the keys are, for an operator */
  protected constructor(place: string, index: KeyIndex, options: ReloadableKeysOptions) {
    this.#place = place;
    this.#options = options;
    this.#index = index;
    this.#loadedAtMs = options.clock.wallMs();
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

  /** Always ok: the old keys stay in force, and a mistake in the new ones must not take the gateway out of service. */
  health(): KeySourceHealth {
    const keys = this.#index.size;
    const loaded = `${keys} ${keys === 1 ? 'key' : 'keys'} from ${this.#place}`;
    const [refusal] = this.#refusal?.split('\n') ?? [];
    const detail = refusal === undefined ? loaded : `${loaded}, ${refusal}`;
    return { ok: true, detail, loadedAtMs: this.#loadedAtMs, keys };
  }

  abstract reload(): Promise<void>;
  abstract close(): void | Promise<void>;

  /** Puts new keys in force. @param version the `version` of {@link KeyReload} */
  protected accept(index: KeyIndex, version: string): void {
    this.#index = index;
    this.#generation++;
    this.#loadedAtMs = this.#options.clock.wallMs();
    this.#refusal = undefined;
    for (const listener of this.#listeners) listener();
    this.#options.onReload?.({ ok: true, keys: index.size, version });
  }

  /**
   * Leaves the old keys in force, and says why.
   *
   * @param error one line for each mistake
   * @param summary what `health` adds about the old keys; only its first line
   */
  protected refuse(error: string, version: string, summary: string): void {
    this.#refusal = summary;
    this.#options.onReload?.({ ok: false, error, version });
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : 'unknown error';
}
