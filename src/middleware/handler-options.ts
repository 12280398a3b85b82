import type { IncomingMessage, ServerResponse } from 'node:http';
import * as z from 'zod';
import { upstreamOptions } from '../backend/upstream-options.ts';
import { parsed } from '../config/explain.ts';
import { limitOptions } from '../config/schema.ts';
import type { Lookup } from '../doubts/lookups.ts';
import {
  idempotencyOptions,
  layerName,
  lookupTimes,
  operationIdempotencyObject,
  refineStatuses,
  withUnknown,
} from '../idempotency/idempotency-options.ts';
import { DEFAULT_LAYERS } from '../ledger/record-id.ts';
import { systemClock, within } from '../lib/clock.ts';
import type { LookupAnswer } from '../lib/exchange.ts';
import { wholeNumber } from '../requests/common-options.ts';
import type { Logger } from '../telemetry/logger.ts';
import type { HandlerRequest, Idempotency } from './handler-request.ts';
import type { Metrics } from './shared-metrics.ts';
import type { IdempotencyStore, OpenedStore } from './stores.ts';

/**
 * What became of a transaction. `executed`: retries get this response, as `application/json` unless `contentType` says
 * otherwise. `not_executed`: retries may execute it, after `releaseAfterMs`. `undecided`: it cannot be said yet.
 */
export type LookupResult =
  | { kind: 'executed'; status: number; body?: string | Buffer; contentType?: string }
  | { kind: 'not_executed' }
  | { kind: 'undecided' };

/** How to find out what became of a transaction whose key is in doubt. Times are in milliseconds. */
export interface LookupOptions {
  /**
   * Says what became of a transaction. It is asked again, after growing pauses, while it resolves to `undecided`, rejects, or
   * takes longer than `timeoutMs`.
   *
   * @param transaction whose key it is, and the key
   */
  ask(transaction: Pick<Idempotency, 'merchant' | 'operation' | 'key'>): Promise<LookupResult>;
  /**
   * How long a key must have been in doubt before `not_executed` is believed. Default 60 s, and no less than `timeoutMs` and the
   * store's `leaseMs`.
   */
  releaseAfterMs?: number;
  /** Pause before the first lookup. Default 1 s. */
  firstAfterMs?: number;
  /** Longest pause between two lookups. Default 60 s. */
  maxPauseMs?: number;
}

/**
 * The limits of an {@link idempotency}. A request beyond `bodyBytes` gets 413, one beyond `bodyTimeoutMs` 408, and one beyond
 * another limit 503. None of them was executed.
 */
export interface IdempotencyLimits {
  /** Largest body of a request with a key. Default 1 MiB. */
  bodyBytes?: number;
  /** Time for such a body to arrive. Milliseconds; default 30 s. */
  bodyTimeoutMs?: number;
  /** Requests that pass this middleware at the same time. Default 10,000. */
  inFlight?: number;
  /** Handlers that execute a key at the same time. Default 1000. */
  executing?: number;
  /** Requests that wait for one of them to end. Default 1000. */
  queued?: number;
  /** How long they wait. Milliseconds; default 2 s. */
  queueTimeoutMs?: number;
}

/** Options of {@link idempotency}. Times are in milliseconds. */
export interface IdempotencyOptions {
  /** An open store: {@link sqliteStore}, {@link redisStore} or {@link postgresStore}. */
  store: IdempotencyStore;
  /**
   * The merchant (the tenant, the customer) whose key this is: 1 to 255 printable ASCII characters. Two merchants may use the
   * same key. Take it from what your application has authenticated. `undefined`: nobody is, and a request with a key gets 401. Default:
   * the merchant that `bearerAuth` has found.
   */
  merchant?(req: HandlerRequest): string | undefined;
  /**
   * Name of the operation, in metrics, the log and records. A word in lower case. Default `handler`. A lookup is asked about all keys
   * in doubt of its operation, so two handlers on one store need two names if one of them has a lookup.
   */
  operation?: string;
  /**
   * Name of this layer, a part of each record's id: 1 to 32 characters a-z, 0-9 and `-`. In one call chain, this application and a gateway
   * in front of it can use one store for the same key. With another name every key is new, and its retry is executed again. Default
   * `middleware`.
   */
  layer?: string;
  /**
   * The handler executes the request in a transaction of the store's database, by `req.idempotency.transaction` or by `startIn` and
   * `completeIn`. What it does outside of it is not protected. Needs {@link postgresStore}, or {@link sqliteStore} with its option
   * `database`. Default false.
   */
  transactional?: boolean;
  /** `required`: a request without a key gets 400. `none`: keys are ignored. Default `optional`. */
  key?: 'none' | 'optional' | 'required';
  /**
   * Headers that carry the key, in lower case. The first that is present decides. Default `x-service-idempotency` and
   * `idempotency-key`. Another middleware may set or remove the key in `req.headers` first.
   */
  headers?: string[];
  /** How long a duplicate waits for the result of the first request. Default 10 s. */
  waitMs?: number;
  /**
   * How long the merchant waits for the handler. Then it gets 504 `outcome_unknown`, and the handler goes on: its response is stored when
   * it ends. Default 30 s.
   */
  timeoutMs?: number;
  /**
   * Time for the handler to end its response. Then its key is in doubt, and a response that it still ends completes the key.
   * Longer than `timeoutMs`; default 1 h.
   */
  abandonAfterMs?: number;
  /** Statuses with which the handler says that nothing was done. Default 401 and 429. */
  release?: number[];
  /** Statuses with which the handler says that it cannot know. Default 408, 502, 503, 504, 520, 522 and 524, without those in `release`. */
  unknown?: number[];
  /** What a retry of a key in doubt gets; see `operations[].idempotency.inDoubt` in docs/configuration.md. Default `hold`. */
  inDoubt?: 'hold' | 'retry' | 'lookup';
  /** Needed with `inDoubt: 'lookup'`, and only goes with it. Asks the handler's own database, for example. */
  lookup?: LookupOptions;
  /** A larger response is sent and not stored: retries get 409 `response_not_stored`. Default 1 MiB. */
  maxStoredBytes?: number;
  /** How long a merchant waits for the response while the store does not acknowledge it. Default 2 s. */
  completeRetryMs?: number;
  /** The most duplicates that wait at the same time. Default 5000. */
  maxWaiters?: number;
  /** Bounds on bodies, and on requests at the same time. */
  limits?: IdempotencyLimits;
  /**
   * What is compared when a key is used again. Default: the raw body, or what a body parser has made of it. Needed behind
   * parsers of uploads.
   */
  body?(req: HandlerRequest): string | Buffer;
  /** Metrics that it shares with others, of {@link createMetrics}. Default: metrics of its own. */
  metrics?: Metrics;
  /** A pino logger. Default: one that writes warnings and errors to standard output. */
  logger?: Logger;
}

/** The middleware that {@link idempotency} returns. */
export interface IdempotencyMiddleware {
  /** Express calls it for each request. */
  (req: IncomingMessage, res: ServerResponse, next: (error?: unknown) => void): void;
  /** For {@link metricsMiddleware}. */
  readonly metrics: Metrics;
  /**
   * Refuses new requests, and waits for the handlers that run and for writes that the store has not acknowledged. Then close
   * the store.
   *
   * @param ms the longest wait; default 30 s
   */
  close(ms?: number): Promise<void>;
}

const { key, inDoubt, waitMs, release, unknown } = operationIdempotencyObject.shape;
const { headers, maxStoredBytes, completeRetryMs, maxWaiters } = idempotencyOptions.shape;
const { maxQueued, queueTimeoutMs, responseTimeoutMs } = upstreamOptions.shape;
const { bodyBytes, bodyTimeoutMs, inFlight } = limitOptions.shape;

/** The options of `idempotency` that are plain values. Most are those of the gateway's configuration, with its defaults. */
export const handlerOptions = z
  .strictObject({
    operation: z
      .string()
      .regex(/^[a-z][a-z0-9_-]{0,31}$/, 'must be a word in lower case')
      .default('handler'),
    layer: layerName.default(DEFAULT_LAYERS.middleware),
    transactional: z.boolean().default(false),
    ...{ key, inDoubt, waitMs, release, unknown },
    ...{ headers, maxStoredBytes, completeRetryMs, maxWaiters },
    timeoutMs: responseTimeoutMs,
    abandonAfterMs: wholeNumber(1, 86_400_000).default(3_600_000),
    limits: z
      .strictObject({
        ...{ bodyBytes, bodyTimeoutMs, inFlight },
        executing: wholeNumber(1, 100_000).default(1000),
        queued: maxQueued,
        queueTimeoutMs,
      })
      .prefault({}),
  })
  .superRefine(refineStatuses)
  .transform(withUnknown);

/** The options that are plain values, checked, with their defaults. @throws {TypeError} */
export function parsePolicy(options: IdempotencyOptions) {
  const { store: _store, merchant, lookup, body, metrics: _metrics, logger: _logger, ...values } = options;
  for (const [name, value] of Object.entries({ merchant, body, 'lookup.ask': lookup?.ask }))
    if (value !== undefined && typeof value !== 'function')
      throw new TypeError(`idempotency: ${name}: must be a function`);
  const policy = parsed(handlerOptions, values, 'idempotency');
  if ((policy.inDoubt === 'lookup') !== (lookup !== undefined))
    throw new TypeError("idempotency: lookup: is needed with inDoubt: 'lookup', and only goes with it");
  return policy;
}

export type Policy = ReturnType<typeof parsePolicy>;

/** A record must outlive the execution that it protects. */
export function checkLifetimes(
  { limits, timeoutMs, abandonAfterMs }: Policy,
  { lifetimes }: OpenedStore,
): void {
  if (abandonAfterMs <= timeoutMs)
    throw new TypeError(`idempotency: abandonAfterMs: must be longer than timeoutMs (${timeoutMs})`);
  const executionMs = limits.queueTimeoutMs + abandonAfterMs + lifetimes.leaseMs;
  if (lifetimes.retentionMs <= executionMs)
    throw new TypeError(
      `idempotency: abandonAfterMs: the store's retentionMs (${lifetimes.retentionMs}) must be longer than queueTimeoutMs, abandonAfterMs and leaseMs together (${executionMs})`,
    );
}

/**
 * The lookup of the operation, if it has one.
 *
 * @throws {TypeError} if it could release a key whose handler may still be called, or be answered
 */
export function handlerLookups(
  { lookup }: IdempotencyOptions,
  { operation, timeoutMs }: Policy,
  { lifetimes: { leaseMs } }: OpenedStore,
): Map<string, Lookup> {
  if (!lookup) return new Map();
  const { ask, ...values } = lookup;
  const times = parsed(z.strictObject(lookupTimes), values, 'idempotency: lookup');
  for (const [name, ms] of Object.entries({ timeoutMs, leaseMs }))
    if (times.releaseAfterMs < ms)
      throw new TypeError(`idempotency: lookup: releaseAfterMs: must not be less than ${name} (${ms})`);
  const askOnce: Lookup['ask'] = async (transaction) => {
    try {
      const result = await within(systemClock, ask(transaction), timeoutMs);
      return result ? answerOfLookup(result) : { kind: 'failed', said: `no answer within ${timeoutMs} ms` };
    } catch (error) {
      return {
        kind: 'failed',
        said: `lookup failed: ${error instanceof Error ? error.name : 'unknown error'}`,
      };
    }
  };
  return new Map([[operation, { ...times, ask: askOnce }]]);
}

/**
 * Notes that a handler uses the name of its operation on its store.
 *
 * @returns gives the name back
 * @throws {TypeError} if another one uses it, and a lookup would be asked about the keys of both. It does not know those of the other
 *   handler, and could release keys that were paid
 */
export function claimOperation(
  { lookup }: IdempotencyOptions,
  { layer, operation }: Policy,
  { claims }: OpenedStore,
): () => void {
  const claim = { layer, operation, ask: lookup?.ask };
  for (const other of claims)
    if (other.layer === layer && other.operation === operation && other.ask !== claim.ask)
      throw new TypeError(
        `idempotency: operation: "${operation}" has another lookup, or none, in another idempotency() on this store: give each of them its own operation`,
      );
  claims.add(claim);
  return () => void claims.delete(claim);
}

function answerOfLookup(result: LookupResult): LookupAnswer {
  const said = `lookup answered ${result.kind}`;
  if (result.kind === 'not_executed' || result.kind === 'undecided') return { kind: result.kind, said };
  const { status, contentType = 'application/json' } = result;
  // An answer that cannot be sent would be stored, and every retry would fail.
  const isValid =
    Number.isInteger(status) && status >= 200 && status <= 599 && /^[\x21-\x7e ]+$/.test(contentType);
  if (result.kind !== 'executed' || !isValid) return { kind: 'failed', said: 'lookup gave no valid answer' };
  const body = Buffer.from((result.body ?? '') as string);
  const headers = body.length > 0 ? ['Content-Type', contentType] : [];
  return {
    kind: 'executed',
    said,
    completion: { kind: 'response', response: { status, headers, body } },
  };
}
