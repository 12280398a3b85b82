import { describe } from 'vitest';
import { doubtCounts } from './doubt-counts.ts';
import { encryption } from './encryption.ts';
import { expiry } from './expiry.ts';
import { fencing } from './fencing.ts';
import { listing } from './listing.ts';
import { marks } from './marks.ts';
import type { Backend } from './nodes.ts';
import { ownerLease } from './owner-lease.ts';
import { races } from './races.ts';
import { recordLifetimes } from './record-lifetimes.ts';
import { replays } from './replays.ts';
import { resolutions } from './resolutions.ts';
import { restarting } from './restarting.ts';
import { starts } from './starts.ts';
import { unreadable } from './unreadable.ts';
import { voidTokens } from './void-tokens.ts';

/** The tests of everything that `Store` in store.ts promises. Every store must pass them. */
export function storeContract(backend: Backend): void {
  describe(`${backend.name} as a store`, () => {
    starts(backend);
    races(backend);
    fencing(backend);
    voidTokens(backend);
    restarting(backend);
    replays(backend);
    encryption(backend);
    ownerLease(backend);
    expiry(backend);
    recordLifetimes(backend);
    unreadable(backend);
    listing(backend);
    resolutions(backend);
    doubtCounts(backend);
    marks(backend);
  });
}
