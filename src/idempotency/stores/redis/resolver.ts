import type { Scope, Token } from '../../../kernel/brands.ts';
import type { Clock } from '../../../kernel/clock.ts';
import { decodeRecord, encodeSettlement, encodeTime, markOf } from '../../codec.ts';
import { newToken } from '../../fingerprint.ts';
import type { IdempotencyRecord } from '../../record.ts';
import {
  AUDIT_RETENTION_MS,
  type AuditRecord,
  auditRecord,
  decodeAudit,
  encodeAudit,
  type Resolution,
  type ResolutionNote,
  type Resolved,
} from '../../resolution.ts';
import { resolvable } from '../../standing.ts';
import { StoreUnavailable } from '../../store.ts';
import type { RedisClient } from './connect.ts';
import type { Leases } from './lease.ts';
import type { Writes } from './writes.ts';

export interface ResolverOptions {
  leaseMs: number;
  clock: Clock;
}

/** Resolves what is in doubt, and keeps the audit trail: a list in the record's own hash slot. */
export class Resolver {
  readonly #client: RedisClient;
  readonly #writes: Writes;
  readonly #leases: Leases;
  readonly #options: ResolverOptions;
  readonly #keyOf: (scope: Scope) => string;

  constructor(
    client: RedisClient,
    writes: Writes,
    leases: Leases,
    options: ResolverOptions,
    keyOf: (scope: Scope) => string,
  ) {
    this.#client = client;
    this.#writes = writes;
    this.#leases = leases;
    this.#options = options;
    this.#keyOf = keyOf;
  }

  async resolve(scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote): Promise<Resolved> {
    for (;;) {
      const bytes = await this.#client.getBuffer(this.#keyOf(scope));
      if (!bytes) return 'changed';
      const stands = decodeRecord(bytes);
      const verdict = resolvable(stands, seen);
      if (verdict !== 'doubtful') return verdict;
      const gaveUp = stands.state === 'in_doubt' && markOf(bytes) === 0;
      if (!gaveUp && (await this.#leases.isHeld(scope))) return 'alive';
      const resolved = await this.#write(scope, stands, resolution, note);
      // Its state under the token that was seen may have moved on.
      if (resolved !== 'changed') return resolved;
    }
  }

  async audit(scope: Scope): Promise<AuditRecord[]> {
    return (await this.#client.lrangeBuffer(this.#trailOf(scope), 0, -1)).map(decodeAudit);
  }

  async #write(
    scope: Scope,
    stands: IdempotencyRecord,
    resolution: Resolution,
    note: ResolutionNote,
  ): Promise<Resolved> {
    const { clock, leaseMs } = this.#options;
    const wallMs = clock.wallMs();
    const audit = encodeAudit(auditRecord(stands, resolution, note, wallMs));
    const released = { code: '', bytes: Buffer.alloc(0) };
    const { code, bytes } = resolution.as === 'settled' ? encodeSettlement(resolution.settlement) : released;
    const { reply, replicated } = await this.#writes.write<Resolved>((to) =>
      to.resolveRecord(
        this.#keyOf(scope),
        this.#trailOf(scope),
        stands.token,
        stands.state === 'executing' ? 'e' : 'd',
        leaseMs,
        code,
        newToken(),
        encodeTime(wallMs),
        bytes,
        audit,
        AUDIT_RETENTION_MS,
      ),
    );
    // Written, and yet a failover could bring back what was in doubt.
    if (reply === 'ok' && !replicated)
      throw new StoreUnavailable('redis: the resolution did not reach its replicas');
    return reply;
  }

  #trailOf(scope: Scope): string {
    return `${this.#keyOf(scope)}:audit`;
  }
}
