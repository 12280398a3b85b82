import { join } from 'node:path';
import type { Store } from '../../src/ledger/ledger.ts';
import { Ledger } from '../../src/ledger/ledger.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import { PostgresCopyRegister } from '../../src/store/postgres/copy-register.ts';
import { PostgresRegister } from '../../src/store/postgres/register.ts';
import type { RedisOptions } from '../../src/store/redis/client.ts';
import { RedisCopyRegister } from '../../src/store/redis/copy-register.ts';
import { RedisRegister } from '../../src/store/redis/register.ts';
import type { CopyRegister } from '../../src/store/register.ts';
import { ResponseCipher } from '../../src/store/response-cipher.ts';
import { ApplicationRegister } from '../../src/store/sqlite/application-register.ts';
import { SqliteCopyRegister } from '../../src/store/sqlite/copy-register.ts';
import { SqliteRegister } from '../../src/store/sqlite/sqlite-register.ts';
import type { SqliteRegisterOptions } from '../../src/store/sqlite/writer.ts';
import type { Encryption } from '../../src/store/store-options.ts';
import type { Lifetimes } from '../../src/store/types.ts';

export interface SqlitePlace {
  kind: 'sqlite';
  path: string;
  /** The path is the database file of an application. */
  isFile?: boolean;
}

export interface RedisPlace {
  kind: 'redis';
  url: string;
  prefix: string;
  lockNodes?: readonly string[];
  replicas?: number;
}

export interface PostgresPlace {
  kind: 'postgres';
  url: string;
  schema: string;
}

/** The location of a store's records. It is plain data, because a worker process gets it on its command line. */
export type StorePlace = SqlitePlace | RedisPlace | PostgresPlace;

/** The lifetimes of what this store writes, and the time limit of a command. */
export interface StoreTimes extends Lifetimes {
  timeoutMs: number;
}

/** Times so long that nothing lapses within a test, even on a loaded machine. */
export const LONG: StoreTimes = {
  ...{ leaseMs: 60_000, retentionMs: 600_000, inDoubtRetentionMs: 1_200_000 },
  timeoutMs: 10_000,
};

export const GATEWAY_ID = 'gateway-test';

export async function openStore(
  place: StorePlace,
  times: Partial<StoreTimes> = {},
  clock: Clock = systemClock,
  gatewayId: string = GATEWAY_ID,
  encryption?: Encryption,
): Promise<Store> {
  const { timeoutMs, ...lifetimes } = { ...LONG, ...times };
  const own = { gatewayId, lifetimes, clock, cipher: new ResponseCipher(encryption) };
  if (place.kind === 'sqlite') {
    const options = { path: place.path, timeoutMs, clock };
    const register = place.isFile ? ApplicationRegister.openFile(options) : SqliteRegister.open(options);
    return new Ledger(await register, own);
  }
  const common = { timeoutMs, connectTimeoutMs: 5_000, clock, gatewayId };
  if (place.kind === 'postgres') return new Ledger(await PostgresRegister.open({ ...place, ...common }), own);
  return new Ledger(await RedisRegister.open({ ...redisOptionsOf(place), ...common }), own);
}

const redisOptionsOf = ({ url, prefix, lockNodes = [], replicas = 0 }: RedisPlace) => ({
  ...{ location: { url }, prefix, lockNodes, replicas },
  // A witness beside a store that waits for replicas.
  mayLoseOnFailover: true,
});

/** The store of a place as the source or the destination of a copy. */
export async function openCopyRegister(place: StorePlace): Promise<CopyRegister> {
  const common = {
    ...{ timeoutMs: LONG.timeoutMs, connectTimeoutMs: 5_000 },
    ...{ clock: systemClock, gatewayId: 'copy' },
  };
  if (place.kind === 'sqlite') {
    const options = { path: place.path, ...common };
    return await (place.isFile ? SqliteCopyRegister.openFile(options) : SqliteCopyRegister.open(options));
  }
  if (place.kind === 'postgres') return await PostgresCopyRegister.open({ ...place, ...common });
  return await RedisCopyRegister.open({ ...redisOptionsOf(place), ...common });
}

/** As {@link openStore}, with all options of the register. */
export async function openRedisStore({
  lifetimes = LONG,
  ...options
}: RedisOptions & { lifetimes?: Lifetimes }): Promise<Store> {
  const { gatewayId, clock } = options;
  return new Ledger(await RedisRegister.open(options), { gatewayId, lifetimes, clock });
}

export type SqliteOptions = Partial<StoreTimes & SqliteRegisterOptions & { gatewayId: string }>;

/** As {@link openStore}, with all options of the register. */
export async function openSqliteStore(path: string, options: SqliteOptions = {}): Promise<Store> {
  const { gatewayId = GATEWAY_ID, clock = systemClock, ...all } = { ...LONG, ...options };
  const { leaseMs, retentionMs, inDoubtRetentionMs, ...others } = all;
  const lifetimes = { leaseMs, retentionMs, inDoubtRetentionMs };
  return new Ledger(await SqliteRegister.open({ ...others, path, clock }), { gatewayId, lifetimes, clock });
}

/** The database that the store keeps at its path. */
export const databaseOf = ({ path }: SqlitePlace): string => join(path, 'records.db');
