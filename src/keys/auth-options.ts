import * as z from 'zod';
import { wholeNumber } from '../requests/common-options.ts';

/** `source: file`: a YAML file, which is read again when it changes. */
const fileKeys = z.strictObject({
  source: z.literal('file'),
  /** Path of the key file, absolute or relative to the working directory. Default ./keys.yaml. */
  path: z.string().min(1).default('./keys.yaml'),
});

/** `source: upstream`: no list of keys. A key that is not known is tried once at the backend, with a GET (a probe). */
const upstreamKeys = z.strictObject({
  source: z.literal('upstream'),
  /** Path and query of the probe. */
  path: z
    .string()
    .regex(
      /^\/(?!\/)[\x21\x22\x24-\x7e]{0,500}$/,
      'must be a path such as /v2/get_balance, without a fragment',
    )
    .default('/v2/get_balance'),
  /** Where the answer has the merchant code: names of members, joined by dots. */
  merchantCodeAt: z
    .string()
    .regex(/^[\w-]{1,64}(?:\.[\w-]{1,64}){0,7}$/, 'must be names of members, such as data.merchant_code')
    .default('data.merchant_code'),
  /** Statuses by which the backend says that a secret key is not valid. Only such an answer takes a key out of force. */
  refused: z.array(wholeNumber(400, 499)).min(1).max(10).default([401, 403]),
  /** How long an accepted key is used without asking again. A key that is used is renewed after half of it, in the background. */
  acceptedMs: wholeNumber(1000, 3_600_000).default(60_000),
  /** How long a refused key is refused without asking again. */
  refusedMs: wholeNumber(100, 600_000).default(5000),
  /** How long after it was accepted a key may be used while the backend cannot check it. */
  staleMs: wholeNumber(0, 604_800_000).default(3_600_000),
  /** Time for the complete answer to a probe, and before that for its turn in the queue. */
  timeoutMs: wholeNumber(100, 60_000).default(2000),
  /** Probes of one process at once. Keys that were never accepted take at most half of them. */
  maxProbes: wholeNumber(2, 1000).default(16),
  /** Probes per second, in one process, of keys that were never accepted. */
  maxPerSecond: wholeNumber(1, 100_000).default(200),
  /** Requests with such keys that wait for a probe at once, in one process; one more is answered 503 overloaded. */
  maxWaiting: wholeNumber(1, 100_000).default(1000),
  /** Accepted keys that one process knows at once, and as many refused ones. */
  maxKeys: wholeNumber(1, 1_000_000).default(10_000),
});

export type UpstreamKeyOptions = z.infer<typeof upstreamKeys>;

/** Where secret keys are looked up. */
const keySource = z.discriminatedUnion('source', [fileKeys, upstreamKeys], {
  error: 'source must be one of: file, upstream',
});

/** Section `auth`: the secret keys, and the Authorization header that the backend gets. */
export const authOptions = z
  .strictObject({
    /**
     * The HMAC key for secret keys, at least 16 characters. Take it from the environment (`${ONCEGATE_PEPPER}`).
     * Every hash of a secret key depends on it: with another pepper, all hashed keys are unknown. No default.
     */
    pepper: z.string().min(16, 'must have at least 16 characters').optional(),
    /** The realm in `WWW-Authenticate`: 1 to 128 printable ASCII characters without quotes and backslashes. Default oncegate. */
    realm: z
      .string()
      .regex(
        /^[\x20\x21\x23-\x5b\x5d-\x7e]{1,128}$/,
        'must be printable ASCII without quotes and backslashes',
      )
      .default('oncegate'),
    /** Default: the file ./keys.yaml. */
    keys: keySource.default({ source: 'file', path: './keys.yaml' }),
    /** Whether the backend gets the merchant's Authorization header, none, or another one (`replaceWith`). Default keep. */
    forward: z.enum(['keep', 'strip', 'replace']).default('keep'),
    /** Required with `forward: replace` and only then allowed: the whole value, such as `Bearer ${BACKEND_KEY}`. */
    replaceWith: z
      .string()
      .regex(/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/, 'must be printable ASCII')
      .optional(),
  })
  .superRefine((auth, context) => {
    const replaces = auth.forward === 'replace';
    if (replaces === (auth.replaceWith !== undefined)) return;
    const message = replaces ? 'is required with forward: replace' : 'is allowed with forward: replace only';
    context.addIssue({ code: 'custom', path: ['replaceWith'], message });
  });

export type AuthOptions = z.infer<typeof authOptions>;
