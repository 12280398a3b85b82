import type { Store } from '../../src/idempotency/store.ts';
import { LmdbStore } from '../../src/idempotency/stores/lmdb/lmdb-store.ts';
import { RedisStore } from '../../src/idempotency/stores/redis/redis-store.ts';
import { type Clock, systemClock } from '../../src/kernel/clock.ts';

/** Where a store keeps its records. Plain data: a worker process gets it on its command line. */
export type StorePlace =
  | { kind: 'lmdb'; path: string }
  | { kind: 'redis'; url: string; prefix: string; lockNodes?: readonly string[] };

export interface StoreTimes {
  retentionMs: number;
  leaseMs: number;
  timeoutMs: number;
}

/** So long that nothing lapses within a test, however loaded the machine is. */
export const LONG: StoreTimes = { retentionMs: 600_000, leaseMs: 60_000, timeoutMs: 10_000 };

export async function openStore(
  place: StorePlace,
  times: Partial<StoreTimes> = {},
  clock: Clock = systemClock,
): Promise<Store> {
  const shared = { ...LONG, ...times, clock };
  if (place.kind === 'lmdb') return await LmdbStore.open({ path: place.path, ...shared });
  const { url, prefix, lockNodes = [] } = place;
  const location = { url };
  return await RedisStore.open({
    location,
    prefix,
    lockNodes,
    replicas: 0,
    connectTimeoutMs: 5_000,
    ...shared,
  });
}
