import { z } from 'zod';
import { adminOptions, digitsToNumber } from '../admin/options.ts';
import { authOptions } from '../auth/options.ts';
import {
  idempotencyOptions,
  lockOptions,
  operationIdempotencyOptions,
  storeOptions,
} from '../idempotency/options.ts';
import { logOptions } from '../observability/options.ts';
import { type MatchOptions, matchOptions } from '../operations/options.ts';
import { headerOptions, upstreamOptions } from '../upstream/options.ts';

/** Section `listen`: the port for merchants. */
const listenOptions = z.strictObject({
  host: z.string().min(1).default('0.0.0.0'),
  port: z.preprocess(digitsToNumber, z.number().int().min(0).max(65_535)).default(8080),
});

/** Section `limits`. */
const limitOptions = z.strictObject({
  /** Largest request body that the executor sends. Bodies that are passed through have no limit. */
  bodyBytes: z.number().int().min(1).max(67_108_864).default(1_048_576),
  /** Bytes of all header fields of a request together. */
  headerBytes: z.number().int().min(1024).max(262_144).default(16_384),
  /** Connections of merchants to one process, WebSockets included. Further ones are closed at once. */
  connections: z.number().int().min(1).max(1_000_000).default(20_000),
  /** Requests that one process handles at the same time. Further ones are answered 503 overloaded. */
  inFlight: z.number().int().min(1).max(1_000_000).default(10_000),
  /** Time within which the head of a request must arrive. */
  headerTimeoutMs: z.number().int().min(100).max(600_000).default(15_000),
  /** Time within which the body of a request that the executor sends must arrive. */
  bodyTimeoutMs: z.number().int().min(100).max(600_000).default(30_000),
  /**
   * Time within which a merchant must read a complete answer, or the next part of a streamed one. Otherwise the connection
   * is closed, after this time at the earliest and after twice this time at the latest.
   */
  answerTimeoutMs: z.number().int().min(100).max(600_000).default(30_000),
});

/** Section `shutdown`: the steps after SIGTERM, in this order. */
const shutdownOptions = z.strictObject({
  /** The gateway still accepts requests for this time, but /readyz answers 503 and answers close their connection. */
  delayMs: z.number().int().min(0).max(600_000).default(1000),
  /** Running requests have this time to be completed. Then they are aborted, and the keys whose requests were sent are in doubt. */
  graceMs: z.number().int().min(0).max(600_000).default(35_000),
  /** Then the store has this time to acknowledge responses that merchants already have. If none is left, the gateway exits. */
  completeMs: z.number().int().min(1000).max(86_400_000).default(300_000),
});

const RESERVED = ['other', 'undeclared', 'passthrough', 'none', '*'];

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
    /** Processes that serve the port. `auto`: one for each core. */
    workers: z
      .preprocess(digitsToNumber, z.union([z.number().int().min(1).max(256), z.literal('auto')]))
      .default(1),
    // The empty section is invalid, so that the mistake is reported as upstream.url.
    upstream: upstreamOptions.prefault({} as z.input<typeof upstreamOptions>),
    store: storeOptions.prefault({ kind: 'sqlite' }),
    lock: lockOptions.prefault({}),
    auth: authOptions.prefault({}),
    idempotency: idempotencyOptions.prefault({}),
    headers: headerOptions.prefault({}),
    limits: limitOptions.prefault({}),
    shutdown: shutdownOptions.prefault({}),
    log: logOptions.prefault({}),
    operations: z.array(operationOptions).max(200).prefault(interfaceOperations),
  })
  .superRefine((config, context) => {
    for (const [path, message] of contradictions(config)) context.addIssue({ code: 'custom', path, message });
  });

export type Config = z.output<typeof configSchema>;

type Parsed = Pick<Config, 'store' | 'lock' | 'upstream' | 'idempotency' | 'operations'>;

/** Finds options that are valid alone but contradict each other. */
function* contradictions({
  store,
  lock,
  upstream,
  idempotency: retention,
  operations,
}: Parsed): Generator<[(string | number)[], string]> {
  if (store.kind === 'redis' && store.cluster && store.durability.replicas > 0) {
    yield [['store', 'durability', 'replicas'], 'is not possible with cluster, only with url or sentinels'];
  }
  if (store.kind === 'sqlite' && lock.nodes.length > 0) {
    yield [['lock', 'nodes'], 'is only possible with a redis store: sqlite stores its leases itself'];
  }
  yield* lifetimeMistakes(lock.leaseMs, upstream, retention);
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

/** A key protects a safe method only if the operation has `where`, because then a query could execute something. */
const hasNoProtectedMethod = ({ methods, where }: MatchOptions): boolean =>
  Object.keys(where).length === 0 &&
  methods.every((method) => ['GET', 'HEAD', 'OPTIONS', 'TRACE'].includes(method));

/** Whether the earlier operation matches every request that the later one matches. Then the later one never applies. */
function hides(earlier: MatchOptions, later: MatchOptions): boolean {
  if (earlier.path !== later.path) return false;
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
