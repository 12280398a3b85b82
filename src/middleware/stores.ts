import type * as z from 'zod';
import { parsed } from '../config/explain.ts';
import { idempotencyOptions } from '../idempotency/idempotency-options.ts';
import type { Commits } from '../ledger/commits.ts';
import type { Store } from '../ledger/ledger.ts';
import { measured } from '../ledger/measured.ts';
import { openStore, type StoreTools } from '../ledger/open-store.ts';
import { Outages } from '../ledger/outages.ts';
import { StoreWatch, storeIdOf } from '../ledger/store-watch.ts';
import type { RecordId } from '../lib/brands.ts';
import { systemClock } from '../lib/clock.ts';
import type { ApplicationDatabase } from '../store/sqlite/application-register.ts';
import { lockOptions, storeOptions } from '../store/store-options.ts';
import type { Lifetimes } from '../store/types.ts';
import { type Emit, Events } from '../telemetry/emit.ts';
import { createLogger } from '../telemetry/logger.ts';

/** How long records are kept, and when an owner counts as dead. Milliseconds. */
export interface LifetimeOptions {
  /** How long the owner of a key counts as alive without renewing its lease. Default 10 s. */
  leaseMs?: number;
  /** How long a completed key is kept, counted from its start. Default 24 h. */
  retentionMs?: number;
  /** How long a key in doubt is kept, counted from its start. Default 30 days; not less than `retentionMs`. */
  inDoubtRetentionMs?: number;
}

/** Stored responses are encrypted with AES-256-GCM. */
export interface EncryptionOptions {
  /**
   * Every key decrypts. A process cannot read a response whose key is not among them: add a key in all processes before one
   * encrypts with it.
   */
  keys: EncryptionKey[];
  /** The `id` of the key that encrypts. `none`: nothing is encrypted, and the keys only decrypt. Default: the first key. */
  current?: string;
}

/** A key of {@link EncryptionOptions}. */
export interface EncryptionKey {
  /** Stored in each record that this key encrypts: 1 to 32 letters, digits, and `. _ -`. Never give another secret the same id. */
  id: string;
  /** 32 random bytes in base64 or hexadecimal, such as `openssl rand -base64 32` prints. */
  secret: string;
}

/** Options of {@link sqliteStore}. */
export interface SqliteStoreOptions extends LifetimeOptions {
  /** Folder of the database, shared by all processes of this machine. Default `./data`. */
  path?: string;
  /**
   * In place of `path`: the application's own database, in a file. The store makes tables in it whose names begin with `oncegate_`, and
   * uses this connection, so that a handler can execute its request and store its answer in one transaction: see the option
   * `transactional` of {@link idempotency}. Each write waits for the disk on the main thread. Close the store before the database.
   */
  database?: ApplicationDatabase;
  /**
   * The path of a file in which this application notes which store it uses; no other application may use the file. A store that was emptied, or restored from a backup, then starts
   * no new key until `oncegate store accept`. Default: the store is not watched, and pays keys again that it has forgotten.
   */
  identityFile?: string;
  /** Encrypts stored responses. Default: they are not encrypted. */
  encryption?: EncryptionOptions;
  /** A command without an answer within this time fails. Milliseconds; default 500. */
  timeoutMs?: number;
}

/** TLS to a store: paths of PEM files. They are read again when they change. */
export interface RedisTls {
  /** The certificate authorities that the server's certificate may come from. Default: the well-known ones. */
  ca?: string;
  /** The certificate to show to a server that asks for one, with its intermediates. Needs `key`. Default: none. */
  cert?: string;
  /** The private key of `cert`. */
  key?: string;
  /** The name that the certificate of each server must have. Default: the server's host. */
  serverName?: string;
}

/** TLS to PostgreSQL: the same options. */
export type StoreTls = RedisTls;

/** Options of {@link redisStore}. Give exactly one of `url`, `sentinels` and `cluster`. */
export interface RedisStoreOptions extends LifetimeOptions {
  /** One server: `redis://` or `rediss://`, with its credentials. */
  url?: string;
  /** Sentinels. */
  sentinels?: {
    /** The name of their master. */
    name: string;
    /** The sentinels, as `redis://host:port`. */
    nodes: string[];
  };
  /** Some nodes of a cluster, as `redis://host:port`. */
  cluster?: string[];
  /** User of the data nodes behind sentinels or in a cluster. Default: none. */
  username?: string;
  /** Password of the data nodes behind sentinels or in a cluster. Default: none. */
  password?: string;
  /**
   * `true`: TLS to the data nodes behind sentinels or in a cluster. A {@link RedisTls} goes with `rediss://` addresses as well.
   * Default: TLS for addresses that begin with `rediss://`.
   */
  tls?: boolean | RedisTls;
  /** What must be acknowledged before a start or a result counts as stored. */
  durability?: {
    /** How many replicas must have it: as many as follow the master. Otherwise requests get 503. Default 0. */
    replicas?: number;
    /** True: Redis may have more replicas, and then a failover can pay keys twice. Default: no new key is started then. */
    mayLoseOnFailover?: boolean;
  };
  /** Prefix of every Redis key. Default `oncegate`. */
  prefix?: string;
  /**
   * The path of a file in which this application notes which store it uses; no other application may use the file. A store that was emptied, or restored from a backup, then starts
   * no new key until `oncegate store accept`. Default: the store is not watched, and pays keys again that it has forgotten.
   */
  identityFile?: string;
  /** Encrypts stored responses. Default: they are not encrypted. */
  encryption?: EncryptionOptions;
  /** A command without an answer within this time fails. Milliseconds; default 500. */
  timeoutMs?: number;
  /** How long to wait for Redis at the start. Milliseconds; default 5000. */
  connectTimeoutMs?: number;
  /** Independent Redis nodes for Redlock, an odd number. Default none: leases are kept in the store. */
  lockNodes?: string[];
}

/** Options of {@link postgresStore}. */
export interface PostgresStoreOptions extends LifetimeOptions {
  /** The server and the database, with its credentials: `postgres://user:password@host:5432/database`. */
  url: string;
  /** The schema that holds the tables. `oncegate store prepare` makes them. Default `oncegate`. */
  schema?: string;
  /** TLS: true, or paths of PEM files. The certificate of the server is always checked. Default: no TLS. */
  tls?: boolean | StoreTls;
  /** What a failover may lose. */
  durability?: {
    /** True: a store that was emptied, restored or has lost writes is a warning. Default: no new key is started then. */
    mayLoseOnFailover?: boolean;
  };
  /**
   * The path of a file in which this application notes which store it uses; no other application may use the file. A store that was emptied, or restored from a backup, then starts
   * no new key until `oncegate store accept`. Default: the store is not watched, and pays keys again that it has forgotten.
   */
  identityFile?: string;
  /** Encrypts stored responses. Default: they are not encrypted. */
  encryption?: EncryptionOptions;
  /** A command without an answer within this time fails. Milliseconds; default 500. */
  timeoutMs?: number;
  /** How long to wait for PostgreSQL at the start. Milliseconds; default 5000. */
  connectTimeoutMs?: number;
  /** How many transactions of handlers run at the same time, each on a connection of its own. Default 10. */
  maxTransactions?: number;
}

/** The result of a check. */
export interface Health {
  /** Whether the part that was checked works. */
  ok: boolean;
  /** What was found, in one sentence for the operator. */
  detail: string;
  /** What works, and should be changed nevertheless. */
  warnings?: readonly string[];
}

/** An open store for `idempotency`. Several of them may share it. */
export interface IdempotencyStore {
  /** Whether the store accepts records now, replicas included, which it proves by writing one. */
  health(): Promise<Health>;
  /** Closes the store. Close every `idempotency` that uses it first. */
  close(): Promise<void>;
}

/** What `idempotency` needs of an open store. */
export class OpenedStore implements IdempotencyStore {
  readonly store: Store;
  readonly lifetimes: Lifetimes;
  /** Who counts and logs what the store tells. It is opened before the `idempotency` that use it, so they are added later. */
  readonly emits: Set<Emit>;
  readonly watch: StoreWatch | undefined;
  readonly #outages: Outages;
  readonly storeId: () => string | undefined;
  /** The operations of the `idempotency` that use it: see {@link claimOperation}. */
  readonly claims = new Set<{ layer: string; operation: string; ask: unknown }>();
  /** The event `commit`, if the store is in a database that may be the application's. */
  readonly commits: Commits | undefined;

  constructor(
    store: Store,
    lifetimes: Lifetimes,
    emits: Set<Emit>,
    watch: StoreWatch | undefined,
    outages: Outages,
    storeId: () => string | undefined,
    commits: Commits | undefined,
  ) {
    this.store = store;
    this.lifetimes = lifetimes;
    this.emits = emits;
    this.watch = watch;
    this.#outages = outages;
    this.storeId = storeId;
    this.commits = commits;
  }

  /** The store for one `idempotency`, which counts and logs what it asks for. */
  measured(emit: Emit): Store {
    const refusal = (recordId?: RecordId) => this.watch?.refusalOf(recordId);
    return measured(this.store, systemClock, emit, refusal, (startedMs) => this.#outages.failed(startedMs));
  }

  async health() {
    const health = await this.store.health();
    return this.watch?.healthOf(health) ?? health;
  }

  async close(): Promise<void> {
    await this.watch?.close();
    this.#outages.close();
    await this.store.close();
  }
}

/**
 * Opens a SQLite database in a folder.
 *
 * @param options every option has a default
 * @returns the open store. Several processes of one machine may open the same folder
 * @throws {TypeError} if an option is invalid
 * @throws {Error} with a message for the operator if the folder cannot be used
 */
export async function sqliteStore(options: SqliteStoreOptions = {}): Promise<IdempotencyStore> {
  const { database, ...store } = options;
  if (database && store.path !== undefined)
    throw new TypeError('sqliteStore: path: does not go with database, which has a file of its own');
  return await open('sqliteStore', { kind: 'sqlite', ...store }, undefined, database && { database });
}

/**
 * Connects to Redis 7.0 or newer, with persistence and without eviction.
 *
 * @param options where Redis is
 * @returns the open store
 * @throws {TypeError} if an option is invalid
 * @throws {Error} with a message for the operator if Redis cannot be used
 */
export async function redisStore(options: RedisStoreOptions): Promise<IdempotencyStore> {
  const { lockNodes, ...store } = options;
  return await open('redisStore', { kind: 'redis', ...store }, lockNodes);
}

/**
 * Connects to PostgreSQL 13 or newer, by the package `pg`. With the database of the application, a handler can execute its request and
 * store its answer in one transaction: see the option `transactional` of {@link idempotency}.
 *
 * @param options where PostgreSQL is
 * @returns the open store
 * @throws {TypeError} if an option is invalid
 * @throws {Error} with a message for the operator if PostgreSQL cannot be used
 */
export async function postgresStore(options: PostgresStoreOptions): Promise<IdempotencyStore> {
  const { maxTransactions = 10, ...store } = options;
  if (!Number.isInteger(maxTransactions) || maxTransactions < 1 || maxTransactions > 1000)
    throw new TypeError('postgresStore: maxTransactions: must be a whole number from 1 to 1000');
  return await open('postgresStore', { kind: 'postgres', ...store }, undefined, { maxTransactions });
}

async function open(
  name: string,
  options: z.input<typeof storeOptions> & LifetimeOptions,
  nodes?: string[],
  tools: Pick<StoreTools, 'maxTransactions' | 'database'> = {},
): Promise<IdempotencyStore> {
  const { leaseMs, retentionMs, inDoubtRetentionMs, ...store } = options;
  const sections = {
    store: parsed(storeOptions, store, name),
    lock: parsed(lockOptions, { leaseMs, nodes }, name),
    idempotency: parsed(idempotencyOptions, { retentionMs, inDoubtRetentionMs }, name),
  };
  const lifetimes = {
    leaseMs: sections.lock.leaseMs,
    retentionMs: sections.idempotency.retentionMs,
    inDoubtRetentionMs: sections.idempotency.inDoubtRetentionMs,
  };
  if (lifetimes.inDoubtRetentionMs < lifetimes.retentionMs)
    throw new TypeError(
      `${name}: inDoubtRetentionMs: must not be less than retentionMs (${lifetimes.retentionMs})`,
    );
  const emits = new Set<Emit>();
  const emitToAll: Emit = (event, told, value) => {
    for (const tell of emits) tell(event, told, value);
  };
  const { ledger: opened, commits } = await openStore(sections, systemClock, { ...tools, emit: emitToAll });
  const { identityFile: file } = sections.store;
  const { emit } = new Events(createLogger('warn'));
  const watched = { store: opened, clock: systemClock, emit };
  const watch = file === undefined ? undefined : await StoreWatch.of(sections, { file, ...watched });
  for (const warning of watch?.atStart ?? []) emit('attention', { warning: `store: ${warning}` });
  watch?.begin();
  const storeId = await storeIdOf(opened, sections.idempotency.mode, watch);
  const outages = new Outages(opened, systemClock, emitToAll);
  return new OpenedStore(opened, lifetimes, emits, watch, outages, storeId, commits);
}
