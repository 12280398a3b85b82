import type * as z from 'zod';
import { type CertificatePaths, WatchedCertificate } from '../lib/certificate.ts';
import { ClientTls } from '../lib/client-tls.ts';
import { type Clock, systemClock } from '../lib/clock.ts';
import type { lockOptions, storeOptions } from './options.ts';
import type { Location, RedisClient } from './redis/client.ts';
import type { CopyRegister, Register } from './register.ts';

/** What a store reports while it runs. */
export interface StoreEvents {
  /** Redis stored a result, but too few replicas acknowledged it in time. */
  unreplicated?(): void;
  /** The wall clock of Redis' host was stepped. A positive `stepMs` (forwards) makes records expire early. */
  clockStepped?(stepMs: number): void;
  /** The SQLite writer thread died, and a new one replaces it. */
  writerReplaced?(error: Error): void;
  /** SQLite committed a transaction that changed something. `ms`: from BEGIN to the end of COMMIT. */
  committed?(ms: number): void;
  /** Opens the files of `store.tls`. Default: reports nothing about them. */
  openCertificate?(name: string, paths: CertificatePaths): Promise<WatchedCertificate>;
}

type StoreOptions = z.output<typeof storeOptions>;
type RedisOptions = Extract<StoreOptions, { kind: 'redis' }>;

export interface StoreSections {
  store: StoreOptions;
  lock: Pick<z.output<typeof lockOptions>, 'nodes'>;
}

/**
 * Starts the thread that {@link openRegister} needs with SQLite, so that it starts while other modules are loaded.
 *
 * @returns ends the thread if no store took it
 */
export async function prepareStore({ store }: Pick<StoreSections, 'store'>): Promise<() => void> {
  return store.kind === 'sqlite' ? (await import('./sqlite/writer.ts')).prepareThread() : () => {};
}

/**
 * Opens the configured store.
 *
 * @throws {StoreUnavailable} with a message for the operator, if the store cannot be used
 */
export async function openRegister(
  { store, lock }: StoreSections,
  gatewayId: string,
  clock: Clock,
  {
    unreplicated = () => {},
    clockStepped = () => {},
    writerReplaced = () => {},
    committed = () => {},
    openCertificate = (name, paths) => WatchedCertificate.open({ name, paths, clock }),
  }: StoreEvents = {},
): Promise<Register> {
  // Import only the configured store: its dependencies take time to load.
  if (store.kind === 'redis') {
    const { RedisRegister } = await import('./redis/register.ts');
    const { replicas, mayLoseOnFailover } = store.durability;
    const tls = await tlsOf(store, openCertificate);
    return await RedisRegister.open({
      ...store,
      ...{ location: locationOf(store), tls, replicas, mayLoseOnFailover, lockNodes: lock.nodes },
      ...{ clock, gatewayId, onUnreplicated: unreplicated, onClockStep: clockStepped },
    });
  }
  const { SqliteRegister } = await import('./sqlite/sqlite-register.ts');
  const events = { onWriterReplaced: writerReplaced, onCommitted: committed };
  return await SqliteRegister.open({ ...store, clock, ...events });
}

/** The store has just reached the same Redis. */
const CONNECT_WITHIN_MS = 1000;

/**
 * Opens one more connection to the Redis of the store, for what is not a record. The store's own connection cannot be used:
 * WAIT may block it. If Redis cannot be reached, the client tries again in the background.
 *
 * @param timeoutMs a command that takes longer is rejected
 * @returns undefined if the store is not a Redis
 */
export async function openRedis(
  store: StoreSections['store'],
  timeoutMs: number,
  openCertificate: NonNullable<StoreEvents['openCertificate']> = (name, paths) =>
    WatchedCertificate.open({ name, paths, clock: systemClock }),
): Promise<RedisClient | undefined> {
  if (store.kind !== 'redis') return undefined;
  const { connect, createClient } = await import('./redis/client.ts');
  const client = createClient(locationOf(store), timeoutMs, await tlsOf(store, openCertificate));
  await connect(client, CONNECT_WITHIN_MS).catch(() => {});
  // A cluster client opens the connection to a node with the first command to it, and that command may fail.
  if ('nodes' in client) await Promise.allSettled(client.nodes('master').map((node) => node.ping()));
  return client;
}

/** Undefined: servers must have a certificate of a well-known authority, if TLS is used at all. */
async function tlsOf(
  { tls }: RedisOptions,
  openCertificate: NonNullable<StoreEvents['openCertificate']>,
): Promise<ClientTls | undefined> {
  return typeof tls === 'object'
    ? new ClientTls(await openCertificate('store.tls', tls), tls.serverName)
    : undefined;
}

/** No merchant waits for a command of a copy. A record may be large, and gateways may hold the write lock of a database. */
const SHORTEST_COPY_TIMEOUT_MS = 10_000;

/**
 * Opens the configured store as the source or the destination of a copy.
 *
 * @throws {StoreUnavailable} with a message for the operator, if it cannot be used
 */
export async function openCopyRegister({ store, lock }: StoreSections, clock: Clock): Promise<CopyRegister> {
  const timeoutMs = Math.max(store.timeoutMs, SHORTEST_COPY_TIMEOUT_MS);
  if (store.kind === 'sqlite') {
    const { SqliteCopyRegister } = await import('./sqlite/copy-register.ts');
    return await SqliteCopyRegister.open({ ...store, timeoutMs, clock });
  }
  const { RedisCopyRegister } = await import('./redis/copy-register.ts');
  const { replicas, mayLoseOnFailover } = store.durability;
  const tls = await tlsOf(store, (name, paths) => WatchedCertificate.open({ name, paths, clock }));
  return await RedisCopyRegister.open({
    ...{ ...store, timeoutMs, clock, gatewayId: `copy:${process.pid}` },
    ...{ location: locationOf(store), tls, replicas, mayLoseOnFailover, lockNodes: lock.nodes },
  });
}

/** The configuration schema allows exactly one of the three. */
function locationOf({ url, sentinels, cluster, username, password, tls }: RedisOptions): Location {
  const credentials = { username, password, tls: tls !== undefined && tls !== false };
  if (sentinels) return { sentinels, credentials };
  if (cluster) return { cluster, credentials };
  if (url === undefined) throw new TypeError('store has no location');
  return { url };
}
