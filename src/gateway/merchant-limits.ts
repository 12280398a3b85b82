import type { IncomingMessage } from 'node:http';
import { isDeepStrictEqual } from 'node:util';
import { limitsOf, type MerchantRate } from '../config/per-merchant.ts';
import { contextOf, type Middleware, onEnd } from '../lib/context.ts';
import { type Problem, problem } from '../lib/problem.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';
import type { RateLimiter } from './rate-limiter.ts';

/** `limits.perMerchant`. */
type PerMerchant = Parameters<typeof limitsOf>[0];

/** No merchant has this code: the place of all public requests together. */
const PUBLIC = '';

/** Bounds what one merchant sends, so that the others still get slots. */
export class MerchantLimits {
  #options: PerMerchant;
  #limitOf: ReturnType<typeof limitsOf>;
  #rateLimiter: RateLimiter;
  readonly #metrics: AllMetrics;
  /** Requests in flight of each merchant that has some. */
  readonly #inFlight = new Map<string, number>();

  constructor(options: PerMerchant, rateLimiter: RateLimiter, metrics: AllMetrics) {
    this.#options = options;
    this.#limitOf = limitsOf(options);
    this.#rateLimiter = rateLimiter;
    this.#metrics = metrics;
  }

  /** Puts other limits in force, for requests that begin from now on. */
  change(options: PerMerchant, rateLimiter: RateLimiter): void {
    this.#rateLimiter = rateLimiter;
    // Other objects, even with equal values, would begin new windows.
    if (isDeepStrictEqual(options, this.#options)) return;
    this.#options = options;
    this.#limitOf = limitsOf(options);
  }

  /** Refuses a request of a merchant who sends too many. Must follow `authenticate`, and comes before any body is read. */
  readonly check: Middleware = (req, res, next) => {
    const { merchant } = contextOf(req);
    if (!merchant) throw new Error('authenticate must come before the limits');
    const { code } = merchant;
    const { rate, inFlight } = this.#limitOf(code);
    const refusal = this.#enter(req, code, inFlight);
    if (refusal || !rate) return next(refusal);
    return this.#rateLimiter.take(code, rate).then((waitMs) => {
      // The merchant has disconnected meanwhile.
      if (res.closed) return;
      next(waitMs === undefined ? undefined : this.#tooMany(rate, waitMs));
    });
  };

  /** Public requests have no merchant. All of them together get the in-flight limit of one merchant. */
  refusalOfPublic(req: IncomingMessage): Problem | undefined {
    return this.#enter(req, PUBLIC, this.#limitOf().inFlight);
  }

  /** Counts a request until its response is closed and its execution has ended. */
  #enter(req: IncomingMessage, code: string, most: number | undefined): Problem | undefined {
    if (most === undefined) return undefined;
    const others = this.#inFlight.get(code) ?? 0;
    if (others >= most) {
      this.#metrics.rateLimited.inc({ reason: 'in_flight' });
      const headers = {
        'RateLimit-Policy': `"in-flight";q=${most};qu="concurrent-requests"`,
        RateLimit: '"in-flight";r=0',
      };
      const detail = `${most} of your requests are in flight. This one was not sent; retry with the same key.`;
      return problem('rate_limited', detail, { headers });
    }
    this.#inFlight.set(code, others + 1);
    onEnd(contextOf(req), () => this.#leave(code));
    return undefined;
  }

  #leave(code: string): void {
    const others = (this.#inFlight.get(code) ?? 1) - 1;
    if (others > 0) this.#inFlight.set(code, others);
    else this.#inFlight.delete(code);
  }

  #tooMany({ requests, windowMs, burst }: MerchantRate, waitMs: number): Problem {
    this.#metrics.rateLimited.inc({ reason: 'requests' });
    const retryAfterS = Math.ceil(waitMs / 1000);
    const policies = [`"requests";q=${requests};w=${windowMs / 1000}`];
    if (burst) policies.push(`"burst";q=${burst.requests};w=${burst.windowMs / 1000}`);
    const headers = { 'RateLimit-Policy': policies.join(', '), RateLimit: `"requests";r=0;t=${retryAfterS}` };
    const detail = 'You have sent too many requests. This one was not sent; retry with the same key.';
    return problem('rate_limited', detail, { retryAfterS, headers });
  }
}
