import { describe } from 'vitest';
import { claims } from './claims.ts';
import { expiry } from './expiry.ts';
import { fencing } from './fencing.ts';
import { listing } from './listing.ts';
import type { Backend } from './nodes.ts';
import { ownerGone } from './owner-gone.ts';
import { races } from './races.ts';
import { replays } from './replays.ts';
import { resolutions } from './resolutions.ts';
import { takingOver } from './taking-over.ts';
import { unreadable } from './unreadable.ts';

/** What every store has to do, as store.ts promises it. */
export function storeContract(backend: Backend): void {
  describe(`${backend.name} as a store`, () => {
    claims(backend);
    races(backend);
    fencing(backend);
    takingOver(backend);
    replays(backend);
    ownerGone(backend);
    expiry(backend);
    unreadable(backend);
    listing(backend);
    resolutions(backend);
  });
}
