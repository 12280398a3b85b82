import { expect } from 'vitest';
import type { ClaimRequest, Store } from '../../src/idempotency/store.ts';
import { newRequest, paid } from '../support/requests.ts';

export type Stage = 'claimed' | 'executing' | 'in_doubt' | 'settled';

/** Brings a new scope into a state, and returns the request that owns it. */
export async function bring(store: Store, stage: Stage, request = newRequest()): Promise<ClaimRequest> {
  expect(await store.claim(request)).toEqual({ kind: 'claimed', tookOver: false });
  if (stage === 'claimed') return request;
  expect(await store.begin(request)).toBe('ok');
  if (stage === 'in_doubt') expect(await store.markInDoubt(request)).toBe('ok');
  if (stage === 'settled') expect(await store.settle(request, paid())).toBe('ok');
  return request;
}

export const stages: readonly Stage[] = ['claimed', 'executing', 'in_doubt', 'settled'];
