import { expect } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import type { Completion } from '../../src/lib/exchange.ts';
import type { Execution, ExistingAnswer } from '../../src/store/types.ts';
import type { StorePlace } from '../support/open-store.ts';
import { newRequest, paid } from '../support/requests.ts';

export type Stage = 'executing' | 'in_doubt' | 'completed';

/** A way to make a record unreadable, behind the store's back. `from`: the states that it applies to; default all. */
export type Damage = [
  what: string,
  damage: (place: StorePlace, recordId: RecordId) => Promise<void>,
  from?: readonly Stage[] | undefined,
];

export const stages: readonly Stage[] = ['executing', 'in_doubt', 'completed'];

/** Brings a new record id into a state, and returns the execution that owns it. In doubt: the owner itself marked it. */
export async function bring(store: Store, stage: Stage, request = newRequest()): Promise<Execution> {
  expect(await store.start(request)).toEqual({ kind: 'started' });
  if (stage === 'in_doubt') expect(await store.leaveInDoubt(request)).toBe('ok');
  if (stage === 'completed') expect(await store.complete(request, paid())).toBe('ok');
  return request;
}

/** The answer to a retry of a completed request. The second parameter is the request that started the record. */
export function replayOf(
  completion: Completion,
  { requestId }: Pick<Execution, 'requestId'>,
): ExistingAnswer {
  if (completion.kind === 'tombstone') return { kind: 'tombstone', requestId };
  return { kind: 'completed', response: completion.response, requestId };
}
