import type { Scope, Token } from '../../../kernel/brands.ts';
import type { Clock } from '../../../kernel/clock.ts';
import { newToken } from '../../fingerprint.ts';
import type { Settlement } from '../../record.ts';
import { auditRecord, type Resolution, type ResolutionNote, type Resolved } from '../../resolution.ts';
import { resolvable } from '../../standing.ts';
import type { AuditTrail } from './audit-trail.ts';
import type { Absent, Entry, Standing } from './entry.ts';
import type { Records } from './records.ts';
import type { Ages } from './stamp.ts';

/** Resolves what is in doubt, and keeps the audit trail. */
export class Resolver {
  readonly #records: Records;
  readonly #trail: AuditTrail;
  readonly #ages: Ages;
  readonly #options: { leaseMs: number; clock: Clock };
  readonly #read: (scope: Scope) => Entry | Absent;

  /** @param read what stands at this moment */
  constructor(
    records: Records,
    trail: AuditTrail,
    ages: Ages,
    options: { leaseMs: number; clock: Clock },
    read: (scope: Scope) => Entry | Absent,
  ) {
    this.#records = records;
    this.#trail = trail;
    this.#ages = ages;
    this.#options = options;
    this.#read = read;
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

  /** The change and its audit record: both, or neither. False: something else stands by now. */
  async #write(scope: Scope, entry: Entry, resolution: Resolution, note: ResolutionNote): Promise<boolean> {
    const wallMs = this.#options.clock.wallMs();
    const addAudit = this.#trail.adding(scope, auditRecord(entry.record, resolution, note, wallMs));
    if (resolution.as === 'released') return await this.#records.remove(entry, addAudit);
    const next = this.#settled(entry, resolution.settlement, wallMs);
    return await this.#records.replace(scope, entry, next, addAudit);
  }

  #settled({ record, stamp }: Entry, settlement: Settlement, changedAtMs: number): Standing {
    const settled = { ...record, state: 'settled' as const, token: newToken(), changedAtMs, settlement };
    return { record: settled, stamp: this.#ages.alive(stamp) };
  }
}
