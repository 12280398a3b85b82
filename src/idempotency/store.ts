import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';
import type { ListFilter, Listing } from './listing.ts';
import type { IdempotencyRecord, Settlement } from './record.ts';
import type { AuditRecord, Resolution, ResolutionNote, Resolved } from './resolution.ts';

/** Who writes: every write after the claim shows the token that the claim was made under. */
export interface Owner {
  readonly scope: Scope;
  readonly token: Token;
}

export interface ClaimRequest extends Owner {
  readonly fingerprint: Fingerprint;
  readonly merchant: string;
  readonly operation: string;
  /** The idempotency key, 1 to 255 printable ASCII characters. */
  readonly key: string;
}

/** Answer to a claim. `claimed` makes the caller the owner; everything else says what stands there. */
export type Claim =
  | { kind: 'claimed'; tookOver: boolean }
  | { kind: 'in_flight' }
  | { kind: 'settled'; settlement: Settlement }
  | { kind: 'mismatch' }
  | { kind: 'in_doubt'; sinceMs: number };

/** `stale`: the scope is no longer held under this token, and nothing was written. */
export type Fenced = 'ok' | 'stale';

export interface StoreHealth {
  ok: boolean;
  /** One line for the operator. */
  detail: string;
  /** Settings under which the store cannot keep the promise, each one line. */
  warnings: string[];
}

/**
 * Holds one record a scope. Every method either answers or throws {@link StoreUnavailable}; after a throw the write
 * may or may not have happened, or may still happen, and a repeat under the same token does no harm.
 *
 * Retention and lease length are the store's own options: `retentionMs` from the first claim, `leaseMs`.
 */
export interface Store {
  /** Decides in one atomic step who owns the scope. A claim whose owner has gone before it began is taken over here. */
  claim(request: ClaimRequest): Promise<Claim>;
  /** claimed → executing, and takes the lease. `ok` is durable: only then may a byte go upstream. */
  begin(owner: Owner): Promise<Fenced>;
  /**
   * In doubt, with this fingerprint → executing under a new token, durable like begin, and takes the lease. `changed`:
   * something else stands there, or nothing. Only for a backend that is itself idempotent on the key.
   */
  takeOver(heir: Owner, fingerprint: Fingerprint): Promise<'ok' | 'changed'>;
  /** Extends the lease. `stale`: the claim was taken over. `lost`: the lease had lapsed and was taken again. */
  renew(owner: Owner): Promise<Fenced | 'lost'>;
  /** executing or in doubt → settled, durable, and gives the lease back. Settling the same token again is `ok`. */
  settle(owner: Owner, settlement: Settlement): Promise<Fenced>;
  /** claimed, executing or in doubt → absent: surely nothing was executed. */
  release(owner: Owner): Promise<Fenced>;
  /** executing → in doubt, and gives the lease back. */
  markInDoubt(owner: Owner): Promise<Fenced>;
  /** What stands under a scope, or undefined. An unreadable record throws. */
  get(scope: Scope): Promise<IdempotencyRecord | undefined>;
  /**
   * A page of records, in no order that means anything. One that cannot be read is listed as such. What changes
   * meanwhile may be missed, or come twice.
   *
   * @throws {UnknownCursor}
   */
  list(filter: ListFilter): Promise<Listing>;
  /**
   * In doubt, or executing with its owner gone, under the token that was seen → settled under a new token, so that a
   * late owner's settle is refused, or absent. The retention stays. Writes an audit record in the same atomic step;
   * durable like settle.
   */
  resolve(scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote): Promise<Resolved>;
  /** What was resolved under a scope, the oldest first; kept for {@link AUDIT_RETENTION_MS}. */
  audit(scope: Scope): Promise<AuditRecord[]>;
  health(): Promise<StoreHealth>;
  close(): Promise<void>;
}

/** The store did not answer within its time limit, or answered something that cannot be trusted. */
export class StoreUnavailable extends Error {
  override readonly name = 'StoreUnavailable';
  /** False: the command surely never left this process, so that there is nothing to take back. */
  readonly maybeWritten: boolean;
  /** True: no write of this process will succeed any more. */
  readonly forGood: boolean;
  constructor(message: string, options: ErrorOptions & { maybeWritten?: boolean; forGood?: boolean } = {}) {
    super(message, options);
    this.maybeWritten = options.maybeWritten ?? true;
    this.forGood = options.forGood ?? false;
  }
}
