import { newToken } from '../../../src/idempotency/fingerprint.ts';
import type { Settlement } from '../../../src/idempotency/record.ts';
import type { Resolution, Resolved } from '../../../src/idempotency/resolution.ts';
import type { Claim, ClaimRequest, Fenced, Owner } from '../../../src/idempotency/store.ts';
import type { Fingerprint, Scope, Token } from '../../../src/kernel/brands.ts';

/** Where the contract leaves a store the choice: the engine claims once under a token. */
export interface Freedoms {
  /** A claim that is delivered twice: is it known to be the same one, or taken for a stranger's? */
  knowsOwnClaim: boolean;
}

/** What stands under a scope. Absence is the lack of one. */
export interface Stands {
  state: 'claimed' | 'executing' | 'settled' | 'in_doubt';
  token: Token;
  fingerprint: Fingerprint;
  /** Until then nobody may think that the owner is gone. */
  aliveUntilMs: number;
  expiresAtMs: number;
  settlement?: Settlement;
}

/**
 * The life of a key as the design tells it: one map, one clock that is moved by hand, one step a command. Written to be
 * read beside the design and not beside a store.
 */
export class Reference {
  readonly leaseMs: number;
  readonly retentionMs: number;
  readonly #freedoms: Freedoms;
  readonly #records = new Map<Scope, Stands>();
  nowMs = 0;

  constructor(times: { leaseMs: number; retentionMs: number }, freedoms: Freedoms) {
    this.leaseMs = times.leaseMs;
    this.retentionMs = times.retentionMs;
    this.#freedoms = freedoms;
  }

  /** As it stands now; what happens to either does not happen to the other. */
  clone(): Reference {
    const clone = new Reference(this, this.#freedoms);
    clone.nowMs = this.nowMs;
    for (const [scope, stands] of this.#records) clone.#records.set(scope, stands);
    return clone;
  }

  at(scope: Scope): Stands | undefined {
    const stands = this.#records.get(scope);
    return stands && this.nowMs < stands.expiresAtMs ? stands : undefined;
  }

  isAlive({ aliveUntilMs }: Stands): boolean {
    return this.nowMs < aliveUntilMs;
  }

  claim({ scope, token, fingerprint }: ClaimRequest): Claim['kind'] | 'took_over' {
    const stands = this.at(scope);
    if (!stands) {
      const expiresAtMs = this.nowMs + this.retentionMs;
      this.#set(scope, { state: 'claimed', token, fingerprint, aliveUntilMs: this.#leased(), expiresAtMs });
      return 'claimed';
    }
    if (this.#freedoms.knowsOwnClaim && stands.token.equals(token)) return 'claimed';
    if (!stands.fingerprint.equals(fingerprint)) return 'mismatch';
    if (stands.state === 'settled' || stands.state === 'in_doubt') return stands.state;
    if (this.isAlive(stands)) return 'in_flight';
    // The owner is gone. It had sent nothing, or nobody knows what it had sent.
    if (stands.state === 'executing') {
      this.#set(scope, { ...stands, state: 'in_doubt', aliveUntilMs: this.nowMs });
      return 'in_doubt';
    }
    this.#set(scope, { ...stands, token, aliveUntilMs: this.#leased() });
    return 'took_over';
  }

  begin(owner: Owner): Fenced {
    const stands = this.#ownedBy(owner);
    if (stands?.state !== 'claimed') return 'stale';
    return this.#set(owner.scope, { ...stands, state: 'executing', aliveUntilMs: this.#leased() });
  }

  /** For a second execution: nobody may think any more that surely nothing was sent. */
  takeOver({ scope, token }: Owner, fingerprint: Fingerprint): 'ok' | 'changed' {
    const stands = this.at(scope);
    if (stands?.state === 'executing' && stands.token.equals(token)) return 'ok';
    if (stands?.state !== 'in_doubt' || !stands.fingerprint.equals(fingerprint)) return 'changed';
    return this.#set(scope, { ...stands, state: 'executing', token, aliveUntilMs: this.#leased() });
  }

  renew(owner: Owner): Fenced | 'lost' {
    const stands = this.#ownedBy(owner);
    if (!stands) return 'stale';
    if (stands.state === 'settled') return 'ok';
    const lost = !this.isAlive(stands);
    this.#set(owner.scope, { ...stands, aliveUntilMs: this.#leased() });
    return lost ? 'lost' : 'ok';
  }

  settle(owner: Owner, settlement: Settlement): Fenced {
    const stands = this.#ownedBy(owner);
    if (!stands || stands.state === 'claimed') return 'stale';
    // The same settlement again, its answer was lost.
    if (stands.state === 'settled') return 'ok';
    return this.#set(owner.scope, { ...stands, state: 'settled', settlement });
  }

  release(owner: Owner): Fenced {
    const stands = this.#ownedBy(owner);
    if (!stands || stands.state === 'settled') return 'stale';
    return this.#set(owner.scope, undefined);
  }

  markInDoubt(owner: Owner): Fenced {
    const stands = this.#ownedBy(owner);
    if (stands?.state !== 'executing' && stands?.state !== 'in_doubt') return 'stale';
    // It has ended, and says so itself: nobody need wait for its lease.
    return this.#set(owner.scope, { ...stands, state: 'in_doubt', aliveUntilMs: this.nowMs });
  }

  resolve(scope: Scope, seen: Token, resolution: Resolution): Resolved {
    const stands = this.#ownedBy({ scope, token: seen });
    if (!stands || stands.state === 'settled') return 'changed';
    if (stands.state === 'claimed' || this.isAlive(stands)) return 'alive';
    if (resolution.as === 'released') return this.#set(scope, undefined);
    const { settlement } = resolution;
    return this.#set(scope, { ...stands, state: 'settled', settlement, token: newToken() });
  }

  #leased(): number {
    return this.nowMs + this.leaseMs;
  }

  #ownedBy({ scope, token }: Owner): Stands | undefined {
    const stands = this.at(scope);
    return stands?.token.equals(token) ? stands : undefined;
  }

  #set(scope: Scope, stands: Stands | undefined): 'ok' {
    if (stands) this.#records.set(scope, stands);
    else this.#records.delete(scope);
    return 'ok';
  }
}
