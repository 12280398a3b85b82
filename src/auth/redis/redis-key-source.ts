import { within } from '../../kernel/clock.ts';
import { KeyFileError } from '../key-file.ts';
import { KeyIndex } from '../key-index.ts';
import type { KeyEntry, KeySourceHealth } from '../key-source.ts';
import { messageOf, ReloadableKeys, type ReloadableKeysOptions } from '../reloadable-keys.ts';
import { KeysUnavailable, type RedisKeyList, type StoredKeys } from './key-list.ts';
import { UsedKeys } from './used-keys.ts';

/** Short enough that a revoked key is refused within a second. */
const POLL_MS = 250;

/** The end of a gateway does not wait longer for the last days of use. */
const CLOSE_WITHIN_MS = 1000;

/** After this time without an answer, the keys may be out of date by more than was promised, and that is reported. */
const AWAY_AFTER_MS = 1000;

export interface RedisKeySourceOptions extends ReloadableKeysOptions {
  /** The source closes it. */
  list: RedisKeyList;
  /** At least 16 characters. */
  pepper: string;
  /** Milliseconds between two checks of the list's version. Default 250. */
  pollMs?: number;
  /** How long uses of keys are collected before they are written, in milliseconds. Default 5000. */
  collectUsesMs?: number;
}

/**
 * Secret keys from a list in Redis. All of them are in memory, and are read again when the list's version changes. While Redis
 * is away, the keys that were loaded stay in force.
 */
export class RedisKeySource extends ReloadableKeys {
  readonly #options: RedisKeySourceOptions;
  readonly #uses: UsedKeys;
  /** The version at the last attempt to read the list. */
  #version: string;
  /** The number of changes that the keys in force have. */
  #changes: number;
  /** Redis has lost changes, and had this many at first. Infinity: it has not. */
  #lostUntil = Number.POSITIVE_INFINITY;
  #answeredAtMs: number;
  #isAway = false;
  #closed = false;
  #timer: NodeJS.Timeout | undefined;
  #reading: Promise<void> = Promise.resolve();

  private constructor(options: RedisKeySourceOptions, { version, changes, file }: StoredKeys) {
    super(options.list.place, KeyIndex.of(file, options.pepper), options);
    this.#options = options;
    this.#version = version;
    this.#changes = changes;
    this.#answeredAtMs = options.clock.monotonicMs();
    this.#uses = new UsedKeys(options.list, options.clock, options.collectUsesMs);
    this.#pollSoon();
  }

  /** @throws KeysUnavailable if Redis does not answer; Error with all mistakes if the list is missing or refused */
  static async open(options: RedisKeySourceOptions): Promise<RedisKeySource> {
    const { list } = options;
    try {
      const stored = await list.read();
      if (!stored) throw new Error(noList(list));
      return new RedisKeySource(options, stored);
    } catch (error) {
      list.close();
      if (!(error instanceof KeyFileError)) throw error;
      const lines = error.message.split('\n').map((line) => `  ${line}`);
      throw new Error(`the secret keys in ${list.place} are refused:\n${lines.join('\n')}`);
    }
  }

  override health(): KeySourceHealth {
    const health = super.health();
    const { failure } = this.#uses;
    if (failure === undefined) return health;
    return { ...health, detail: `${health.detail}; the days of use cannot be noted: ${failure}` };
  }

  async reload(): Promise<void> {
    await this.#readSerially({ evenUnchanged: true });
  }

  noteUse(entry: KeyEntry): void {
    this.#uses.note(entry);
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await within(this.#uses.close(), CLOSE_WITHIN_MS);
    this.#options.list.close();
  }

  #pollSoon(): void {
    if (this.#closed) return;
    this.#timer = setTimeout(() => {
      void this.#readSerially({ evenUnchanged: false }).then(() => this.#pollSoon());
    }, this.#options.pollMs ?? POLL_MS).unref();
  }

  /** Reads one at a time: if two reads overlapped and the older one finished last, it would restore revoked keys. */
  #readSerially(options: { evenUnchanged: boolean }): Promise<void> {
    this.#reading = this.#reading.then(() => this.#read(options));
    return this.#reading;
  }

  async #read({ evenUnchanged }: { evenUnchanged: boolean }): Promise<void> {
    const { list } = this.#options;
    let seen = '';
    try {
      seen = (await list.version()) ?? '';
      const isKnown = seen === this.#version && !this.#isAway;
      if (isKnown && !evenUnchanged) return this.#answered();
      const stored = await list.read();
      seen = stored?.version ?? '';
      const index = this.#indexOf(stored, evenUnchanged);
      if (this.#closed) return;
      this.#version = seen;
      this.#answered();
      this.accept(index, seen);
    } catch (error) {
      if (this.#closed) return;
      // The version stays the old one, so that the next poll reads the list again.
      if (error instanceof KeysUnavailable) return this.#unanswered(error.message, evenUnchanged);
      this.#version = seen;
      this.#answered();
      const message = messageOf(error);
      const summary = `from an earlier version: the newest version was refused: ${message}`;
      this.refuse(message, seen, summary);
    }
  }

  #indexOf(stored: StoredKeys | undefined, evenOlder: boolean): KeyIndex {
    const { list, pepper } = this.#options;
    if (!stored) throw new KeyFileError([noList(list)]);
    if (stored.changes < this.#changes && !evenOlder) {
      this.#lostUntil = Math.min(this.#lostUntil, stored.changes);
      if (stored.changes <= this.#lostUntil) throw new KeyFileError([lost(stored, this.#changes)]);
    }
    const index = KeyIndex.of(stored.file, pepper);
    this.#changes = stored.changes;
    this.#lostUntil = Number.POSITIVE_INFINITY;
    return index;
  }

  #answered(): void {
    this.#answeredAtMs = this.#options.clock.monotonicMs();
    this.#isAway = false;
  }

  #unanswered(message: string, evenUnchanged: boolean): void {
    const isReported = this.#isAway;
    const unansweredMs = this.#options.clock.monotonicMs() - this.#answeredAtMs;
    this.#isAway ||= evenUnchanged || unansweredMs >= AWAY_AFTER_MS;
    if (evenUnchanged || (this.#isAway && !isReported))
      this.refuse(message, 'unavailable', `which may be out of date: ${message}`);
  }
}

const noList = ({ place }: RedisKeyList): string =>
  `there are no secret keys in ${place}: oncegate keys issue makes the first one`;

/** A failover or a restored backup may have lost a revocation, so the list is used only when an operator has seen it. */
const lost = ({ changes }: StoredKeys, known: number): string =>
  `redis has lost changes of the keys: it has ${changes} and had ${known}; the next change, or SIGHUP, puts its list in force`;
