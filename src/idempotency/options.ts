import { z } from 'zod';
import { checkLocation, redisOptions, redisUrl } from '../kernel/redis-options.ts';
import type { InDoubtPolicy } from './call.ts';

const ms = (min: number, max: number) => z.number().int().min(min).max(max);

/** Section `idempotency`. */
export const idempotencyOptions = z.strictObject({
  /**
   * protect: a key is executed at most once. observe: NOTHING IS PROTECTED. Every request is sent to the backend, duplicates
   * included; the gateway only records keys, and counts what it would have stopped (`oncegate_observed_total`).
   */
  mode: z.enum(['protect', 'observe']).default('protect'),
  /** Headers that carry the key. In idempotency-key a quoted string is read as a structured field. */
  headers: z
    .array(z.string().regex(/^[a-z0-9-]+$/, 'must be a header name in lower case'))
    .min(1)
    .default(['x-service-idempotency', 'idempotency-key']),
  /**
   * What happens to requests on paths that no operation declares. protect: a request with a key is executed once, as
   * operation `undeclared`. pass: requests are streamed, and a key is ignored. refuse: 404.
   */
  undeclared: z.enum(['protect', 'pass', 'refuse']).default('protect'),
  /** How long a completed key is kept, counted from its start. At most 30 days. */
  retentionMs: ms(1000, 2_592_000_000).default(86_400_000),
  /**
   * How long a key in doubt is kept, counted from its start. A key that was in doubt is kept for this long again after its
   * completion. Until then, only an operator, a lookup or `inDoubt: retry` can cause a second execution. Default 30 days; not
   * less than retentionMs.
   */
  inDoubtRetentionMs: ms(1000, 31_536_000_000).default(2_592_000_000),
  /**
   * Age of the oldest key in doubt beyond which the alert `OncegateInDoubtOld` pages the person on call. The gateway only
   * shows it to Prometheus. Default one hour.
   */
  inDoubtPageAfterMs: ms(1000, 2_592_000_000).default(3_600_000),
  /** A larger response is streamed to the merchant, and only its status is stored. */
  maxStoredBytes: z.number().int().min(1024).max(67_108_864).default(1_048_576),
  /** How long a merchant waits for the response while the store does not acknowledge it. */
  completeRetryMs: ms(0, 60_000).default(2000),
  /**
   * How often the store is asked how many keys are in doubt, for the metrics. With Redis one gateway counts for all, in a cluster
   * half as often.
   */
  countDoubtsEveryMs: ms(100, 600_000).default(15_000),
  /** The most duplicates that may wait at the same time in one process. Further ones are answered 409 at once. */
  maxWaiters: z.number().int().min(0).max(1_000_000).default(5000),
});

/** Section `lock`. */
export const lockOptions = z.strictObject({
  /** How long the owner of a key counts as alive without renewing its lease. */
  leaseMs: ms(100, 600_000).default(10_000),
  /** Independent Redis nodes for Redlock, an odd number. Empty: leases are kept in the store. */
  nodes: z
    .array(redisUrl)
    .refine(
      (nodes) => nodes.length === 0 || nodes.length % 2 === 1,
      'must be an odd number of nodes, or none',
    )
    .default([]),
});

const timeoutMs = ms(10, 60_000).default(500);

/**
 * Where the gateway notes which store it uses, to notice one that was emptied or restored. Default: beside the configuration,
 * named after it (`gateway.store-mark.json`).
 */
const markFile = z.string().min(1).optional();

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
  /** Folder of the database, shared by all gateways of this machine. */
  path: z.string().min(1).default('./data'),
  markFile,
  encryption: encryption.optional(),
  /** A command without an answer within this time fails: the store is unavailable. */
  timeoutMs,
});

/** Redis 7.0 or newer, with persistence and without eviction. */
const redisStore = z
  .strictObject({
    kind: z.literal('redis'),
    ...redisOptions,
    durability: z
      .strictObject({
        /** Replicas that must acknowledge a start before the request is sent, and a result before it is replayed; else 503. */
        replicas: z.number().int().min(0).max(10).default(0),
      })
      .prefault({}),
    markFile,
    encryption: encryption.optional(),
    /** A command without an answer within this time fails: the store is unavailable. */
    timeoutMs,
  })
  .superRefine(checkLocation);

/** Section `store`. */
export const storeOptions = z.discriminatedUnion('kind', [sqliteStore, redisStore]);

const PLACEHOLDERS = ['{merchant}', '{key}', '{operation}'];
/** Fields that the gateway itself sets, or that would change what the request is. */
const NOT_FOR_LOOKUPS =
  /^(?:host|connection|content-length|transfer-encoding|te|trailer|upgrade|expect|accept-encoding|x-merchant-code)$/;
const statuses = z.array(z.number().int().min(200).max(599));

/**
 * `operations[].idempotency.lookup`: a GET that asks the backend what became of a transaction. It is sent to `upstream.url`
 * with X-Merchant-Code, never with the merchant's secret key.
 */
const lookupOptions = z
  .strictObject({
    /**
     * Path and query. They must contain {merchant} and {key}, because two merchants may use the same key, and may contain
     * {operation}. Values are percent-encoded.
     */
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
        `must have no braces except in ${PLACEHOLDERS.join(', ')}`,
      ),
    /** Header fields of the request, such as the gateway's own credentials for the backend. Treated as secret. */
    headers: z
      .record(
        z
          .string()
          .regex(/^[a-z0-9-]+$/, 'must be a header name in lower case')
          .refine((name) => !NOT_FOR_LOOKUPS.test(name), 'must not be a field that the gateway sets itself'),
        z.string().regex(/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/, 'must be a header value'),
      )
      .default({}),
    /** Statuses with which the backend says that it executed the transaction, finally. The body becomes the result. */
    completed: statuses.min(1).default([200]),
    /**
     * Statuses with which the backend says that it knows of no such transaction, so that the key may be executed again.
     * Default none, because a mistyped path that answers 404 must not free keys.
     */
    released: statuses.default([]),
    /** Status of the response that retries get after a lookup has completed the key. */
    completedStatus: z.number().int().min(200).max(599).default(200),
    /**
     * How long a key must have been in doubt before the gateway believes "no such transaction" and frees the key. Until then
     * the request may still be on its way: in a queue of the backend, in a network that is partitioned, in a gateway that
     * was paused. If it arrives after this time, the backend executes twice, so choose the longest delay that you can
     * imagine. The process that sends the lookups counts from when it first saw the key in doubt. Not less than
     * `lock.leaseMs` and `upstream.responseTimeoutMs`.
     */
    releaseAfterMs: ms(1, 2_592_000_000).default(60_000),
    /** Time limit for the complete answer to one lookup. */
    timeoutMs: ms(1, 600_000).default(5000),
    /** The pause before the first lookup, counted from when the key is in doubt. */
    firstAfterMs: ms(1, 3_600_000).default(1000),
    /** The pause between two lookups doubles up to this. Lookups end when the record expires. */
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
    /** none: a key is ignored. optional: a request with a key is protected. required: a request without a key gets 400. */
    key: z.enum(['none', 'optional', 'required']).default('optional'),
    /**
     * What happens when a merchant retries with a key in doubt.
     *
     * - hold: the retry gets 409 outcome_unknown, until an operator resolves the key.
     * - lookup: the gateway asks the backend, see `lookup`.
     * - retry: DANGEROUS. The retry is sent to the backend, although the first request may have been executed, or may still
     *   be executed. Only for a backend that itself executes each idempotency key once. Any other backend pays twice.
     */
    inDoubt: z.enum(['hold', 'retry', 'lookup']).default('hold'),
    /** Required with inDoubt: lookup, and allowed only with it. */
    lookup: lookupOptions.optional(),
    /** How long a duplicate waits for the result of the first request. */
    waitMs: ms(0, 600_000).default(10_000),
    /** Statuses with which the backend says that it executed nothing: the response is sent, and the key is free again. */
    release: z.array(z.number().int().min(400).max(599)).default([401, 403, 429]),
    /**
     * Statuses with which a proxy in front of the backend says that it gave up waiting. The merchant gets the response, and
     * the key is in doubt, because the backend may have executed.
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

/** A key has no effect on them unless they may select an operation. */
const SAFE_METHODS = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];

interface Policies {
  operations: readonly {
    name: string;
    match: { usesOldName: boolean; methods: readonly string[] };
    idempotency: { inDoubt: InDoubtPolicy; key: 'none' | 'optional' | 'required' };
  }[];
  idempotency: { mode: 'protect' | 'observe'; undeclared: 'protect' | 'pass' | 'refuse' };
}

/** Warnings about dangerous or outdated policies, one line each. */
export function policyWarnings({ operations, idempotency: { mode, undeclared } }: Policies): string[] {
  const warnings: string[] = [];
  if (mode === 'observe')
    warnings.push(
      'idempotency.mode is observe: nothing is protected; every request is sent to the backend, and a duplicate pays twice',
    );
  for (const { name, match, idempotency } of operations) {
    if (idempotency.inDoubt === 'retry')
      warnings.push(
        `${name} has inDoubt: retry: a request that may have been executed is sent again; it pays twice, unless the backend itself executes each key once`,
      );
    if (idempotency.key === 'none' && match.methods.some((method) => !SAFE_METHODS.includes(method)))
      warnings.push(
        `${name} has key: none: a key does not protect its requests, and a retry is executed again`,
      );
    if (match.usesOldName) warnings.push(`${name} has match.body, which is the older name of match.where`);
  }
  if (undeclared === 'pass')
    warnings.push(
      'idempotency.undeclared is pass: a key does not protect requests that no operation declares',
    );
  return warnings;
}
