import { isIP } from 'node:net';
import * as z from 'zod';
import { adminOptions, digitsToNumber } from '../admin/admin-options.ts';
import { isOfGateway } from '../backend/headers.ts';
import { headerOptions, upstreamOptions } from '../backend/upstream-options.ts';
import { idempotencyOptions, operationIdempotencyOptions } from '../idempotency/idempotency-options.ts';
import { authOptions } from '../keys/auth-options.ts';
import { wholeNumber } from '../requests/common-options.ts';
import {
  type MatchOptions,
  matchesPath,
  matchOptions,
  publicPathOptions,
} from '../requests/match-options.ts';
import { OVERRIDES } from '../requests/operations.ts';
import { operationsOpenedBy } from '../requests/public-paths.ts';
import { isSafe } from '../requests/target.ts';
import { lockOptions, storeOptions } from '../store/store-options.ts';
import { logOptions, metricsOptions, tracingOptions } from '../telemetry/telemetry-options.ts';
import { perMerchantOptions } from './per-merchant.ts';

/** `listen.tls`: the port speaks HTTPS. Paths of PEM files, which are read again when they change. */
const listenTlsOptions = z.strictObject({
  /** The certificate, with its intermediates behind it. */
  cert: z.string().min(1),
  /** The private key of `cert`, without a passphrase. */
  key: z.string().min(1),
  /** The oldest version of TLS that merchants may use. */
  minVersion: z.enum(['TLSv1.2', 'TLSv1.3']).default('TLSv1.2'),
});

/** Section `listen`: the port for merchants. */
const listenOptions = z.strictObject({
  host: z.string().min(1).default('0.0.0.0'),
  port: z.preprocess(digitsToNumber, wholeNumber(0, 65_535)).default(8080),
  /** Absent: the port speaks plain HTTP. */
  tls: listenTlsOptions.optional(),
  /**
   * Proxies in front of the gateway that are believed about the client: addresses, ranges such as 10.0.0.0/8, and `loopback`,
   * `linklocal` and `uniquelocal`. Default none: the peer of a connection is the client.
   */
  trustedProxies: z
    .array(
      z
        .string()
        .refine(
          isProxyRange,
          'must be an address, a range such as 10.0.0.0/8, or one of loopback, linklocal, uniquelocal',
        ),
    )
    .default([]),
});

/** Stricter than `proxy-addr`, which takes 10 for the address 0.0.0.10. */
function isProxyRange(text: string): boolean {
  if (['loopback', 'linklocal', 'uniquelocal'].includes(text)) return true;
  const [address = '', bits, ...more] = text.split('/');
  const version = isIP(address);
  if (version === 0 || address.includes('%') || more.length > 0) return false;
  // /0 would trust everyone.
  const most = version === 4 ? 32 : 128;
  return bits === undefined || (/^[1-9]\d{0,2}$/.test(bits) && Number(bits) <= most);
}

/** Section `limits`. */
export const limitOptions = z.strictObject({
  /** Largest request body that the executor sends. Bodies that are passed through have no limit. */
  bodyBytes: wholeNumber(1, 67_108_864).default(1_048_576),
  /**
   * Bytes of all request bodies that one process holds in memory at the same time. Further ones are answered 503 overloaded. Default: a
   * quarter of the memory that the process may use, at least `bodyBytes`.
   */
  bufferedBytes: wholeNumber(65_536, 1_099_511_627_776).optional(),
  /** Bytes of all header fields of a request together. */
  headerBytes: wholeNumber(1024, 262_144).default(16_384),
  /** Connections of merchants to one process, WebSockets included. Further ones are closed at once. */
  connections: wholeNumber(1, 1_000_000).default(20_000),
  /** Requests that one process handles at the same time. Further ones are answered 503 overloaded. */
  inFlight: wholeNumber(1, 1_000_000).default(10_000),
  /** What a single merchant may send. A further request is answered 429 rate_limited. Default: no limit. */
  perMerchant: perMerchantOptions.optional(),
  /** Time within which the head of a request must arrive. */
  headerTimeoutMs: wholeNumber(100, 600_000).default(15_000),
  /** Time within which the body of a request that the executor sends must arrive. */
  bodyTimeoutMs: wholeNumber(100, 600_000).default(30_000),
  /**
   * Time within which a merchant must read a complete answer, or the next part of a streamed one. Otherwise the connection
   * is closed, after this time at the earliest and after twice this time at the latest.
   */
  answerTimeoutMs: wholeNumber(100, 600_000).default(30_000),
});

/** Section `shutdown`: the steps after SIGTERM, in this order. */
const shutdownOptions = z.strictObject({
  /** The gateway still accepts requests for this time, but /readyz answers 503 and answers close their connection. */
  delayMs: wholeNumber(0, 600_000).default(1000),
  /** Running requests have this time to be completed. Then they are aborted, and the keys whose requests were sent are in doubt. */
  graceMs: wholeNumber(0, 600_000).default(35_000),
  /** Then the store has this time to acknowledge responses that merchants already have. If none is left, the gateway exits. */
  completeMs: wholeNumber(1000, 86_400_000).default(300_000),
});

/**
 * `auth.public`: requests that need no secret key, such as a bank's callbacks. They have no merchant, so an idempotency key
 * does not protect them. Default none.
 */
const publicPaths = z.array(publicPathOptions).max(200).default([]);

const RESERVED = ['other', 'undeclared', 'none', '*'];

const operationOptions = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z][a-z0-9_-]{0,31}$/, 'must be a word in lower case')
    .refine((name) => !RESERVED.includes(name), `must not be one of ${RESERVED.join(', ')}`),
  match: matchOptions,
  idempotency: operationIdempotencyOptions.prefault({}),
});

/** The operations of the merchant API. The endpoint of `checkout` is an assumption, because that API does not define it. */
const interfaceOperations: z.input<typeof operationOptions>[] = [
  { name: 'balance', match: { method: 'GET', path: '/v2/get_balance' } },
  {
    name: 'withdraw',
    match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } },
  },
  {
    name: 'checkout',
    match: { method: 'POST', path: '/v1/index.php', where: { action: 'checkout' } },
  },
];

/** A whole configuration file. Only `upstream.url` has no default. */
export const configSchema = z
  .strictObject({
    listen: listenOptions.prefault({}),
    admin: adminOptions.prefault({}),
    // The empty section is invalid, so that the mistake is reported as upstream.url.
    upstream: upstreamOptions.prefault({} as z.input<typeof upstreamOptions>),
    store: storeOptions.prefault({ kind: 'sqlite' }),
    lock: lockOptions.prefault({}),
    auth: authOptions.safeExtend({ public: publicPaths }).prefault({}),
    idempotency: idempotencyOptions.prefault({}),
    headers: headerOptions.prefault({}),
    limits: limitOptions.prefault({}),
    shutdown: shutdownOptions.prefault({}),
    log: logOptions.prefault({}),
    metrics: metricsOptions.prefault({}),
    tracing: tracingOptions.prefault({}),
    operations: z.array(operationOptions).max(200).prefault(interfaceOperations),
  })
  .superRefine((config, context) => {
    for (const [path, message] of contradictions(config)) context.addIssue({ code: 'custom', path, message });
  });

export type Config = z.output<typeof configSchema>;

type Parsed = Pick<
  Config,
  'store' | 'lock' | 'upstream' | 'auth' | 'idempotency' | 'headers' | 'limits' | 'operations'
>;

/** Finds options that are valid alone but contradict each other. */
export function* contradictions({
  store,
  lock,
  upstream,
  auth,
  idempotency: retention,
  headers,
  limits,
  operations,
}: Parsed): Generator<[(string | number)[], string]> {
  if (limits.bufferedBytes !== undefined && limits.bufferedBytes < limits.bodyBytes)
    yield [['limits', 'bufferedBytes'], `must not be less than limits.bodyBytes (${limits.bodyBytes})`];
  if (store.kind !== 'redis' && lock.nodes.length > 0) {
    yield [['lock', 'nodes'], `is only possible with a redis store: ${store.kind} stores its leases itself`];
  }
  yield* lifetimeMistakes(lock.leaseMs, upstream, retention);
  yield* headerMistakes(retention.headers, headers.keepUnderscore);
  for (const [i, open] of auth.public.entries())
    for (const name of operationsOpenedBy(open, operations))
      yield [
        ['auth', 'public', i, 'path'],
        `would open the operation "${name}" to requests without a secret key`,
      ];
  const names = new Set<string>();
  for (const [i, { name, match, idempotency }] of operations.entries()) {
    for (const message of releaseMistakes(
      idempotency.lookup?.releaseAfterMs,
      lock.leaseMs,
      upstream.responseTimeoutMs,
    ))
      yield [['operations', i, 'idempotency', 'lookup', 'releaseAfterMs'], message];
    if (names.has(name)) yield [['operations', i, 'name'], `"${name}" is declared twice`];
    names.add(name);
    if (idempotency.key === 'required' && hasNoProtectedMethod(match))
      yield [
        ['operations', i, 'idempotency', 'key'],
        'has no effect: keys protect safe methods only in an operation with `where`',
      ];
    const before = operations.slice(0, i).find((earlier) => hides(earlier.match, match));
    if (before)
      yield [
        ['operations', i, 'match'],
        `matches only requests that "${before.name}" matches first: distinguish them by where, or declare it earlier`,
      ];
  }
}

/** CGI cannot tell a kept name with underscores from the one with dashes, so a client could forge what that one says. */
function* headerMistakes(
  keyHeaders: readonly string[],
  kept: readonly string[],
): Generator<[(string | number)[], string]> {
  for (const [i, name] of kept.entries()) {
    const dashed = name.replaceAll('_', '-');
    if (name !== dashed && (isOfGateway(dashed) || [...OVERRIDES, ...keyHeaders].includes(dashed)))
      yield [
        ['headers', 'keepUnderscore', i],
        `could forge ${dashed}: a CGI backend reads both as one header`,
      ];
  }
}

/** A key protects a safe method only if the operation has `where`, because then a query could execute something. */
const hasNoProtectedMethod = ({ methods, where }: MatchOptions): boolean =>
  Object.keys(where).length === 0 && methods.every(isSafe);

/** Whether the earlier operation matches every request that the later one matches. Then the later one never applies. */
function hides(earlier: MatchOptions, later: MatchOptions): boolean {
  if (earlier.path !== later.path && !matchesPath(earlier.path, later.path)) return false;
  if (!later.methods.every((method) => earlier.methods.includes(method))) return false;
  return Object.entries(earlier.where).every(([name, value]) => later.where[name] === value);
}

/** A record must outlive the execution that it protects, and connecting must not take longer than the lease. */
function* lifetimeMistakes(
  leaseMs: number,
  { queueTimeoutMs, connectTimeoutMs, responseTimeoutMs }: Config['upstream'],
  { retentionMs, inDoubtRetentionMs }: Config['idempotency'],
): Generator<[string[], string]> {
  if (connectTimeoutMs >= leaseMs)
    yield [['upstream', 'connectTimeoutMs'], `must be less than lock.leaseMs (${leaseMs})`];
  const executionMs = queueTimeoutMs + connectTimeoutMs + responseTimeoutMs + leaseMs;
  if (retentionMs <= executionMs) {
    const sum = 'upstream.queueTimeoutMs, connectTimeoutMs and responseTimeoutMs and lock.leaseMs together';
    yield [
      ['idempotency', 'retentionMs'],
      `must be longer than an execution can take: ${sum} (${executionMs})`,
    ];
  }
  if (inDoubtRetentionMs < retentionMs)
    yield [
      ['idempotency', 'inDoubtRetentionMs'],
      `must not be less than idempotency.retentionMs (${retentionMs})`,
    ];
}

/** A lookup must not release a key while its first request may still be sent or answered. */
function* releaseMistakes(
  releaseAfterMs: number | undefined,
  leaseMs: number,
  responseTimeoutMs: number,
): Generator<string> {
  if (releaseAfterMs === undefined) return;
  if (releaseAfterMs < leaseMs) yield `must not be less than lock.leaseMs (${leaseMs})`;
  if (releaseAfterMs < responseTimeoutMs)
    yield `must not be less than upstream.responseTimeoutMs (${responseTimeoutMs})`;
}
