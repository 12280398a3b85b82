import { onTestFinished } from 'vitest';
import type { MoreConfig } from './config.ts';
import { openStore } from './open-store.ts';
import { type PostgresServer, startPostgres } from './postgres-server.ts';
import { type RedisServer, startRedis } from './redis-server.ts';

export const storeKinds = ['sqlite', 'redis', 'postgres'] as const;
export type StoreKind = (typeof storeKinds)[number];

/** Sections of a configuration that keep its records in a Redis. */
export const onRedis = (redis: Pick<RedisServer, 'url'>, timeoutMs = 5000): MoreConfig => ({
  store: { kind: 'redis', url: redis.url, timeoutMs },
});

/** Sections of a configuration that keep its records in a PostgreSQL. */
export const onPostgres = (postgres: Pick<PostgresServer, 'url'>, timeoutMs = 5000): MoreConfig => ({
  store: { kind: 'postgres', url: postgres.url, timeoutMs },
});

/** Sections for a store of that kind, with a new server if it needs one. */
export async function storeSections(kind: StoreKind): Promise<MoreConfig> {
  if (kind === 'postgres') return onPostgres(await startPostgres());
  return kind === 'redis' ? onRedis(await startRedis()) : {};
}

/** Opens a store as `openStore` does, and closes it after the test. */
export const storeForTest: typeof openStore = async (...options) => {
  const store = await openStore(...options);
  onTestFinished(() => store.close());
  return store;
};
