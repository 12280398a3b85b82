import * as z from 'zod';
import { clientTlsOptions } from '../backend/upstream-options.ts';
import { wholeNumber } from '../requests/common-options.ts';

/** ioredis takes every parameter for one of its options, in place of those that keep it from sending a command twice. */
const isRedisUrl = (text: string): boolean => {
  // URL takes REDISS:// too, and what looks for TLS does not.
  if (!/^rediss?:/.test(text) || !URL.canParse(text)) return false;
  const { hostname, pathname, searchParams, hash } = new URL(text);
  const isServer = hostname !== '' && /^\/?\d*$/.test(pathname);
  return isServer && hash === '' && [...searchParams.keys()].every((name) => name === 'password');
};

const redisUrl = z
  .string()
  .refine(
    isRedisUrl,
    'must be an address such as redis://redis.internal:6379/0 (rediss:// for TLS), without parameters',
  );

const isAddress = (text: string) => isRedisUrl(text) && /^rediss?:\/\/[^@/]+\/?$/.test(text);
const redisAddress = z
  .string()
  .refine(
    isAddress,
    'must be an address such as redis://redis.internal:6379 (rediss:// for TLS); set username and password as separate options',
  );

const isPostgresUrl = (text: string): boolean => {
  if (!URL.canParse(text)) return false;
  const { protocol, hostname, username, password, pathname, search, hash } = new URL(text);
  const isServer = /^postgres(?:ql)?:$/.test(protocol) && hostname !== '' && username !== '';
  const isEncoded = /^(?:[^%]|%[\da-f]{2})*$/i.test(username + password + pathname);
  return isServer && isEncoded && /^\/[^/]+$/.test(pathname) && search === '' && hash === '';
};

/** Section `lock`. */
export const lockOptions = z.strictObject({
  /** How long the owner of a key counts as alive without renewing its lease. */
  leaseMs: wholeNumber(100, 600_000).default(10_000),
  /** Independent Redis nodes for Redlock, an odd number. Empty: leases are kept in the store. */
  nodes: z
    .array(redisUrl)
    .refine(
      (nodes) => nodes.length === 0 || nodes.length % 2 === 1,
      'must be an odd number of nodes, or none',
    )
    .default([]),
});

const timeoutMs = wholeNumber(10, 60_000).default(500);

/**
 * Where the gateway notes which store it uses, to notice one that was emptied or restored. Default: beside the configuration,
 * named after it (`gateway.store-identity.json`).
 */
const identityFile = z.string().min(1).optional();

/** `store.encryption`: stored responses are encrypted with AES-256-GCM. Default off. */
const encryption = z
  .strictObject({
    /** Every key decrypts. A gateway cannot read a response whose key is not among them: add a key on all gateways first. */
    keys: z
      .array(
        z.strictObject({
          /** Stored in each record that this key encrypts. Never give another secret the same id. */
          id: z
            .string()
            .regex(/^[A-Za-z0-9._-]{1,32}$/, 'must be 1 to 32 letters, digits, and . _ -')
            .refine((id) => id !== 'none', 'must not be none'),
          /** 32 random bytes in base64 or hexadecimal, such as `openssl rand -base64 32` prints. */
          secret: z
            .string()
            .regex(
              /^(?:[0-9A-Fa-f]{64}|[A-Za-z0-9+/]{43}=)$/,
              'must be 32 bytes: 44 characters of base64 or 64 hexadecimal digits',
            ),
        }),
      )
      .min(1)
      .max(16),
    /** The id of the key that encrypts. Default: the first one. none: nothing new is encrypted, and the keys only decrypt. */
    current: z.string().optional(),
  })
  .superRefine(({ keys, current }, context) => {
    const issue = (path: (string | number)[], message: string) =>
      context.addIssue({ code: 'custom', path, message });
    for (const [i, { id, secret }] of keys.entries()) {
      const before = keys.slice(0, i);
      if (before.some((other) => other.id === id)) issue(['keys', i, 'id'], 'is the id of an earlier key');
      if (before.some((other) => other.secret === secret))
        issue(['keys', i, 'secret'], 'is the secret of an earlier key');
    }
    if (current !== undefined && current !== 'none' && !keys.some(({ id }) => id === current))
      issue(['current'], 'must be the id of one of the keys, or none');
  });

const sqliteStore = z.strictObject({
  kind: z.literal('sqlite'),
  /** Folder of the database, shared by all gateways of this machine. The commands of operators also take the file of an application. */
  path: z.string().min(1).default('./data'),
  identityFile,
  encryption: encryption.optional(),
  /** A command without an answer within this time fails: the store is unavailable. */
  timeoutMs,
});

/** Redis 7.0 or newer, with persistence and without eviction. */
const redisStore = z
  .strictObject({
    kind: z.literal('redis'),
    /** One server: redis:// or rediss://, with its credentials. */
    url: redisUrl.optional(),
    /** In place of `url`: sentinels, and the name of their master. rediss:// is TLS to the sentinel itself; `tls` is for the data nodes. */
    sentinels: z.strictObject({ name: z.string().min(1), nodes: z.array(redisAddress).min(1) }).optional(),
    /** In place of `url`: some nodes of a cluster. */
    cluster: z.array(redisAddress).min(1).optional(),
    /** Credentials of the data nodes behind sentinels or in a cluster. */
    username: z.string().min(1).optional(),
    password: z.string().min(1).optional(),
    /**
     * `true`: TLS to the data nodes behind sentinels or in a cluster. A section does the same, and names PEM files for every connection
     * to Redis that uses TLS, also for a rediss:// `url` and for `lock.nodes`.
     */
    tls: z.union([z.boolean(), clientTlsOptions]).optional(),
    /** Prefix of every Redis key. */
    prefix: z
      .string()
      .regex(/^[\w.:-]{1,64}$/, 'must be 1 to 64 letters, digits, and _ . : -')
      .default('oncegate'),
    /** How long to wait for Redis at the start. */
    connectTimeoutMs: wholeNumber(100, 120_000).default(5000),
    durability: z
      .strictObject({
        /**
         * Replicas that must acknowledge a start before the request is sent, and a result before it is replayed; else 503. As many as
         * follow the master, those that are away included.
         */
        replicas: wholeNumber(0, 10).default(0),
        /**
         * True: more replicas than that, and a store that was emptied, restored or has lost writes, are warnings, and keys may be paid
         * twice. False: no new key is started then.
         */
        mayLoseOnFailover: z.boolean().default(false),
      })
      .prefault({}),
    identityFile,
    encryption: encryption.optional(),
    /** A command without an answer within this time fails: the store is unavailable. */
    timeoutMs,
  })
  .superRefine(({ url, sentinels, cluster, username, password, tls, durability }, context) => {
    const mistake = (option: string, message: string, ...path: string[]) =>
      context.addIssue({ code: 'custom', path: [option, ...path], message });
    const given = [url, sentinels, cluster].filter((location) => location !== undefined).length;
    if (given !== 1) mistake('url', 'needs exactly one of url, sentinels and cluster');
    const hasFiles = typeof tls === 'object';
    if (url !== undefined && (username ?? password ?? (hasFiles ? undefined : tls)) !== undefined)
      mistake(
        'url',
        'already contains username, password and TLS (rediss://), so they must not be set separately',
      );
    if (hasFiles && url?.startsWith('redis:'))
      mistake('url', 'must begin with rediss:// when tls is a section');
    // ioredis sends a WAIT to any node.
    if (cluster && durability.replicas > 0)
      mistake('durability', 'is not possible with cluster, only with url or sentinels', 'replicas');
    const secure = cluster?.filter((node) => node.startsWith('rediss:')).length;
    if (cluster && secure !== 0 && (secure !== cluster.length || tls === false))
      mistake('cluster', 'must begin with rediss:// for all nodes of the cluster, or for none');
  });

/** PostgreSQL 13 or newer. `oncegate store prepare` makes its tables. */
const postgresStore = z.strictObject({
  kind: z.literal('postgres'),
  /** The server and the database, with its credentials. */
  url: z
    .string()
    .refine(
      isPostgresUrl,
      'must be an address such as postgres://oncegate:password@postgres.internal:5432/payments, without parameters',
    ),
  /** The schema that holds the tables. */
  schema: z
    .string()
    .regex(
      /^[a-z_][a-z0-9_]{0,62}$/,
      'must be 1 to 63 lower-case letters, digits and _, and must not begin with a digit',
    )
    .default('oncegate'),
  /** TLS: true, or a section with paths of PEM files. The certificate of the server is always checked. */
  tls: z.union([z.boolean(), clientTlsOptions]).default(false),
  /** How long to wait for PostgreSQL at the start. */
  connectTimeoutMs: z.number().int().min(100).max(120_000).default(5000),
  durability: z
    .strictObject({
      /**
       * True: a store that was emptied, restored or has lost writes is a warning, and keys may be paid twice. False: no new key is
       * started then.
       */
      mayLoseOnFailover: z.boolean().default(false),
    })
    .prefault({}),
  identityFile,
  encryption: encryption.optional(),
  /** A command without an answer within this time fails: the store is unavailable. */
  timeoutMs,
});

export type Encryption = z.output<typeof encryption>;

/** Section `store`. */
export const storeOptions = z.discriminatedUnion('kind', [sqliteStore, redisStore, postgresStore]);

export type StoreOptions = z.output<typeof storeOptions>;

/** The section `store` with `kind: redis`. */
export type RedisSection = z.output<typeof redisStore>;

/** The section `store` with `kind: postgres`. */
export type PostgresSection = z.output<typeof postgresStore>;
