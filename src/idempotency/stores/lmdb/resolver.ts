import type { Scope, Token } from '../../../kernel/brands.ts';
import type { Clock } from '../../../kernel/clock.ts';
import { newToken } from '../../fingerprint.ts';
import type { Settlement } from '../../record.ts';
import {
  type AuditRecord,
  auditRecord,
  type Resolution,
  type ResolutionNote,
  type Resolved,
} from '../../resolution.ts';
import { resolvable } from '../../standing.ts';
import { AuditTrail } from './audit-trail.ts';
import { type Absent, bytesOf, type Entry, type Standing } from './entry.ts';
import { type Environment, keyOf, newVersion } from './environment.ts';
import type { Ages } from './stamp.ts';

/** Resolves what is in doubt, and keeps the audit trail. */
export class Resolver {
  readonly #records: Environment['records'];
  readonly #presence: Environment['presence'];
  readonly #ages: Ages;
  readonly #options: { leaseMs: number; clock: Clock };
  readonly #read: (scope: Scope) => Entry | Absent;
  readonly #trail: AuditTrail;

  /** @param read what stands at this moment */
  constructor(
    { records, presence, ages }: Environment & { ages: Ages },
    options: { leaseMs: number; clock: Clock },
    read: (scope: Scope) => Entry | Absent,
  ) {
    this.#records = records;
    this.#presence = presence;
    this.#ages = ages;
    this.#options = options;
    this.#read = read;
    this.#trail = new AuditTrail(records, ages);
  }

  async resolve(scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote): Promise<Resolved> {
    for (;;) {
      const entry = this.#read(scope);
      if (!('record' in entry)) return 'changed';
      const verdict = resolvable(entry.record, seen);
      if (verdict !== 'doubtful') return verdict;
      if (this.#ages.sinceAliveMs(entry.stamp) < this.#options.leaseMs) return 'alive';
      if (await this.#write(scope, entry, resolution, note)) return 'ok';
    }
  }

  audit(scope: Scope): AuditRecord[] {
    this.#records.resetReadTxn();
    return this.#trail.read(scope);
  }

  /** The change and its audit record: both, or neither. False: something else stands by now. */
  async #write(scope: Scope, entry: Entry, resolution: Resolution, note: ResolutionNote): Promise<boolean> {
    const wallMs = this.#options.clock.wallMs();
    const addAudit = this.#trail.adding(scope, auditRecord(entry.record, resolution, note, wallMs));
    const key = keyOf(scope);
    const bytes =
      resolution.as === 'settled' ? bytesOf(this.#settled(entry, resolution.settlement, wallMs)) : undefined;
    return await this.#presence.write(() =>
      this.#records.ifVersion(key, entry.version, () => {
        if (bytes) void this.#records.put(key, bytes, newVersion());
        else void this.#records.remove(key);
        addAudit();
      }),
    );
  }

  #settled({ record, stamp }: Entry, settlement: Settlement, changedAtMs: number): Standing {
    const settled = { ...record, state: 'settled' as const, token: newToken(), changedAtMs, settlement };
    return { record: settled, stamp: this.#ages.alive(stamp) };
  }
}
