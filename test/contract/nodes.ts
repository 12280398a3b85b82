import type { Store } from '../../src/ledger/ledger.ts';
import type { Scope } from '../../src/lib/brands.ts';
import { openStore, type StorePlace, type StoreTimes } from '../support/open-store.ts';
import type { Stage } from './states.ts';

/** A way to make a record unreadable, behind the store's back. `from`: the states that it applies to; default all. */
export type Damage = [
  what: string,
  damage: (place: StorePlace, scope: Scope) => Promise<void>,
  from?: readonly Stage[] | undefined,
];

/** What the contract needs from the tests of one store. */
export interface Backend {
  name: string;
  /** The address of a new store without records, for one test. */
  place(): StorePlace;
  /** At least two. Each must change the record, or throw. */
  damages: readonly Damage[];
}

/** The gateways of one test: stores that work on the same records. */
export class Nodes {
  readonly place: StorePlace;
  readonly #stores: Store[] = [];

  constructor(backend: Pick<Backend, 'place'>) {
    this.place = backend.place();
  }

  /** Default times are so long that nothing lapses. */
  async open(times?: Partial<StoreTimes>): Promise<Store> {
    const store = await openStore(this.place, times);
    this.#stores.push(store);
    return store;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#stores.map((store) => store.close()));
  }
}
