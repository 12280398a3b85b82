import type { Store } from '../../src/idempotency/store.ts';
import type { Scope } from '../../src/kernel/brands.ts';
import type { Clock } from '../../src/kernel/clock.ts';
import { openStore, type StorePlace, type StoreTimes } from '../support/open-store.ts';
import type { Work } from '../support/store-worker.ts';
import { Worker } from '../support/worker.ts';

/** What a store brings to its contract. */
export interface Backend {
  name: string;
  /** A place without records, for one test. */
  place(): StorePlace;
  /** Replaces the bytes of a record, behind the stores' backs. */
  rewrite(place: StorePlace, scope: Scope, change: (record: Buffer) => Buffer): Promise<void>;
  /** What a second begin under the same token is answered. */
  secondBegin: 'ok' | 'stale';
}

/** The gateways of one test: stores, in this process and in others, that work on the same records. */
export class Nodes {
  readonly place: StorePlace;
  readonly #backend: Backend;
  readonly #stores: Store[] = [];

  constructor(backend: Backend) {
    this.#backend = backend;
    this.place = backend.place();
  }

  /** A node in this process. Times not given are so long that nothing lapses. */
  async open(times?: Partial<StoreTimes>, clock?: Clock): Promise<Store> {
    const store = await openStore(this.place, times, clock);
    this.#stores.push(store);
    return store;
  }

  /** A node in a process of its own. */
  spawn(work: Work): Worker {
    return new Worker(this.place, work);
  }

  async rewrite(scope: Scope, change: (record: Buffer) => Buffer): Promise<void> {
    await this.#backend.rewrite(this.place, scope, change);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#stores.map((store) => store.close()));
  }
}
