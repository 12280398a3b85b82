import type { Clock } from '../../kernel/clock.ts';
import type { KeyEntry } from '../key-source.ts';
import { fieldOf, type RedisKeyList } from './key-list.ts';

const COLLECT_MS = 5000;

/** Small enough that Redis is not blocked. */
const MOST_IN_ONE_WRITE = 500;

const DAY_MS = 24 * 3_600_000;

/**
 * Notes in Redis on which day (UTC) each key was used, at most once a day for each key. Writes in the background, many keys
 * together. What cannot be written is tried again; what is not written when the process ends is lost.
 */
export class UsedKeys {
  readonly #list: RedisKeyList;
  readonly #clock: Pick<Clock, 'wallMs'>;
  readonly #collectMs: number;
  /** Digests of the keys that were noted on `#day`. */
  readonly #noted = new Set<string>();
  /** The day since the epoch. */
  #day = Number.NaN;
  /** Days that are not written yet, by field of the key. */
  readonly #unwritten = new Map<string, string>();
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> | undefined;
  #closed = false;
  #failure: string | undefined;

  constructor(list: RedisKeyList, clock: Pick<Clock, 'wallMs'>, collectMs = COLLECT_MS) {
    this.#list = list;
    this.#clock = clock;
    this.#collectMs = collectMs;
  }

  /** Why the last attempt to write failed; undefined: it did not. */
  get failure(): string | undefined {
    return this.#failure;
  }

  /** Called for each request. */
  note(entry: KeyEntry): void {
    const day = Math.floor(this.#clock.wallMs() / DAY_MS);
    if (day !== this.#day) {
      this.#day = day;
      this.#noted.clear();
    }
    if (this.#noted.has(entry.digest)) return;
    this.#noted.add(entry.digest);
    this.#unwritten.set(fieldOf(entry), new Date(day * DAY_MS).toISOString().slice(0, 10));
    this.#writeSoon();
  }

  /** Tries once to write what is left. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#closed = true;
    await this.#writing;
    await this.#write();
  }

  #writeSoon(): void {
    if (this.#timer || this.#closed) return;
    this.#timer = setTimeout(() => {
      this.#writing = this.#write().finally(() => {
        this.#timer = undefined;
        if (this.#unwritten.size > 0) this.#writeSoon();
      });
    }, this.#collectMs).unref();
  }

  /** Stops at the first failure. Never rejects. */
  async #write(): Promise<void> {
    while (this.#unwritten.size > 0) {
      const [day = ''] = this.#unwritten.values();
      const fields = [...this.#unwritten]
        .filter(([, its]) => its === day)
        .slice(0, MOST_IN_ONE_WRITE)
        .map(([field]) => field);
      try {
        await this.#list.noteUses(day, fields);
        this.#failure = undefined;
      } catch (error) {
        this.#failure = (error as Error).message;
        return;
      }
      // A key may have been used on the next day meanwhile.
      for (const field of fields) if (this.#unwritten.get(field) === day) this.#unwritten.delete(field);
    }
  }
}
