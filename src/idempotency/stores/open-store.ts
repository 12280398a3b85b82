import { hostname } from 'node:os';
import type { z } from 'zod';
import type { Clock } from '../../kernel/clock.ts';
import type { idempotencyOptions, lockOptions, storeOptions } from '../options.ts';
import type { Store } from '../store.ts';
import type { Location } from './redis/client.ts';

/** What a store reports while it runs. */
export interface StoreEvents {
  /** Redis stored a result, but too few replicas acknowledged it in time. */
  unreplicated?(): void;
  /** The wall clock of Redis' host was stepped. A positive `stepMs` (forwards) makes records expire early. */
  clockStepped?(stepMs: number): void;
  /** The SQLite writer thread died, and a new one replaces it. */
  writerReplaced?(error: Error): void;
}

export interface StoreSections {
  store: z.output<typeof storeOptions>;
  lock: z.output<typeof lockOptions>;
  idempotency: z.output<typeof idempotencyOptions>;
}

/**
 * Opens the configured store.
 *
 * @throws {StoreUnavailable} with a message for the operator, if the store cannot be used
 */
export async function openStore(
  { store, lock, idempotency }: StoreSections,
  clock: Clock,
  { unreplicated = () => {}, clockStepped = () => {}, writerReplaced = () => {} }: StoreEvents = {},
): Promise<Store> {
  const { retentionMs, inDoubtRetentionMs } = idempotency;
  const lifetimes = { leaseMs: lock.leaseMs, retentionMs, inDoubtRetentionMs };
  const common = { clock, lifetimes, gatewayId: `${hostname()}:${process.pid}` };
  // Import only the configured store: its dependencies take time to load.
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
      onClockStep: clockStepped,
      lockNodes: lock.nodes,
    });
  }
  const { SqliteStore } = await import('./sqlite/sqlite-store.ts');
  return await SqliteStore.open({ ...store, ...common, onWriterReplaced: writerReplaced });
}

/** The configuration schema allows exactly one of the three. */
function locationOf(store: Extract<StoreSections['store'], { kind: 'redis' }>): Location {
  const { url, sentinels, cluster, username, password, tls } = store;
  const credentials = { username, password, tls };
  if (sentinels) return { sentinels, credentials };
  if (cluster) return { cluster, credentials };
  if (url === undefined) throw new TypeError('the store has no location');
  return { url };
}
