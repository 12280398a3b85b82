import type { Database } from 'lmdb';
import { AUDIT_RETENTION_MS } from '../../resolution.ts';
import { unseal } from './envelope.ts';
import { SCOPE_BYTES } from './environment.ts';
import type { Ages } from './stamp.ts';

const PAUSE_MS = 250;
const RECORDS_A_STEP = 50;

/**
 * Removes records and audit records past their retention, a few at a time, round and round: 200 a second, 17 million a day.
 * A record is never older than the claim that replaces it, so nothing depends on how soon the sweep comes by.
 */
export class Sweep {
  readonly #records: Database<Buffer, Buffer>;
  readonly #ages: Ages;
  readonly #retentionMs: number;
  readonly #timer: NodeJS.Timeout;
  #next: Buffer | undefined;

  constructor(records: Database<Buffer, Buffer>, ages: Ages, retentionMs: number) {
    this.#records = records;
    this.#ages = ages;
    this.#retentionMs = retentionMs;
    this.#timer = setInterval(() => void this.step().catch(() => {}), PAUSE_MS);
    this.#timer.unref();
  }

  /** One step; resolves to the number of records removed. */
  async step(): Promise<number> {
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
        removals.push(this.#records.remove(key, version));
    }
    if (seen < RECORDS_A_STEP) this.#next = undefined;
    return (await Promise.all(removals)).filter(Boolean).length;
  }

  /** What cannot be read is not expired: it stays, for people to look at. */
  #isExpired(key: Buffer, value: Buffer): boolean {
    const retentionMs = key.length === SCOPE_BYTES ? this.#retentionMs : AUDIT_RETENTION_MS;
    try {
      return this.#ages.sinceClaimMs(unseal(value).stamp) >= retentionMs;
    } catch {
      return false;
    }
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
