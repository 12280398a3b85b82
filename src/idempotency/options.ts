import { z } from 'zod';
import type { InDoubtPolicy } from './call.ts';

const ms = (min: number, max: number) => z.number().int().min(min).max(max);
const isRedisUrl = (text: string) =>
  URL.canParse(text) && /^rediss?:$/.test(new URL(text).protocol) && new URL(text).hostname !== '';
const redisUrl = z
  .string()
  .refine(isRedisUrl, 'must be an address such as redis://redis.internal:6379 (rediss:// for TLS)');

/** Section `idempotency`. */
export const idempotencyOptions = z.strictObject({
  /** Headers that carry the key. In idempotency-key a quoted string is read as a structured field. */
  headers: z
    .array(z.string().regex(/^[a-z0-9-]+$/, 'must be a header name in lower case'))
    .min(1)
    .default(['x-service-idempotency', 'idempotency-key']),
  /**
   * What becomes of requests on paths that no operation declares. protect: with a key they are executed once, as operation
   * `undeclared`. pass: they are streamed, and a key means nothing. refuse: 404.
   */
  undeclared: z.enum(['protect', 'pass', 'refuse']).default('protect'),
  /** How long a completed key is kept, from its start; at most 30 days. */
  retentionMs: ms(1000, 2_592_000_000).default(86_400_000),
  /**
   * How long a key is kept whose outcome is unknown, from its start; and a key that was in doubt, from its completion.
   * Within this time it is never executed again by itself. Default 30 days; not less than retentionMs.
   */
  inDoubtRetentionMs: ms(1000, 31_536_000_000).default(2_592_000_000),
  /** A larger response is passed on, and only its status is stored. */
  maxStoredBytes: z.number().int().min(1024).max(67_108_864).default(1_048_576),
  /** How long a response is held back while the store does not take it. */
  completeRetryMs: ms(0, 60_000).default(2000),
  /** Duplicates that may wait at once in one process; one more is answered 409 at once. */
  maxWaiters: z.number().int().min(0).max(1_000_000).default(5000),
});

const isAddress = (text: string) => isRedisUrl(text) && /^redis:\/\/[^@/]+\/?$/.test(text);
const redisAddress = z
  .string()
  .refine(
    isAddress,
    'must be an address such as redis://redis.internal:6379; credentials and tls stand beside it',
  );

/** Section `lock`. */
export const lockOptions = z.strictObject({
  /** How long the owner of a key counts as alive without a sign of life. */
  leaseMs: ms(100, 600_000).default(10_000),
  /** Independent Redis nodes for Redlock, an odd number; empty: the store's own. */
  nodes: z
    .array(redisUrl)
    .refine(
      (nodes) => nodes.length === 0 || nodes.length % 2 === 1,
      'must be an odd number of nodes, or none',
    )
    .default([]),
});

const timeoutMs = ms(10, 60_000).default(500);

const sqliteStore = z.strictObject({
  kind: z.literal('sqlite'),
  /** Folder of the database, shared by all gateways of this machine. */
  path: z.string().min(1).default('./data'),
  /** A store that does not answer within this is unavailable. */
  timeoutMs,
});

/** Version 7.0 or newer, with persistence and without eviction. */
const redisStore = z
  .strictObject({
    kind: z.literal('redis'),
    /** One server: redis:// or rediss://, with its credentials. */
    url: redisUrl.optional(),
    /** Or the master that these sentinels name. */
    sentinels: z.strictObject({ name: z.string().min(1), nodes: z.array(redisAddress).min(1) }).optional(),
    /** Or a cluster: some of its nodes. */
    cluster: z.array(redisAddress).min(1).optional(),
    /** Credentials of the data nodes behind sentinels or in a cluster. */
    username: z.string().min(1).optional(),
    password: z.string().min(1).optional(),
    tls: z.boolean().optional(),
    durability: z
      .strictObject({
        /** Replicas that must have a start before anything is sent, and a result before it is replayed; without them 503. */
        replicas: z.number().int().min(0).max(10).default(0),
      })
      .prefault({}),
    /** Before the name of every key. */
    prefix: z
      .string()
      .regex(/^[\w.:-]{1,64}$/, 'must be 1 to 64 letters, digits, and _ . : -')
      .default('oncegate'),
    /** A store that does not answer within this is unavailable. */
    timeoutMs,
    /** How long to wait for Redis at the start. */
    connectTimeoutMs: ms(100, 120_000).default(5000),
  })
  .superRefine(({ url, sentinels, cluster, username, password, tls }, context) => {
    const said = [url, sentinels, cluster].filter((location) => location !== undefined).length;
    if (said !== 1) {
      const message = 'needs exactly one of url, sentinels and cluster';
      context.addIssue({ code: 'custom', path: ['url'], message });
    }
    if (url !== undefined && (username ?? password ?? tls) !== undefined) {
      context.addIssue({
        code: 'custom',
        path: ['url'],
        message: 'carries its own username, password and TLS (rediss)',
      });
    }
  });

/** Section `store`. */
export const storeOptions = z.discriminatedUnion('kind', [sqliteStore, redisStore]);

const PLACEHOLDERS = ['{merchant}', '{key}', '{operation}'];
/** Fields that the gateway itself sets, or that would change what the request is. */
const NOT_FOR_LOOKUPS =
  /^(?:host|connection|content-length|transfer-encoding|te|trailer|upgrade|expect|accept-encoding|x-merchant-code)$/;
const statuses = z.array(z.number().int().min(200).max(599));

/**
 * `operations[].idempotency.lookup`: the backend's own answer to what became of a transaction. A GET, sent to
 * `upstream.url` with X-Merchant-Code, never with the merchant's secret key.
 */
const lookupOptions = z
  .strictObject({
    /** Path and query, with {merchant} and {key}: two merchants may use the same key. {operation} too. Values are percent-encoded. */
    path: z
      .string()
      .regex(/^\/(?!\/)[\x21-\x7e]*$/, 'must begin with one / and hold printable ASCII without spaces')
      .refine((path) => !path.includes('#'), 'must hold no fragment')
      .refine(
        (path) => path.includes('{merchant}') && path.includes('{key}'),
        'must hold {merchant} and {key}',
      )
      .refine(
        (path) => [...path.matchAll(/\{[^}]*\}?|\}/g)].every(([part]) => PLACEHOLDERS.includes(part)),
        `must hold no braces but those of ${PLACEHOLDERS.join(', ')}`,
      ),
    /** Header fields of the request: the gateway's own credential at the backend. Treated as secret. */
    headers: z
      .record(
        z
          .string()
          .regex(/^[a-z0-9-]+$/, 'must be a header name in lower case')
          .refine((name) => !NOT_FOR_LOOKUPS.test(name), 'must not be a field that the gateway sets itself'),
        z.string().regex(/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/, 'must be a header value'),
      )
      .default({}),
    /** Statuses by which the backend says that it executed the transaction, finally: the body becomes the result. */
    completed: statuses.min(1).default([200]),
    /**
     * Statuses by which it says that it knows of no such transaction, and the key may be executed again. Default none: a
     * mistyped path that answers 404 must not free keys.
     */
    released: statuses.default([]),
    /** Status of the result that retries then get. */
    completedStatus: z.number().int().min(200).max(599).default(200),
    /**
     * How long a key must have been in doubt before "no such transaction" is believed, and the key is free again. The
     * request may still be on its way: in a queue of the backend, in a network that stands still, in a gateway that was
     * paused. Whatever arrives after this is a second execution, so take the longest that you can imagine. Counted by
     * the process that looks, from when it met the doubt; not less than `lock.leaseMs` and `upstream.responseTimeoutMs`.
     */
    releaseAfterMs: ms(1, 2_592_000_000).default(60_000),
    /** Time for the complete answer. */
    timeoutMs: ms(1, 600_000).default(5000),
    /** From when the key is in doubt to the first question. */
    firstAfterMs: ms(1, 3_600_000).default(1000),
    /** The pause between two questions doubles up to this. They end when the record expires. */
    maxPauseMs: ms(1, 86_400_000).default(60_000),
  })
  .superRefine(({ completed, released, firstAfterMs, maxPauseMs }, context) => {
    const both = completed.find((status) => released.includes(status));
    if (both !== undefined)
      context.addIssue({ code: 'custom', path: ['released'], message: `${both} is in completed too` });
    if (maxPauseMs < firstAfterMs)
      context.addIssue({
        code: 'custom',
        path: ['maxPauseMs'],
        message: 'must not be less than firstAfterMs',
      });
  });

/** `operations[].idempotency`. */
export const operationIdempotencyOptions = z
  .strictObject({
    /** none: a key means nothing here; optional: it protects; required: without one 400. */
    key: z.enum(['none', 'optional', 'required']).default('optional'),
    /**
     * What becomes of a key whose outcome is unknown.
     *
     * - hold: a retry gets 409 outcome_unknown, until somebody resolves it.
     * - lookup: the backend is asked, see `lookup`.
     * - retry: DANGEROUS. A retry is sent to the backend again, though the first request may have been executed, or may
     *   still be. Only for a backend that itself executes one idempotency key once: with any other it pays twice.
     */
    inDoubt: z.enum(['hold', 'retry', 'lookup']).default('hold'),
    /** With inDoubt: lookup, and only then. */
    lookup: lookupOptions.optional(),
    /** How long a duplicate waits for the first one's result. */
    waitMs: ms(0, 600_000).default(10_000),
    /** Statuses by which the backend says that it executed nothing: passed on, and the key is free again. */
    release: z.array(z.number().int().min(400).max(599)).default([401, 403, 429]),
    /**
     * Statuses by which a proxy in front of the backend says that it gave up waiting: passed on, and the key is in doubt,
     * because the backend may have executed.
     */
    unknown: z.array(z.number().int().min(400).max(599)).default([502, 504]),
  })
  .superRefine(({ inDoubt, lookup, release, unknown }, context) => {
    const both = release.find((status) => unknown.includes(status));
    if (both !== undefined)
      context.addIssue({ code: 'custom', path: ['unknown'], message: `${both} is in release too` });
    if (inDoubt === 'lookup' && !lookup)
      context.addIssue({ code: 'custom', path: ['lookup'], message: 'is needed with inDoubt: lookup' });
    if (inDoubt !== 'lookup' && lookup)
      context.addIssue({ code: 'custom', path: ['lookup'], message: 'only goes with inDoubt: lookup' });
  });

interface Policies {
  operations: readonly {
    name: string;
    match: { usesOldName: boolean };
    idempotency: { inDoubt: InDoubtPolicy };
  }[];
  idempotency: { undeclared: 'protect' | 'pass' | 'refuse' };
}

/** What an operator ought to know of the configured policies, one line each. */
export function policyWarnings({ operations, idempotency: { undeclared } }: Policies): string[] {
  const warnings: string[] = [];
  for (const { name, match, idempotency } of operations) {
    if (idempotency.inDoubt === 'retry')
      warnings.push(
        `${name} has inDoubt: retry: a request that may have been executed is sent again; it pays twice, unless the backend itself executes each key once`,
      );
    if (match.usesOldName) warnings.push(`${name} has match.body, which is the older name of match.where`);
  }
  if (undeclared === 'pass')
    warnings.push(
      'idempotency.undeclared is pass: a key does not protect requests that no operation declares',
    );
  return warnings;
}
