import { newToken } from '../../../src/idempotency/fingerprint.ts';
import type { Settlement } from '../../../src/idempotency/record.ts';
import type { ClaimRequest, Store } from '../../../src/idempotency/store.ts';
import { newRequest, otherOf, paid } from '../../support/requests.ts';
import { Reference } from './reference.ts';
import type { World } from './worlds.ts';

const SCOPES = 3;

/** One who has claimed, with or without success, and all that it has done since. */
export interface Claimant {
  readonly request: ClaimRequest;
  readonly node: Store;
  readonly result: Settlement;
  crashed: boolean;
  triedToBegin: boolean;
  begun: boolean;
  gaveUp: boolean;
}

/** What should be: the reference, and everybody who has claimed so far. */
export class Model {
  readonly reference: Reference;
  readonly claimants: Claimant[] = [];
  /** Per scope a request, and another under the same key. */
  readonly #requests: (readonly [ClaimRequest, ClaimRequest])[];

  constructor(reference: Reference) {
    this.reference = reference;
    this.#requests = Array.from({ length: SCOPES }, () => {
      const request = newRequest();
      return [request, otherOf(request)] as const;
    });
  }

  get scopes() {
    return this.#requests.map(([{ scope }]) => scope);
  }

  /** A new attempt at a scope, by a node. */
  newClaimant(
    { nodes }: World,
    { scope, node, otherRequest }: { scope: number; node: number; otherRequest: boolean },
  ): Claimant {
    const request = { ...this.#request(scope)[otherRequest ? 1 : 0], token: newToken() };
    const claimant: Claimant = {
      request,
      node: nodes[node % nodes.length] as Store,
      result: paid(`${this.claimants.length}`),
      ...{ crashed: false, triedToBegin: false, begun: false, gaveUp: false },
    };
    this.claimants.push(claimant);
    return claimant;
  }

  scope(number: number) {
    return this.#request(number)[0].scope;
  }

  #request(scope: number): readonly [ClaimRequest, ClaimRequest] {
    return this.#requests[scope % SCOPES] as readonly [ClaimRequest, ClaimRequest];
  }

  /** Those who can still write; the youngest first, for most of the others' writes are stale. */
  writer(number: number): Claimant | undefined {
    const alive = this.claimants.filter(({ crashed }) => !crashed).toReversed();
    return alive[number % alive.length];
  }
}

/** How model and store are set up for one run. */
export function newModel(world: World, times: { leaseMs: number; retentionMs: number }): Model {
  return new Model(new Reference(times, world.freedoms));
}
