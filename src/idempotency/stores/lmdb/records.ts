import type { Scope } from '../../../kernel/brands.ts';
import { decodeRecord } from '../../codec.ts';
import { type Absent, bytesOf, type Entry, type Place, type Standing } from './entry.ts';
import { unseal } from './envelope.ts';
import { type Environment, newVersion } from './environment.ts';
import { recordKey, settledKey, unsettledKey } from './keys.ts';
import type { Ages } from './stamp.ts';

/**
 * What stands under each scope, read and replaced: every write names what it replaces. A scope has one record at most, in
 * one of two places; whatever takes it from one to the other does both in one commit.
 */
export class Records {
  readonly #records: Environment['records'];
  readonly #commits: Environment['commits'];
  readonly #ages: Ages;
  readonly #retentionMs: number;

  constructor({ records, commits }: Environment, ages: Ages, retentionMs: number) {
    this.#records = records;
    this.#commits = commits;
    this.#ages = ages;
    this.#retentionMs = retentionMs;
  }

  /** What stands at this moment. Throws for bytes that are no record. */
  read(scope: Scope): Entry | Absent {
    // Another process may have written since the last read transaction of this turn. Both places are read in one.
    this.#records.resetReadTxn();
    return this.#at(settledKey(scope)) ?? this.#at(unsettledKey(scope)) ?? { expired: undefined };
  }

  #at(key: Buffer): Entry | Absent | undefined {
    const entry = this.#records.getEntry(key);
    if (!entry) return undefined;
    const { version = 0 } = entry;
    const { stamp, record } = unseal(entry.value);
    if (this.#ages.sinceClaimMs(stamp) >= this.#retentionMs) return { expired: { key, version } };
    return { key, version, stamp, record: decodeRecord(record) };
  }

  /** Adds a claim where nothing stands, or for a record past its retention. False: something stands by now. */
  async add(scope: Scope, expired: Place | undefined, next: Standing): Promise<boolean> {
    if (expired !== undefined) return await this.replace(scope, expired, next);
    const [key, bytes] = [unsettledKey(scope), bytesOf(next)];
    return await this.#commits.write(async () => {
      let inner: Promise<boolean> | undefined;
      // Whoever stood nowhere when it was read may have been claimed and settled since. Nothing may follow the inner
      // condition: where the outer one failed and the inner one holds, lmdb would carry it out.
      const outer = this.#records.ifNoExists(settledKey(scope), () => {
        inner = this.#records.ifNoExists(key, () => {
          void this.#records.put(key, bytes, newVersion());
        });
      });
      const [nowhere, added] = await Promise.all([outer, inner]);
      return nowhere && added === true;
    });
  }

  /** With `also` in the same commit. False: something else stands by now. */
  async replace(scope: Scope, { key, version }: Place, next: Standing, also?: () => void): Promise<boolean> {
    const [home, bytes] = [recordKey(scope, next.record.state), bytesOf(next)];
    return await this.#commits.write(() => {
      if (home.equals(key) && !also) return this.#records.put(key, bytes, newVersion(), version);
      return this.#records.ifVersion(key, version, () => {
        void this.#records.remove(key);
        void this.#records.put(home, bytes, newVersion());
        also?.();
      });
    });
  }

  /** With `also` in the same commit. False: something else stands by now. */
  async remove({ key, version }: Place, also?: () => void): Promise<boolean> {
    return await this.#commits.write(() => {
      if (!also) return this.#records.remove(key, version);
      return this.#records.ifVersion(key, version, () => {
        void this.#records.remove(key);
        also();
      });
    });
  }
}
