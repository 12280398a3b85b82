import type { z } from 'zod';
import type { Clock } from '../../kernel/clock.ts';
import type { idempotencyOptions, lockOptions, storeOptions } from '../options.ts';
import type { Store } from '../store.ts';

export interface StoreSections {
  store: z.output<typeof storeOptions>;
  lock: z.output<typeof lockOptions>;
  idempotency: z.output<typeof idempotencyOptions>;
}

/** Opens the configured store. @throws with a message for the operator */
export async function openStore({ store, lock, idempotency }: StoreSections, clock: Clock): Promise<Store> {
  const common = { clock, leaseMs: lock.leaseMs, retentionMs: idempotency.retentionMs };
  // Each back end is loaded only where it is used: neither needs the other's library to be there.
  if (store.kind === 'redis') {
    const { RedisStore } = await import('./redis/redis-store.ts');
    return await RedisStore.open({ ...store, ...common, lockNodes: lock.nodes });
  }
  const { LmdbStore } = await import('./lmdb/lmdb-store.ts');
  return new LmdbStore({ ...store, ...common });
}
