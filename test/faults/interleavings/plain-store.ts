import type { Claim, ClaimRequest, Store } from '../../../src/idempotency/store.ts';
import type { Reference } from '../model/reference.ts';

/** The commands of the engine, carried out on the reference at once. */
export type Commands = Pick<Store, 'claim' | 'begin' | 'renew' | 'settle' | 'release' | 'markInDoubt'>;

export function claimOn(reference: Reference, request: ClaimRequest): Claim {
  return claimOf(reference, request, reference.claim(request));
}

/** The reference's word as the contract says it. */
export function claimOf(
  reference: Reference,
  { scope }: ClaimRequest,
  kind: ReturnType<Reference['claim']>,
): Claim {
  const settlement = reference.at(scope)?.settlement;
  if (kind === 'settled' && settlement) return { kind, settlement };
  if (kind === 'in_flight' || kind === 'mismatch') return { kind };
  if (kind === 'claimed' || kind === 'took_over') return { kind: 'claimed', tookOver: kind === 'took_over' };
  return { kind: 'in_doubt', sinceMs: 0 };
}

export function storeOn(reference: Reference): Commands {
  return {
    claim: async (request) => claimOn(reference, request),
    begin: async (owner) => reference.begin(owner),
    renew: async (owner) => reference.renew(owner),
    settle: async (owner, settlement) => reference.settle(owner, settlement),
    release: async (owner) => reference.release(owner),
    markInDoubt: async (owner) => reference.markInDoubt(owner),
  };
}
