import type { RootDatabase } from 'lmdb';
import type { Scope } from '../../../kernel/brands.ts';
import { type AuditRecord, decodeAudit, encodeAudit } from '../../resolution.ts';
import { seal, unseal } from './envelope.ts';
import { newVersion } from './environment.ts';
import { auditCount, auditKey } from './keys.ts';
import type { Ages } from './stamp.ts';

/**
 * The audit records of scopes, beside the records themselves. A named database would itself be an entry among the
 * records, and need a second transaction.
 */
export class AuditTrail {
  readonly #records: RootDatabase<Buffer, Buffer>;
  readonly #ages: Ages;

  constructor(records: RootDatabase<Buffer, Buffer>, ages: Ages) {
    this.#records = records;
    this.#ages = ages;
  }

  read(scope: Scope): AuditRecord[] {
    this.#records.resetReadTxn();
    return [...this.#entries(scope)].map(({ value }) => decodeAudit(unseal(value).record));
  }

  /** Finds the place, and returns the write: to be called within the conditional write of what it tells about. */
  adding(scope: Scope, audit: AuditRecord): () => void {
    const last = [...this.#entries(scope)].at(-1);
    const number = last ? auditCount(last.key) + 1 : 0;
    const value = seal(this.#ages.now(), encodeAudit(audit));
    return () => void this.#records.put(auditKey(scope, number), value, newVersion());
  }

  #entries(scope: Scope) {
    return this.#records.getRange({ start: auditKey(scope, 0), end: auditKey(scope, 0xffffffff) });
  }
}
