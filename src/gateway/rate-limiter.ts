import {
  BurstyRateLimiter,
  type IRateLimiterOptions,
  RateLimiterMemory,
  RateLimiterRedis,
  RateLimiterRes,
} from 'rate-limiter-flexible';
import type { MerchantRate } from '../config/per-merchant.ts';
import type { Clock } from '../lib/clock.ts';
import type { Emit } from '../telemetry/emit.ts';

/** While Redis does not answer, one request in this time tries it. The commands of all would fill the memory. */
const TRY_AGAIN_MS = 1000;

/** The part of an ioredis client that the limiter uses. Commands that take too long must fail. */
export interface SharedCounts {
  readonly status: string;
  disconnect(): void;
}

export interface RateLimiterOptions {
  clock: Pick<Clock, 'monotonicMs'>;
  /** The Redis that counts for all gateways. Default: each process counts alone. */
  redis: SharedCounts | undefined;
  /** The first part of every key name. */
  prefix: string;
  emit: Emit;
}

/** A counter, which refuses by rejecting with a RateLimiterRes. */
type Counter = Pick<RateLimiterMemory, 'consume'>;

interface Counters {
  shared: Counter | undefined;
  own: Counter;
}

/**
 * Counts the requests of each merchant in fixed windows. Redis counts for all gateways. It is no part of the promise, so no
 * request is refused or waits because Redis is away: meanwhile each process counts alone.
 */
export class RateLimiter {
  readonly #options: RateLimiterOptions;
  readonly #counters = new Map<MerchantRate, Counters>();
  #isShared = true;
  #tryAgainAtMs = Number.NEGATIVE_INFINITY;

  constructor(options: RateLimiterOptions) {
    this.#options = options;
  }

  /** Counts a request. If the merchant has sent too many, resolves to the milliseconds after which the next one may be sent. */
  async take(merchant: string, rate: MerchantRate): Promise<number | undefined> {
    const { shared, own } = this.#countersOf(rate);
    if (shared && this.#mayAskRedis()) {
      try {
        const answer = await answerOf(shared, merchant);
        this.#share();
        return answer;
      } catch (error) {
        this.#countAlone((error as Error).message);
      }
    }
    return await answerOf(own, merchant);
  }

  close(): void {
    // Requests that still count here count alone, and nobody needs to know.
    this.#isShared = false;
    this.#options.redis?.disconnect();
  }

  #mayAskRedis(): boolean {
    const { redis, clock } = this.#options;
    if (redis?.status !== 'ready') {
      this.#countAlone('not connected');
      return false;
    }
    if (this.#isShared) return true;
    const nowMs = clock.monotonicMs();
    if (nowMs < this.#tryAgainAtMs) return false;
    this.#tryAgainAtMs = nowMs + TRY_AGAIN_MS;
    return true;
  }

  #share(): void {
    if (!this.#isShared) this.#options.emit('limits_shared', {});
    this.#isShared = true;
  }

  #countAlone(reason: string): void {
    if (!this.#isShared) return;
    this.#isShared = false;
    this.#tryAgainAtMs = this.#options.clock.monotonicMs() + TRY_AGAIN_MS;
    this.#options.emit('limits_unshared', { reason });
  }

  #countersOf(rate: MerchantRate): Counters {
    const known = this.#counters.get(rate);
    if (known) return known;
    const { redis, prefix } = this.#options;
    const shared =
      redis && counterOf(rate, (options) => new RateLimiterRedis({ storeClient: redis, ...options }), prefix);
    const own = counterOf(rate, (options) => new RateLimiterMemory(options), prefix);
    const counters = { shared, own };
    this.#counters.set(rate, counters);
    return counters;
  }
}

function counterOf(
  { requests, windowMs, burst }: MerchantRate,
  create: (options: IRateLimiterOptions) => RateLimiterMemory | RateLimiterRedis,
  prefix: string,
): Counter {
  // A counter in Redis ends with the window with which it began, so another window has another counter.
  const counter = (points: number, ms: number, name: string) =>
    create({ points, duration: ms / 1000, keyPrefix: `${prefix}:${name}:${ms}` });
  const usual = counter(requests, windowMs, 'requests');
  return burst ? new BurstyRateLimiter(usual, counter(burst.requests, burst.windowMs, 'burst')) : usual;
}

/** @throws {Error} if Redis does not answer */
async function answerOf(counter: Counter, merchant: string): Promise<number | undefined> {
  try {
    await counter.consume(merchant);
    return undefined;
  } catch (refusal) {
    if (refusal instanceof RateLimiterRes) return Math.max(1, refusal.msBeforeNext);
    throw refusal;
  }
}
