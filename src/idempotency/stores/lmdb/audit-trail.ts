import type { RootDatabase } from 'lmdb';
import type { Scope } from '../../../kernel/brands.ts';
import { type AuditRecord, decodeAudit, encodeAudit } from '../../resolution.ts';
import { seal, unseal } from './envelope.ts';
import { keyOf, newVersion, SCOPE_BYTES } from './environment.ts';
import type { Ages } from './stamp.ts';

/**
 * The audit records of scopes, beside the records themselves: under the scope's digest and a u32 that counts up. A
 * named database would itself be an entry among the records, and need a second transaction.
 */
export class AuditTrail {
  readonly #records: RootDatabase<Buffer, Buffer>;
  readonly #ages: Ages;

  constructor(records: RootDatabase<Buffer, Buffer>, ages: Ages) {
    this.#records = records;
    this.#ages = ages;
  }

  read(scope: Scope): AuditRecord[] {
    return [...this.#entries(scope)].map(({ value }) => decodeAudit(unseal(value).record));
  }

  /** Finds the place, and returns the write: to be called within the conditional write of what it tells about. */
  adding(scope: Scope, audit: AuditRecord): () => void {
    const last = [...this.#entries(scope)].at(-1);
    const number = last ? last.key.readUInt32BE(SCOPE_BYTES) + 1 : 0;
    const value = seal(this.#ages.now(), encodeAudit(audit));
    return () => void this.#records.put(auditKey(scope, number), value, newVersion());
  }

  #entries(scope: Scope) {
    return this.#records.getRange({ start: auditKey(scope, 0), end: auditKey(scope, 0xffffffff) });
  }
}

function auditKey(scope: Scope, number: number): Buffer {
  const count = Buffer.alloc(4);
  count.writeUInt32BE(number);
  return Buffer.concat([keyOf(scope), count]);
}
