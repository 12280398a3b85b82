import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { access, readFile, rename, writeFile } from 'node:fs/promises';
import { dirname, join, parse } from 'node:path';
import type { Config } from '../config/schema.ts';
import {
  type Mode,
  type Store,
  type StoreMark,
  UnreadableMark,
  type UsedMark,
} from '../idempotency/store.ts';
import { thisBuild } from '../kernel/build.ts';
import type { Clock } from '../kernel/clock.ts';
import type { Logger } from '../observability/logger.ts';

/** Less than half of `MARK_LASTS_MS`, so that one mark may fail. */
const MARK_EVERY_MS = 60_000;

/** Where the mark of a configuration's store is kept. Each configuration has its own, because two may use different stores. */
export function markFileOf(configFile: string, { store }: Pick<Config, 'store'>): string {
  return store.markFile ?? join(dirname(configFile), `${parse(configFile).name}.store-mark.json`);
}

export interface StoreWatchOptions {
  file: string;
  store: Store;
  mode: Mode;
  /** How long a change of the store is warned about. Milliseconds. */
  warnForMs: number;
  clock: Clock;
  logger: Logger;
}

/** Must change with what an older gateway would misread. A file without a number has this format too. */
const FILE_FORMAT = 1;

/** What the file holds. */
interface Noted {
  format: typeof FILE_FORMAT;
  /** The store's mark when it was last seen. */
  mark: StoreMark;
  /** ISO 8601. */
  seenAt: string;
  /** The last time that the store was not the expected one. */
  changed?: Changed | undefined;
}

interface Changed {
  /** ISO 8601. */
  at: string;
  what: string;
}

/**
 * Notices that the store is another one, was emptied, or was restored from a backup: a file beside the configuration holds the
 * mark that the store had when it was last seen. No method throws, because a gateway without the file works as well.
 */
export class StoreWatch {
  /** The warnings when the gateway was opened. What is found later is logged here. */
  atStart: readonly string[] = [];
  /** The store's mark when the gateway was opened, if it had one. Undefined: it could not be read. */
  markAtStart: { mark: UsedMark | undefined } | undefined;
  readonly #options: StoreWatchOptions;
  #noted: StoreMark | undefined;
  #changed: Changed | undefined;
  #fileFailure: string | undefined;
  /** The file has a format of a later version, which must find it as it was. */
  #isFileForeign = false;
  #markFailure: string | undefined;
  #isOtherMode = false;
  #timer: NodeJS.Timeout | undefined;

  /** Reads the file and the store's mark, and compares them. Writes nothing. */
  static async open(options: StoreWatchOptions): Promise<StoreWatch> {
    const watch = new StoreWatch(options);
    await watch.#readFile();
    try {
      const mark = await options.store.readMark(options.mode);
      if (watch.#noted) watch.#compare(watch.#noted, mark, 0);
      watch.#isOtherMode = mark?.otherMode ?? false;
      watch.markAtStart = { mark };
    } catch (error) {
      // If the store is away, the first mark compares instead.
      watch.#notMarked(error);
    }
    watch.atStart = watch.warnings;
    return watch;
  }

  private constructor(options: StoreWatchOptions) {
    this.#options = options;
  }

  /** For the operator, as of now, one line each. */
  get warnings(): string[] {
    const { mode, warnForMs, clock } = this.#options;
    const warnings: string[] = [];
    if (this.#changed && clock.wallMs() - Date.parse(this.#changed.at) < warnForMs)
      warnings.push(`${this.#changed.what} (noticed at ${this.#changed.at})`);
    if (this.#isOtherMode) warnings.push(OTHER_MODE[mode]);
    if (this.#fileFailure) warnings.push(this.#fileFailure);
    if (this.#markFailure) warnings.push(this.#markFailure);
    return warnings;
  }

  /** Marks the store now and every minute, and notes the mark in the file. */
  begin(): void {
    this.#timer = setInterval(() => void this.mark(), MARK_EVERY_MS).unref();
    void this.mark();
  }

  /** The store's note that a gateway in this mode uses it is left to expire, because other gateways in this mode may use it. */
  close(): void {
    clearInterval(this.#timer);
  }

  /** Marks the store once, and notices whether it has changed. */
  async mark(): Promise<void> {
    const { store, mode, logger } = this.#options;
    const [before, failedBefore] = [this.#changed, this.#markFailure];
    let mark: Awaited<ReturnType<Store['mark']>>;
    try {
      mark = await store.mark(mode, thisBuild().version);
      this.#markFailure = undefined;
    } catch (error) {
      // If the store is away, it is compared when it is back.
      this.#notMarked(error);
      if (this.#markFailure && !failedBefore)
        logger.warn({ warning: `store: ${this.#markFailure}` }, 'something needs attention');
      return;
    }
    const { id, count, otherMode } = mark;
    if (this.#noted) this.#compare(this.#noted, { id, count }, 1);
    if (this.#changed && this.#changed !== before)
      logger.error({ warning: `store: ${this.#changed.what}` }, 'the store has changed');
    if (otherMode && !this.#isOtherMode)
      logger.warn({ warning: `store: ${OTHER_MODE[mode]}` }, 'something needs attention');
    this.#isOtherMode = otherMode;
    this.#noted = { id, count };
    await this.#writeFile();
  }

  /** @param grown by how much the count must have grown at least */
  #compare(noted: StoreMark, found: StoreMark | undefined, grown: 0 | 1): void {
    const what =
      found === undefined
        ? 'the store is new or was emptied'
        : found.id !== noted.id
          ? 'the store is not the one that was used before: it is another one, or it was emptied'
          : found.count < noted.count + grown
            ? 'the store is older than it was: it was restored from a backup, or has lost writes'
            : undefined;
    if (what === undefined) return;
    const at = new Date(this.#options.clock.wallMs()).toISOString();
    this.#changed = { at, what: `${what}; keys that it has forgotten can be paid again` };
    // So that the next mark is not compared with the old one again.
    this.#noted = found;
  }

  async #readFile(): Promise<void> {
    const { file } = this.#options;
    try {
      const noted = notedIn(await readFile(file, 'utf8'));
      this.#noted = noted.mark;
      this.#changed = noted.changed;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      this.#isFileForeign = error instanceof ForeignFile;
      const why = this.#isFileForeign ? (error as Error).message : (code ?? 'it is not valid');
      if (code !== 'ENOENT') this.#fileFailure = `${file} cannot be read (${why}), ${NOT_NOTICED}`;
    }
    try {
      await access(dirname(file), constants.W_OK);
    } catch (error) {
      this.#failed(error);
    }
  }

  async #writeFile(): Promise<void> {
    const { file, clock } = this.#options;
    if (!this.#noted || this.#isFileForeign) return;
    const seenAt = new Date(clock.wallMs()).toISOString();
    const noted: Noted = { format: FILE_FORMAT, mark: this.#noted, seenAt, changed: this.#changed };
    // Containers that share a volume may have the same pid.
    const draft = `${file}.${randomBytes(6).toString('hex')}`;
    try {
      await writeFile(draft, `${JSON.stringify(noted, undefined, 2)}\n`);
      await rename(draft, file);
      this.#fileFailure = undefined;
    } catch (error) {
      this.#failed(error);
    }
  }

  #notMarked(error: unknown): void {
    if (error instanceof UnreadableMark) this.#markFailure = `${error.message}, ${NOT_NOTICED}`;
  }

  #failed(error: unknown): void {
    const { code } = error as NodeJS.ErrnoException;
    this.#fileFailure = `${this.#options.file} cannot be written (${code}), ${NOT_NOTICED}`;
  }
}

const NOT_NOTICED = 'so a store that was emptied or restored is not noticed: see store.markFile';

const OTHER_MODE: Record<Mode, string> = {
  protect:
    'a gateway with idempotency.mode: observe uses this store, or did so within three minutes: its requests are not protected',
  observe:
    'a gateway with idempotency.mode: protect uses this store, or did so within three minutes: this one sends duplicates of what that one has executed',
};

class ForeignFile extends Error {}

/** @throws {ForeignFile} if a later version wrote it, and another error if it is damaged */
function notedIn(text: string): Noted {
  const {
    format = FILE_FORMAT,
    mark,
    seenAt,
    changed,
  } = JSON.parse(text) as Partial<Noted> & Pick<Noted, 'mark' | 'seenAt'>;
  if (format !== FILE_FORMAT)
    throw new ForeignFile(
      `it has format ${String(format).slice(0, 20)}, and this version knows format ${FILE_FORMAT}`,
    );
  const isMark = /^[0-9a-f]{32}$/.test(mark.id) && Number.isSafeInteger(mark.count);
  const isChange =
    changed === undefined || (typeof changed.what === 'string' && !Number.isNaN(Date.parse(changed.at)));
  if (!isMark || !isChange) throw new SyntaxError('not a mark');
  return { format, mark: { id: mark.id, count: mark.count }, seenAt, changed };
}
