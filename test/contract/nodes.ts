import { afterAll } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { Scope } from '../../src/lib/brands.ts';
import type { Clock } from '../../src/lib/clock.ts';
import type { Encryption } from '../../src/store/response-cipher.ts';
import { openStore, type StorePlace, type StoreTimes } from '../support/open-store.ts';
import type { Stage } from './states.ts';
import type { Work } from './store-worker.ts';
import { Worker } from './worker.ts';

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
  /** Opening a store is slow, so tests take the places and open stores of tests that have ended. */
  reusesPlaces?: boolean;
  /** At least two. Each must change the record, or throw. */
  damages: readonly Damage[];
}

/** A place with its open stores that no test uses at the moment, by what they were opened with. */
interface SharedPlace {
  place: StorePlace;
  idle: [name: string, store: Store][];
}

/** More than a test usually opens. Each has a thread. */
const MOST_IDLE = 3;
const freePlaces = new Map<Pick<Backend, 'place'>, SharedPlace[]>();
afterAll(async () => {
  const stores = [...freePlaces.values()].flat().flatMap(({ idle }) => idle.map(([, store]) => store));
  await Promise.all(stores.map((store) => store.close()));
});

/** The gateways of one test: stores, in this process and in others, that work on the same records. */
export class Nodes {
  readonly place: StorePlace;
  readonly #backend: Pick<Backend, 'place'>;
  readonly #shared: SharedPlace | undefined;
  readonly #used: [name: string | undefined, store: Store][] = [];

  /** @param alone for a test that lists records or closes stores: its place has had no test before, and has none later */
  constructor(backend: Pick<Backend, 'place' | 'reusesPlaces'>, { alone = false } = {}) {
    this.#backend = backend;
    if (backend.reusesPlaces && !alone)
      this.#shared = freePlaces.get(backend)?.pop() ?? { place: backend.place(), idle: [] };
    this.place = this.#shared?.place ?? backend.place();
  }

  /** Opens a node in this process. Default times are so long that nothing lapses. */
  async open(
    times?: Partial<StoreTimes>,
    clock?: Clock,
    gatewayId?: string,
    encryption?: Encryption,
  ): Promise<Store> {
    const name = clock ? undefined : JSON.stringify([times, gatewayId, encryption]);
    const idle = this.#shared?.idle.findIndex(([other]) => other === name) ?? -1;
    const [, reused] = idle < 0 ? [] : (this.#shared?.idle.splice(idle, 1)[0] ?? []);
    const store = reused ?? (await openStore(this.place, times, clock, gatewayId, encryption));
    this.#used.push([name, store]);
    return store;
  }

  /** Starts a node in another process. */
  spawn(work: Work): Worker {
    return new Worker(this.place, work);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const shared = this.#shared;
    // A store counts the time that any clock of its place has shown: a clock of the test's own must not reach others.
    const isReusable = shared !== undefined && this.#used.every(([name]) => name !== undefined);
    const stores = [...this.#used, ...(shared?.idle.splice(0) ?? [])];
    const kept = isReusable ? stores.splice(0, MOST_IDLE) : [];
    await Promise.all(stores.map(([, store]) => store.close()));
    if (!isReusable) return;
    shared.idle.push(...(kept as [string, Store][]));
    freePlaces.set(this.#backend, [...(freePlaces.get(this.#backend) ?? []), shared]);
  }
}
