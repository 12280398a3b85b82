import type { ClaimRequest } from '../../../src/idempotency/store.ts';
import type { Reference } from '../model/reference.ts';
import type { Breakage } from './setup.ts';

/** Whatever stood there, the caller owns the scope now. */
function seize(reference: Reference, request: ClaimRequest): 'claimed' {
  const stands = reference.at(request.scope);
  if (stands) reference.release({ ...request, token: stands.token });
  reference.claim(request);
  return 'claimed';
}

/** Mistakes that a store could have, and each of which pays twice. */
export const brokenStores: [what: string, broken: Breakage][] = [
  [
    'whose claim looks first and writes later',
    { claim: (reference, request, seen) => (seen ? undefined : seize(reference, request)) },
  ],
  [
    'that takes over an execution whose lease has lapsed',
    {
      claim: (reference, request) => {
        const stands = reference.at(request.scope);
        const lapsed = stands?.state === 'executing' && !reference.isAlive(stands);
        return lapsed ? seize(reference, request) : undefined;
      },
    },
  ],
  [
    'whose begin does not look at the token',
    {
      begin: (reference, owner) => {
        reference.begin(owner);
        return 'ok';
      },
    },
  ],
];
