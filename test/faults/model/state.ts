import { randomUUID } from 'node:crypto';
import type { Scope } from '../../../src/lib/brands.ts';
import type { Completion } from '../../../src/lib/exchange.ts';
import { newToken } from '../../../src/lib/random.ts';
import type { Execution, Resolution, Store } from '../../../src/store/contract.ts';
import { newRequest, otherOf, paid } from '../../support/requests.ts';
import type { Reference } from './reference.ts';
import type { World } from './worlds.ts';

const SCOPES = 3;

/** An attempt to execute a request, whether or not its start succeeded, and its later writes. */
export interface Attempt {
  readonly execution: Execution;
  readonly node: Store;
  readonly result: Completion;
  readonly first: 'start' | 'restart';
  /** Whether its start or restart succeeded. */
  owned: boolean;
  crashed: boolean;
  gaveUp: boolean;
}

export interface AttemptParts {
  scope: number;
  node: number;
  otherRequest: boolean;
}

/** The expected state: the reference, and all attempts so far. */
export class Model {
  readonly reference: Reference;
  readonly attempts: Attempt[] = [];
  /** How many resolutions the store must have counted. */
  readonly resolutions: Partial<Record<Resolution['as'], number>> = {};
  /** For each scope a request, and another request with the same key. */
  readonly #requests: (readonly [Execution, Execution])[];

  constructor(reference: Reference) {
    this.reference = reference;
    this.#requests = Array.from({ length: SCOPES }, () => {
      const request = newRequest();
      return [request, otherOf(request)] as const;
    });
  }

  get scopes(): Scope[] {
    return this.requests.map(({ scope }) => scope);
  }

  /** The request that is usual for each scope. */
  get requests(): Execution[] {
    return this.#requests.map(([request]) => request);
  }

  /** A new attempt at a scope, by a node. */
  newAttempt(
    first: Attempt['first'],
    { nodes }: World,
    { scope, node, otherRequest }: AttemptParts,
  ): Attempt {
    const request = this.#request(scope)[otherRequest ? 1 : 0];
    const number = this.attempts.length;
    const attempt: Attempt = {
      execution: { ...request, token: newToken(), requestId: randomUUID() },
      node: nodes[node % nodes.length] as Store,
      result: number % 4 === 3 ? { kind: 'tombstone', status: 201 } : paid(`${number}`),
      first,
      ...{ owned: false, crashed: false, gaveUp: false },
    };
    this.attempts.push(attempt);
    return attempt;
  }

  scope(number: number): Scope {
    return this.#request(number)[0].scope;
  }

  #request(scope: number): readonly [Execution, Execution] {
    return this.#requests[scope % SCOPES] as readonly [Execution, Execution];
  }

  /** The attempts that can still write, the latest first, because most writes of the others are stale. */
  writer(number: number): Attempt | undefined {
    const alive = this.attempts.filter(({ crashed }) => !crashed).toReversed();
    return alive[number % alive.length];
  }
}
