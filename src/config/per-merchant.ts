import * as z from 'zod';
import { wholeNumber } from '../requests/common-options.ts';

const requests = wholeNumber(1, 1_000_000_000);
/** RateLimit fields have no shorter unit than seconds. */
const windowMs = wholeNumber(1000, 86_400_000).multipleOf(1000, 'must be whole seconds');

const limits = {
  /** Requests within `windowMs`, replays included. A further one is answered 429 rate_limited. Default: any number. */
  requests: requests.optional(),
  /** The time in which `requests` are counted, in whole seconds. A new window begins with the first request after one. Default 1 s. */
  windowMs: windowMs.optional(),
  /** Requests beyond `requests`, within a window of its own that is longer. Default none. */
  burst: z.strictObject({ requests, windowMs }).optional(),
  /** Requests of a merchant that one process handles at once, executions whose merchant has left included. Default: any number. */
  inFlight: wholeNumber(1, 1_000_000).optional(),
};

const merchantLimits = z.strictObject(limits);

/** What a merchant may send. */
export type MerchantLimit = ReturnType<typeof limitOf>;

/** How many requests a merchant may send, within windows of `windowMs`. */
export type MerchantRate = NonNullable<MerchantLimit['rate']>;

function limitOf({ requests, windowMs = 1000, burst, inFlight }: z.output<typeof merchantLimits>) {
  return { rate: requests === undefined ? undefined : { requests, windowMs, burst }, inFlight };
}

/** `limits.perMerchant`. */
export const perMerchantOptions = z
  .strictObject({
    ...limits,
    /**
     * How long a request waits for Redis, which counts for all gateways. Then the process counts alone until Redis answers
     * again.
     */
    timeoutMs: wholeNumber(1, 10_000).default(50),
    /** Other limits for single merchants, by merchant code. What is left out is as for all. */
    merchants: z.record(z.string().min(1), merchantLimits).default({}),
  })
  .superRefine(({ merchants, ...all }, context) => {
    const everyone = Object.entries(merchants).map(([code, own]) => ({ path: ['merchants', code], own }));
    for (const { path, own } of [{ path: [], own: all }, ...everyone]) {
      const { requests, windowMs = 1000, burst } = { ...all, ...own };
      const mistake = (name: string, message: string) =>
        context.addIssue({ code: 'custom', path: [...path, name], message });
      if (requests === undefined && own.windowMs !== undefined)
        mistake('windowMs', 'has no effect without requests');
      if (requests === undefined && own.burst) mistake('burst', 'has no effect without requests');
      if (requests !== undefined && burst && burst.windowMs <= windowMs)
        mistake('burst', `must have a longer windowMs than requests has (${windowMs})`);
    }
    if (
      [all, ...Object.values(merchants)].every(
        (own) => own.requests === undefined && own.inFlight === undefined,
      )
    )
      context.addIssue({ code: 'custom', message: 'must set requests, inFlight, or limits of merchants' });
  });

/** Returns a function that finds the limit of a merchant; without a code, that of all who have none of their own. */
export function limitsOf({ merchants, ...all }: z.output<typeof perMerchantOptions>) {
  const common = limitOf(all);
  const own = new Map(Object.entries(merchants).map(([code, more]) => [code, limitOf({ ...all, ...more })]));
  return (code = ''): MerchantLimit => own.get(code) ?? common;
}
