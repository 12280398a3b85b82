import { AUDIT_RETENTION_MS } from '../../resolution.ts';
import { unseal } from './envelope.ts';
import type { Environment } from './environment.ts';
import { isAuditKey } from './keys.ts';
import type { Ages } from './stamp.ts';

const PAUSE_MS = 250;
const RECORDS_A_STEP = 50;
/** A step that removes a tenth of what it saw hurries on: so what is past its retention stays a small part of the store. */
const MANY = RECORDS_A_STEP / 10;
const SHORT_PAUSE_MS = 2;

/**
 * Removes records and audit records past their retention, a few at a time, round and round: slowly where there is little
 * to do, and as fast as the disk takes the removals where keys expire faster than that.
 * A record is never older than the claim that replaces it, so nothing depends on how soon the sweep comes by.
 */
export class Sweep {
  readonly #records: Environment['records'];
  readonly #commits: Environment['commits'];
  readonly #ages: Ages;
  readonly #retentionMs: number;
  readonly #mayWrite: () => boolean;
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;
  #next: Buffer | undefined;

  /** @param mayWrite asked before each step: a removal takes room on the disk before it gives any back */
  constructor(
    { records, commits, ages }: Environment & { ages: Ages },
    retentionMs: number,
    mayWrite: () => boolean,
  ) {
    this.#records = records;
    this.#commits = commits;
    this.#ages = ages;
    this.#retentionMs = retentionMs;
    this.#mayWrite = mayWrite;
    this.#goOn(PAUSE_MS);
  }

  #goOn(pauseMs: number): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(async () => {
      const removed = await this.step().catch(() => 0);
      this.#goOn(removed >= MANY ? SHORT_PAUSE_MS : PAUSE_MS);
    }, pauseMs).unref();
  }

  /** One step; resolves to the number of records removed. */
  async step(): Promise<number> {
    if (!this.#mayWrite()) return 0;
    const removals: Promise<boolean>[] = [];
    let seen = 0;
    const start = this.#next ? { start: this.#next } : {};
    for (const { key, value, version } of this.#records.getRange({
      ...start,
      limit: RECORDS_A_STEP,
      versions: true,
    })) {
      seen++;
      // The successor of a key is the key with a zero byte behind it.
      this.#next = Buffer.concat([key, Buffer.alloc(1)]);
      if (version !== undefined && this.#isExpired(key, value))
        removals.push(this.#commits.write(() => this.#records.remove(key, version)));
    }
    if (seen < RECORDS_A_STEP) this.#next = undefined;
    return (await Promise.all(removals)).filter(Boolean).length;
  }

  /** What cannot be read is not expired: it stays, for people to look at. */
  #isExpired(key: Buffer, value: Buffer): boolean {
    const retentionMs = isAuditKey(key) ? AUDIT_RETENTION_MS : this.#retentionMs;
    try {
      return this.#ages.sinceClaimMs(unseal(value).stamp) >= retentionMs;
    } catch {
      return false;
    }
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }
}
