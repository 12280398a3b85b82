import type { z } from 'zod';
import type { Clock } from '../../kernel/clock.ts';
import type { idempotencyOptions, lockOptions, storeOptions } from '../options.ts';
import type { Store } from '../store.ts';
import type { Location } from './redis/connect.ts';

/** What a store tells besides its answers. */
export interface StoreEvents {
  /** A settled result had not reached its replicas in time. */
  unreplicated?(): void;
  /** The store takes nothing any more from this process. */
  failed?(failure: Error): void;
}

export interface StoreSections {
  store: z.output<typeof storeOptions>;
  lock: z.output<typeof lockOptions>;
  idempotency: z.output<typeof idempotencyOptions>;
}

/**
 * Opens the configured store.
 *
 * @throws with a message for the operator
 */
export async function openStore(
  { store, lock, idempotency }: StoreSections,
  clock: Clock,
  { unreplicated = () => {}, failed = () => {} }: StoreEvents = {},
): Promise<Store> {
  const common = { clock, leaseMs: lock.leaseMs, retentionMs: idempotency.retentionMs };
  // Each back end is loaded only where it is used: neither needs the other's library to be there.
  if (store.kind === 'redis') {
    const { RedisStore } = await import('./redis/redis-store.ts');
    const { replicas } = store.durability;
    const location = locationOf(store);
    return await RedisStore.open({
      ...store,
      ...common,
      location,
      replicas,
      onUnreplicated: unreplicated,
      lockNodes: lock.nodes,
    });
  }
  const { LmdbStore } = await import('./lmdb/lmdb-store.ts');
  return await LmdbStore.open({ ...store, ...common, onFailure: failed });
}

/** The schema lets exactly one of the three be said. */
function locationOf(store: Extract<StoreSections['store'], { kind: 'redis' }>): Location {
  const { url, sentinels, cluster, username, password, tls } = store;
  const credentials = { username, password, tls };
  if (sentinels) return { sentinels, credentials };
  if (cluster) return { cluster, credentials };
  if (url === undefined) throw new TypeError('the store has no location');
  return { url };
}
