import * as z from 'zod';
import { isOfGateway } from '../backend/headers.ts';
import { DEFAULT_LAYERS, LAYER, LAYER_RULE } from '../ledger/record-id.ts';
import { headerName, headerValue, wholeNumber } from '../requests/common-options.ts';

export const layerName = z.string().regex(LAYER, LAYER_RULE);

/** A backend cannot recognise a key that it gets otherwise than it was sent, and a secret key must not be stored as one. */
const keyHeader = headerName.refine(
  (name) => !isOfGateway(name),
  'cannot carry a key, because the backend may not get this header as it was sent',
);

/** Section `idempotency`. */
export const idempotencyOptions = z.strictObject({
  /**
   * protect: a key is executed at most once. observe: NOTHING IS PROTECTED. Every request is sent to the backend, duplicates
   * included; the gateway only records keys, and counts what it would have stopped (`oncegate_observed_total`).
   */
  mode: z.enum(['protect', 'observe']).default('protect'),
  /**
   * Name of this layer, a part of each record's id: in one call chain, a gateway and an application that embeds oncegate can use one store
   * for the same key. The same in all gateways of a store. DANGEROUS to change: every key is new then, and its retry is executed again.
   */
  layer: layerName.default(DEFAULT_LAYERS.gateway),
  /** Headers that carry the key. The first that is present decides. In idempotency-key a quoted string is read as a structured field. */
  headers: z.array(keyHeader).min(1).default(['x-service-idempotency', 'idempotency-key']),
  /**
   * What happens to requests on paths that no operation declares. protect: a request with a key is executed once, as
   * operation `undeclared`. pass: requests are streamed, and a key is ignored. refuse: 404.
   */
  undeclared: z.enum(['protect', 'pass', 'refuse']).default('protect'),
  /** How long a completed key is kept, counted from its start. At most 30 days. */
  retentionMs: wholeNumber(1000, 2_592_000_000).default(86_400_000),
  /**
   * How long a key in doubt is kept, counted from its start. A key that was in doubt is kept for this long again after its
   * completion. Until then, only an operator, a lookup or `inDoubt: retry` can cause a second execution. Default 30 days; not
   * less than retentionMs.
   */
  inDoubtRetentionMs: wholeNumber(1000, 31_536_000_000).default(2_592_000_000),
  /**
   * Age of the oldest key in doubt beyond which the alert `OncegateInDoubtOld` pages the person on call. The gateway only
   * shows it to Prometheus. Default one hour.
   */
  inDoubtPageAfterMs: wholeNumber(1000, 2_592_000_000).default(3_600_000),
  /** A larger response is streamed to the merchant, and only its status is stored. */
  maxStoredBytes: wholeNumber(1024, 67_108_864).default(1_048_576),
  /** How long a merchant waits for the store to take the response. Then the response is sent unstored. */
  completeRetryMs: wholeNumber(0, 60_000).default(2000),
  /** How often each gateway asks the store how many keys are in doubt, for the metrics. */
  countDoubtsEveryMs: wholeNumber(100, 600_000).default(15_000),
  /** The most duplicates that may wait at the same time in one process. Further ones are answered 409 at once. */
  maxWaiters: wholeNumber(0, 1_000_000).default(5000),
});

const PLACEHOLDERS = ['{merchant}', '{key}', '{operation}'];
/** Fields that the gateway itself sets, or that would change what the request is. */
const NOT_FOR_LOOKUPS =
  /^(?:host|connection|content-length|transfer-encoding|te|trailer|upgrade|expect|accept-encoding|x-merchant-code)$/;
const statuses = z.array(wholeNumber(200, 599));
/**
 * With these a proxy or a CDN in front of the backend says that it got no answer, not that it sent nothing. 408 too: the gateway sends
 * whole requests only, so what took too long is the backend (Envoy before 1.22).
 */
const UNKNOWN = [408, 502, 503, 504, 520, 522, 524];

/** Refuses a status that the operator lists as both. */
export function refineStatuses(
  { release, unknown = [] }: { release: readonly number[]; unknown?: readonly number[] | undefined },
  context: z.RefinementCtx,
): void {
  const both = release.find((status) => unknown.includes(status));
  if (both !== undefined)
    context.addIssue({ code: 'custom', path: ['unknown'], message: `${both} is in release too` });
}

/** A status that the operator puts into `release` leaves the default of `unknown`. */
export const withUnknown = <T extends { release: number[]; unknown?: number[] | undefined }>(policy: T) => ({
  ...policy,
  unknown: policy.unknown ?? UNKNOWN.filter((status) => !policy.release.includes(status)),
});

/** When a key in doubt is looked up, and when it may be released. An embedded `idempotency` has these options too. */
export const lookupTimes = {
  /**
   * How long a key must have been in doubt before the gateway believes "no such transaction" and frees the key. Until then
   * the request may still be on its way: in a queue of the backend, in a network that is partitioned, in a gateway that
   * was paused. If it arrives after this time, the backend executes twice, so choose the longest delay that you can
   * imagine. The process that sends the lookups counts from when it first saw the key in doubt. Not less than
   * `lock.leaseMs` and `upstream.responseTimeoutMs`.
   */
  releaseAfterMs: wholeNumber(1, 2_592_000_000).default(60_000),
  /** The pause before the first lookup, counted from when the key is in doubt. */
  firstAfterMs: wholeNumber(1, 3_600_000).default(1000),
  /** The pause between two lookups doubles up to this. Lookups end when the record expires. */
  maxPauseMs: wholeNumber(1, 86_400_000).default(60_000),
};

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
        headerName.refine(
          (name) => !NOT_FOR_LOOKUPS.test(name),
          'must not be a field that the gateway sets itself',
        ),
        headerValue,
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
    completedStatus: wholeNumber(200, 599).default(200),
    ...lookupTimes,
    /** Time limit for the complete answer to one lookup. */
    timeoutMs: wholeNumber(1, 600_000).default(5000),
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

export const operationIdempotencyObject = z.strictObject({
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
  waitMs: wholeNumber(0, 600_000).default(10_000),
  /** Statuses with which the backend says that it executed nothing: the response is sent, and the key is free again. */
  release: z.array(wholeNumber(400, 599)).default([401, 429]),
  /**
   * Statuses with which a proxy in front of the backend says that it got no answer. The merchant gets the response, and the
   * key is in doubt, because the backend may have executed. Default 408, 502, 503, 504, 520, 522 and 524, without those in `release`.
   */
  unknown: z.array(wholeNumber(400, 599)).optional(),
});

/** `operations[].idempotency`. */
export const operationIdempotencyOptions = operationIdempotencyObject
  .superRefine((policy, context) => {
    const { inDoubt, lookup } = policy;
    refineStatuses(policy, context);
    if (inDoubt === 'lookup' && !lookup)
      context.addIssue({ code: 'custom', path: ['lookup'], message: 'is needed with inDoubt: lookup' });
    if (inDoubt !== 'lookup' && lookup)
      context.addIssue({ code: 'custom', path: ['lookup'], message: 'only goes with inDoubt: lookup' });
  })
  .transform(withUnknown);
