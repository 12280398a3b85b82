import * as z from 'zod';
import { NAME_PATTERN } from '../lib/context.ts';
import { headerName, headerValue, isHttpAddress, wholeNumber } from '../requests/common-options.ts';

/** Section `metrics`. */
export const metricsOptions = z.strictObject({
  /**
   * Codes of merchants that have metrics of their own: requests by outcome, latency, doubts. All others count together as `other`.
   * Each merchant adds about 60 series. Default none.
   */
  merchants: z
    .array(
      z
        .string()
        .regex(NAME_PATTERN, 'must be 1 to 64 printable ASCII characters')
        .refine((code) => code !== 'other', 'must not be other, which is the name of all other merchants'),
    )
    .max(100)
    .refine((codes) => new Set(codes).size === codes.length, 'must not name a merchant twice')
    .default([]),
});

/** Section `log`. */
export const logOptions = z.strictObject({
  /** `info` includes one line for each request. */
  level: z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'silent']).default('info'),
});

/** Section `tracing`: traces of requests (W3C Trace Context), and where their spans are sent. */
export const tracingOptions = z
  .strictObject({
    /**
     * Where spans are sent: the address of a collector for OTLP over HTTP with JSON. Without a path, /v1/traces is added. Absent:
     * there are no spans, and a request's traceparent and tracestate go to the backend unchanged.
     */
    endpoint: z
      .string()
      .refine(
        isHttpAddress,
        'must be an http or https address such as http://collector:4318, without query or credentials',
      )
      .optional(),
    /** Header fields for the collector, such as its credentials. Treated as secret. */
    headers: z.record(headerName, headerValue).default({}),
    /** The name of this service in traces. */
    serviceName: z.string().min(1).max(255).default('oncegate'),
    /** The share of requests that are recorded, from 0 to 1. It counts for requests whose sampled flag is not believed. */
    ratio: z.number().min(0).max(1).default(0.01),
    /**
     * Whose sampled flag decides, in place of `ratio`, whether a request is recorded. `proxies`: that of requests which
     * `listen.trustedProxies` pass on. `always`: that of merchants too, who can then have every request recorded.
     */
    believeSampled: z.enum(['never', 'proxies', 'always']).default('never'),
    /** Without `endpoint`: begin a trace for each request that comes without a valid traceparent. With `endpoint`, that is always done. */
    begin: z.boolean().default(false),
    /** Spans that wait to be sent, in one process. Further ones are dropped and counted. */
    maxQueued: wholeNumber(1, 1_000_000).default(4096),
    /** The longest time from the end of a span to its sending. */
    sendEveryMs: wholeNumber(10, 60_000).default(5000),
    /** How long one sending may take, repetitions included. At shutdown, the last spans have this time too, but at most 2 seconds. */
    timeoutMs: wholeNumber(10, 60_000).default(10_000),
  })
  .refine(({ endpoint, headers }) => endpoint !== undefined || Object.keys(headers).length === 0, {
    path: ['headers'],
    message: 'is only possible with an endpoint',
  });

export type TracingOptions = z.infer<typeof tracingOptions>;
