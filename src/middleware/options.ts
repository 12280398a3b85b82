import * as z from 'zod';
import { upstreamOptions } from '../backend/options.ts';
import { explain } from '../config/explain.ts';
import { limitOptions } from '../config/schema.ts';
import {
  idempotencyOptions,
  layerName,
  operationIdempotencyObject,
  refineStatuses,
  withUnknown,
} from '../idempotency/options.ts';
import { authOptions } from '../keys/options.ts';
import { DEFAULT_LAYERS } from '../ledger/record-id.ts';

const ms = (min: number, max: number) => z.number().int().min(min).max(max);
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
    ...{ key, inDoubt, waitMs, release, unknown },
    ...{ headers, maxStoredBytes, completeRetryMs, maxWaiters },
    timeoutMs: responseTimeoutMs,
    abandonAfterMs: ms(1, 86_400_000).default(3_600_000),
    limits: z
      .strictObject({
        ...{ bodyBytes, bodyTimeoutMs, inFlight },
        executing: z.number().int().min(1).max(100_000).default(1000),
        queued: maxQueued,
        queueTimeoutMs,
      })
      .prefault({}),
  })
  .superRefine(refineStatuses)
  .transform(withUnknown);

export const lookupOptions = z.strictObject({
  releaseAfterMs: ms(1, 2_592_000_000).default(60_000),
  firstAfterMs: ms(1, 3_600_000).default(1000),
  maxPauseMs: ms(1, 86_400_000).default(60_000),
});

const { connectTimeoutMs, maxConnections, maxStreams, keepAliveMs, endOfConnection } = upstreamOptions.shape;

/** The options of `forward` that are plain values. */
export const forwardOptions = z.strictObject({
  upstream: upstreamOptions.shape.url,
  ...{
    connectTimeoutMs,
    maxConnections,
    maxQueued,
    queueTimeoutMs,
    bodyBytes,
    bodyTimeoutMs,
    maxStoredBytes,
  },
  ...{ maxStreams, keepAliveMs, endOfConnection },
  responseTimeoutMs: ms(1, 3_600_000).default(25_000),
  authorization: z.enum(['keep', 'strip']).default('keep'),
});

const { pepper, realm } = authOptions.shape;

/** The options of `bearerAuth` that are plain values. */
export const bearerOptions = z.strictObject({
  path: z.string().min(1).default('./keys.yaml'),
  ...{ pepper, realm },
  scope: z.string().min(1).optional(),
});

/** @throws {TypeError} that names the function and each mistake */
export function parsed<T>(schema: z.ZodType<T>, value: unknown, name: string): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const mistakes = result.error.issues.flatMap((issue) => explain(issue, value, () => undefined));
  throw new TypeError(mistakes.map((mistake) => `${name}: ${mistake}`).join('\n'));
}
