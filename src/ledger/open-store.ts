import { existsSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import type * as z from 'zod';
import { type CertificatePaths, ClientTls, WatchedCertificate } from '../lib/certificate.ts';
import { type Clock, systemClock } from '../lib/clock.ts';
import type { Prepared } from '../store/postgres/prepare.ts';
import type { RedisClient } from '../store/redis/client.ts';
import type { CopyRegister, Register } from '../store/register.ts';
import { ResponseCipher } from '../store/response-cipher.ts';
import type { ApplicationDatabase } from '../store/sqlite/application-register.ts';
import type { lockOptions, PostgresSection, RedisSection, StoreOptions } from '../store/store-options.ts';
import type { Emit } from '../telemetry/emit.ts';
import { Commits } from './commits.ts';
import { Ledger } from './ledger.ts';

/** What a store tells while it runs, and what it opens. */
export interface StoreTools {
  emit?: Emit;
  /** The connection of an application, whose database holds the records. Only with `kind: sqlite`; default: a database in `path`. */
  database?: ApplicationDatabase;
  /** For the commands of an operator: `store.path` may also be the database file of an application. */
  mayBeFile?: boolean;
  /** How many transactions of an application run at the same time. */
  maxTransactions?: number;
  /** Opens the files of `store.tls`. Default: reports nothing about them. */
  openCertificate?: (name: string, paths: CertificatePaths) => Promise<WatchedCertificate>;
}

export interface StoreSections {
  store: StoreOptions;
  lock: z.output<typeof lockOptions>;
  idempotency: { retentionMs: number; inDoubtRetentionMs: number };
}

/** No merchant waits for a command of a copy. A record may be large, and gateways may hold the write lock of a database. */
const SHORTEST_COPY_TIMEOUT_MS = 10_000;
/** The store has just reached the same Redis. */
const CONNECT_WITHIN_MS = 1000;

const openSilently: NonNullable<StoreTools['openCertificate']> = (name, paths) =>
  WatchedCertificate.open({ name, paths, clock: systemClock });

/**
 * Starts the thread that {@link openRegister} needs with SQLite, so that it starts while other modules are loaded.
 *
 * @returns a function that ends the thread if no store has taken it
 */
export async function prepareStore({ store }: Pick<StoreSections, 'store'>): Promise<() => void> {
  return store.kind === 'sqlite' ? (await import('../store/sqlite/writer.ts')).prepareThread() : () => {};
}

/**
 * Opens the configured store, with a ledger on it.
 *
 * @throws {StoreUnavailable} with a message for the operator, if the store cannot be used
 */
export async function openLedger(sections: StoreSections, clock: Clock, tools?: StoreTools): Promise<Ledger> {
  return (await openStore(sections, clock, tools)).ledger;
}

/**
 * Opens the configured store for an application, whose transactions may write records.
 *
 * @throws {StoreUnavailable} with a message for the operator, if the store cannot be used
 */
export async function openStore(
  sections: StoreSections,
  clock: Clock,
  tools?: StoreTools,
): Promise<{ ledger: Ledger; commits: Commits | undefined }> {
  const { retentionMs, inDoubtRetentionMs } = sections.idempotency;
  const lifetimes = { leaseMs: sections.lock.leaseMs, retentionMs, inDoubtRetentionMs };
  const gatewayId = `${hostname()}:${process.pid}`;
  const cipher = new ResponseCipher(sections.store.encryption);
  const register = await openRegister(sections, gatewayId, clock, tools);
  const options = { gatewayId, lifetimes, clock, cipher };
  return { ledger: new Ledger(register, options), commits: Commits.on(register, options) };
}

/**
 * Opens the configured store without a ledger.
 *
 * @throws {StoreUnavailable} with a message for the operator, if the store cannot be used
 */
export async function openRegister(
  { store, lock }: Pick<StoreSections, 'store' | 'lock'>,
  gatewayId: string,
  clock: Clock,
  { openCertificate = openSilently, database, mayBeFile, ...tools }: StoreTools = {},
): Promise<Register> {
  // Import only the configured store: its dependencies take time to load.
  if (store.kind === 'redis') {
    const { RedisRegister } = await import('../store/redis/register.ts');
    const options = await redisOptions(store, lock, openCertificate);
    return await RedisRegister.open({ ...options, ...tools, clock, gatewayId });
  }
  if (store.kind === 'postgres') {
    const { PostgresRegister } = await import('../store/postgres/register.ts');
    const options = await postgresOptions(store, openCertificate);
    return await PostgresRegister.open({ ...options, ...tools, clock });
  }
  const isFile = mayBeFile && isFileOfApplication(store.path);
  if (database || isFile) {
    const { ApplicationRegister } = await import('../store/sqlite/application-register.ts');
    const options = { ...store, ...tools, clock };
    return await (database
      ? ApplicationRegister.openIn(database, options)
      : ApplicationRegister.openFile(options));
  }
  const { SqliteRegister } = await import('../store/sqlite/sqlite-register.ts');
  return await SqliteRegister.open({ ...store, ...tools, clock });
}

/**
 * Opens the configured store as the source or the destination of a copy.
 *
 * @throws {StoreUnavailable} with a message for the operator, if it cannot be used
 */
export async function openCopyRegister(
  { store, lock }: Pick<StoreSections, 'store' | 'lock'>,
  clock: Clock,
): Promise<CopyRegister> {
  const timeoutMs = Math.max(store.timeoutMs, SHORTEST_COPY_TIMEOUT_MS);
  if (store.kind === 'sqlite') {
    const { SqliteCopyRegister } = await import('../store/sqlite/copy-register.ts');
    const options = { ...store, timeoutMs, clock };
    return await (isFileOfApplication(store.path)
      ? SqliteCopyRegister.openFile(options)
      : SqliteCopyRegister.open(options));
  }
  const gatewayId = `copy:${process.pid}`;
  if (store.kind === 'postgres') {
    const { PostgresCopyRegister } = await import('../store/postgres/copy-register.ts');
    const options = await postgresOptions(store, openSilently);
    return await PostgresCopyRegister.open({ ...options, timeoutMs, clock });
  }
  const { RedisCopyRegister } = await import('../store/redis/copy-register.ts');
  const options = await redisOptions(store, lock, openSilently);
  return await RedisCopyRegister.open({ ...options, timeoutMs, clock, gatewayId });
}

/** Whether a path of `kind: sqlite` names the database of an application, and not the folder of a gateway. */
export const isFileOfApplication = (path: string): boolean => existsSync(path) && statSync(path).isFile();

/**
 * Makes the tables of a store that does not make them itself, and replaces its functions if they are those of another version.
 *
 * @throws {StoreUnavailable} with a message for the operator
 */
export async function prepareSchema(store: PostgresSection): Promise<Prepared> {
  const { prepare } = await import('../store/postgres/prepare.ts');
  return await prepare(await postgresOptions(store, openSilently));
}

/**
 * Opens one more connection to the Redis of the store, for what is not a record. The store's own connection cannot be used:
 * WAIT may block it. If Redis cannot be reached, the client tries again in the background.
 *
 * @param timeoutMs a command that takes longer is rejected
 * @returns undefined if the store is not a Redis
 */
export async function openRedis(
  store: StoreOptions,
  timeoutMs: number,
  openCertificate = openSilently,
): Promise<RedisClient | undefined> {
  if (store.kind !== 'redis') return undefined;
  const { connect, createClient } = await import('../store/redis/client.ts');
  const client = createClient(store, timeoutMs, await tlsOf(store, openCertificate));
  await connect(client, CONNECT_WITHIN_MS);
  // A cluster client opens the connection to a node with the first command to it, and that command may fail.
  if ('nodes' in client) await Promise.allSettled(client.nodes('master').map((node) => node.ping()));
  return client;
}

async function redisOptions(
  store: RedisSection,
  { nodes: lockNodes }: StoreSections['lock'],
  openCertificate: typeof openSilently,
) {
  const { replicas, mayLoseOnFailover } = store.durability;
  const tls = await tlsOf(store, openCertificate);
  return { ...store, location: store, tls, replicas, mayLoseOnFailover, lockNodes };
}

async function postgresOptions(store: PostgresSection, openCertificate: typeof openSilently) {
  return { ...store, tls: (await tlsOf(store, openCertificate)) ?? store.tls === true };
}

/** Makes the TLS of the section `store.tls`. Without that section, a server's certificate must come from a well-known authority. */
async function tlsOf(
  { tls }: Pick<RedisSection | PostgresSection, 'tls'>,
  openCertificate: typeof openSilently,
): Promise<ClientTls | undefined> {
  return typeof tls === 'object'
    ? new ClientTls(await openCertificate('store.tls', tls), tls.serverName)
    : undefined;
}
