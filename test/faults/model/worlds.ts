import type { Store } from '../../../src/ledger/ledger.ts';
import { Ledger } from '../../../src/ledger/ledger.ts';
import { type Place, redis, STEP_MS, sqlite } from '../../registers/places.ts';

/** As in production, the retention is far longer than a lease, and records that were in doubt are kept far longer than that. */
export const TIMES = {
  leaseMs: 2.5 * STEP_MS,
  retentionMs: 50.5 * STEP_MS,
  inDoubtRetentionMs: 227.5 * STEP_MS,
};

/** Three gateways on an empty store, whose time passes only when `pass` is called. */
export interface World {
  readonly nodes: readonly [Store, Store, Store];
  pass(ms: number): Promise<void>;
}

export interface Universe {
  readonly name: string;
  open(): Promise<World>;
}

const universeOf = (place: Place): Universe => ({
  name: place.name,
  open: async () => {
    await place.reset();
    const [one, other] = place.nodes;
    const { clock, pass } = place;
    const ledger = (register: typeof one, gatewayId: string) =>
      new Ledger(register, { gatewayId, lifetimes: TIMES, clock });
    return { nodes: [ledger(one, 'a'), ledger(other, 'b'), ledger(other, 'c')], pass };
  },
});

export const universes = async () => [universeOf(await sqlite()), universeOf(await redis())];
