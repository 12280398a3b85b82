import type { Scope } from '../../../kernel/brands.ts';
import { decodeRecord } from '../../codec.ts';
import { type Absent, bytesOf, type Entry, type Standing } from './entry.ts';
import { unseal } from './envelope.ts';
import { type Environment, keyOf, newVersion } from './environment.ts';
import type { Ages } from './stamp.ts';

/** What stands under each scope, read and replaced: every write names the version that it replaces. */
export class Records {
  readonly #records: Environment['records'];
  readonly #presence: Environment['presence'];
  readonly #ages: Ages;
  readonly #retentionMs: number;

  constructor({ records, presence }: Environment, ages: Ages, retentionMs: number) {
    this.#records = records;
    this.#presence = presence;
    this.#ages = ages;
    this.#retentionMs = retentionMs;
  }

  /** What stands at this moment. Throws for bytes that are no record. */
  read(scope: Scope): Entry | Absent {
    // Another process may have written since the last read transaction of this turn.
    this.#records.resetReadTxn();
    const entry = this.#records.getEntry(keyOf(scope));
    if (!entry) return { expired: undefined };
    const { version = 0 } = entry;
    const { stamp, record } = unseal(entry.value);
    if (this.#ages.sinceClaimMs(stamp) >= this.#retentionMs) return { expired: version };
    return { version, stamp, record: decodeRecord(record) };
  }

  /** Adds where nothing stands, or in the very place of a record past its retention. False: something stands by now. */
  async add(scope: Scope, expired: number | undefined, next: Standing): Promise<boolean> {
    if (expired !== undefined) return await this.replace(scope, expired, next);
    const key = keyOf(scope);
    return await this.#presence.write(() =>
      this.#records.ifNoExists(key, () => {
        void this.#records.put(key, bytesOf(next), newVersion());
      }),
    );
  }

  /** False: another version stands by now. */
  async replace(scope: Scope, version: number, next: Standing): Promise<boolean> {
    const bytes = bytesOf(next);
    return await this.#presence.write(() => this.#records.put(keyOf(scope), bytes, newVersion(), version));
  }

  /** False: another version stands by now. */
  async remove(scope: Scope, version: number): Promise<boolean> {
    return await this.#presence.write(() => this.#records.remove(keyOf(scope), version));
  }
}
