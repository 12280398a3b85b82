import { z } from 'zod';
import { adminOptions } from '../admin/options.ts';
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

/** `${NAME}` is always text. */
const numeric = (value: unknown) =>
  typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;

/** Section `listen`: the merchants' port. */
const listenOptions = z.strictObject({
  host: z.string().min(1).default('0.0.0.0'),
  port: z.preprocess(numeric, z.number().int().min(0).max(65_535)).default(8080),
});

/** Section `limits`. */
const limitOptions = z.strictObject({
  /** Body of a request that the executor sends; what is passed through is not bounded. */
  bodyBytes: z.number().int().min(1).max(67_108_864).default(1_048_576),
  /** All header fields of a request together. */
  headerBytes: z.number().int().min(1024).max(262_144).default(16_384),
  /** Connections to the merchants' port of one process, WebSockets included; one more is closed at once. */
  connections: z.number().int().min(1).max(1_000_000).default(20_000),
  /** Requests that one process answers at once; one more is answered 503 overloaded. */
  inFlight: z.number().int().min(1).max(1_000_000).default(10_000),
  /** Time for a request's head to arrive. */
  headerTimeoutMs: z.number().int().min(100).max(600_000).default(15_000),
  /** Time for the body of a request that the executor sends to arrive. */
  bodyTimeoutMs: z.number().int().min(100).max(600_000).default(30_000),
  /** Time for an answer to be taken once all of it is there, and for some of a streamed one; up to twice as long may pass. */
  answerTimeoutMs: z.number().int().min(100).max(600_000).default(30_000),
});

/** Section `shutdown`: after SIGTERM. */
const shutdownOptions = z.strictObject({
  /** Time in which the gateway still takes requests, while /readyz already says no and answers close their connection. */
  delayMs: z.number().int().min(0).max(600_000).default(1000),
  /** Time for running requests to end and be completed; then they are cut off, and their keys are in doubt. */
  graceMs: z.number().int().min(0).max(600_000).default(35_000),
  /** Time after that for a store that did not answer to take the responses that merchants already have. Over as soon as it has. */
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

/** The interface's operations. `checkout` is a stand-in: the interface does not show its endpoint. */
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
    /** Processes that serve the port; `auto`: one for each core. */
    workers: z.preprocess(numeric, z.union([z.number().int().min(1).max(256), z.literal('auto')])).default(1),
    // Without a default for its address it is invalid, and says so under the address's own name.
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

/** What is valid by itself and makes no sense together. */
function* contradictions({
  store,
  lock,
  upstream,
  idempotency: retention,
  operations,
}: Parsed): Generator<[(string | number)[], string]> {
  if (store.kind === 'redis' && store.cluster && store.durability.replicas > 0) {
    yield [
      ['store', 'durability', 'replicas'],
      'cannot be waited for in a cluster: only with url or sentinels',
    ];
  }
  if (store.kind === 'sqlite' && lock.nodes.length > 0) {
    yield [['lock', 'nodes'], 'only goes with a redis store: sqlite keeps its leases itself'];
  }
  yield* lifetimeMistakes(lock.leaseMs, upstream, retention);
  const names = new Set<string>();
  for (const [i, { name, match, idempotency }] of operations.entries()) {
    for (const message of tooSoon(
      idempotency.lookup?.releaseAfterMs,
      lock.leaseMs,
      upstream.responseTimeoutMs,
    ))
      yield [['operations', i, 'idempotency', 'lookup', 'releaseAfterMs'], message];
    if (names.has(name)) yield [['operations', i, 'name'], `"${name}" is declared twice`];
    names.add(name);
    if (idempotency.key === 'required' && requiresInVain(match))
      yield [
        ['operations', i, 'idempotency', 'key'],
        'has no effect: its methods are safe, and no `where` says that they execute something',
      ];
    const before = operations.slice(0, i).find((earlier) => hides(earlier.match, match));
    if (before)
      yield [
        ['operations', i, 'match'],
        `every request that it matches is "${before.name}" already: tell them apart by where, or declare it before`,
      ];
  }
}

/** A key protects a safe method only if `where` selects an operation by the request's members. */
const requiresInVain = ({ methods, where }: MatchOptions): boolean =>
  Object.keys(where).length === 0 &&
  methods.every((method) => ['GET', 'HEAD', 'OPTIONS', 'TRACE'].includes(method));

/** Whether no request can reach the later operation, because the earlier one matches all of its requests. */
function hides(earlier: MatchOptions, later: MatchOptions): boolean {
  if (earlier.path !== later.path) return false;
  if (!later.methods.every((method) => earlier.methods.includes(method))) return false;
  return Object.entries(earlier.where).every(([name, value]) => later.where[name] === value);
}

/** A record must outlive the execution that it protects, and no execution may begin when its lease has lapsed. */
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
      `must be more than what an execution may take: ${sum} (${executionMs})`,
    ];
  }
  if (inDoubtRetentionMs < retentionMs)
    yield [
      ['idempotency', 'inDoubtRetentionMs'],
      `must not be less than idempotency.retentionMs (${retentionMs})`,
    ];
}

/** A key must not be freed while its first request may still be sent, or answered. */
function* tooSoon(
  releaseAfterMs: number | undefined,
  leaseMs: number,
  responseTimeoutMs: number,
): Generator<string> {
  if (releaseAfterMs === undefined) return;
  if (releaseAfterMs < leaseMs) yield `must not be less than lock.leaseMs (${leaseMs})`;
  if (releaseAfterMs < responseTimeoutMs)
    yield `must not be less than upstream.responseTimeoutMs (${responseTimeoutMs})`;
}
