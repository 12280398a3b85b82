import type { Clock } from '../lib/clock.ts';
import type { UpstreamKeyOptions } from './auth-options.ts';
import type { KeyAnswer, KeyEntry } from './key-source.ts';

export interface KeyCacheOptions extends Pick<UpstreamKeyOptions, 'acceptedMs' | 'staleMs' | 'maxKeys'> {
  /** How long after a failed probe the backend counts as unable to check the key. Milliseconds. */
  failureMs: number;
}

/** A secret key that the backend has accepted. It is kept when it is refused later, because of its merchant code. */
export interface KnownKey {
  readonly entry: KeyEntry;
  /** When the probe was sent that was accepted last. -Infinity: the backend has refused the key since, or changed its merchant. */
  acceptedAtMs: number;
  /** From then on, a use of the key begins a probe in the background. */
  renewAtMs: number;
  /** When a probe failed last, if none has been answered since; otherwise -Infinity. */
  failedAtMs: number;
}

/**
 * What the backend has said of secret keys, by their digests. Accepted and rejected keys are kept apart, so that invented keys
 * push no accepted one out. All times are monotonic.
 */
export class KeyCache {
  readonly #options: KeyCacheOptions;
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  /** Accepted keys, in the order of their last use. */
  readonly #known = new Map<string, KnownKey>();
  /** Rejected keys, in the order of the answers. */
  readonly #rejected = new Map<string, { answer: KeyAnswer; untilMs: number }>();
  #expiredAtMs = Number.NEGATIVE_INFINITY;

  constructor(options: KeyCacheOptions, clock: Pick<Clock, 'monotonicMs'>) {
    this.#options = options;
    this.#clock = clock;
  }

  /** How many keys were accepted, refused ones among them. */
  get size(): number {
    return this.#known.size;
  }

  known(digest: string): KnownKey | undefined {
    return this.#known.get(digest);
  }

  /** Finds a known key, and makes it the last one to be forgotten. */
  use(digest: string): KnownKey | undefined {
    const known = this.#known.get(digest);
    if (!known) return undefined;
    this.#known.delete(digest);
    this.#known.set(digest, known);
    return known;
  }

  /** Whether the key may be used without waiting for the backend. */
  mayUse(known: KnownKey): boolean {
    const nowMs = this.#clock.monotonicMs();
    const { acceptedMs, failureMs, staleMs } = this.#options;
    if (this.isCurrent(known.acceptedAtMs) && nowMs < known.acceptedAtMs + acceptedMs) return true;
    return nowMs < known.failedAtMs + failureMs && nowMs < known.acceptedAtMs + staleMs;
  }

  /** Whether a session that was opened with the key may stay open. A renewal that has not been answered yet does not end it. */
  mayContinue({ acceptedAtMs }: KnownKey): boolean {
    const { acceptedMs, staleMs } = this.#options;
    return this.#clock.monotonicMs() < acceptedAtMs + Math.max(acceptedMs, staleMs);
  }

  /** Why the key is not accepted, if that was found out lately. */
  rejected(digest: string): KeyAnswer | undefined {
    const rejected = this.#rejected.get(digest);
    return rejected && this.#clock.monotonicMs() < rejected.untilMs ? rejected.answer : undefined;
  }

  /** @param entry used only if the key was not known */
  accept(entry: KeyEntry, sentAtMs: number): KeyEntry {
    this.#rejected.delete(entry.digest);
    const known = this.#known.get(entry.digest) ?? this.#add(entry);
    known.acceptedAtMs = sentAtMs;
    known.renewAtMs = sentAtMs + this.#options.acceptedMs / 2;
    known.failedAtMs = Number.NEGATIVE_INFINITY;
    return known.entry;
  }

  /** Takes a known key out of force, and keeps its merchant code. Returns false if it was out of force already. */
  demote(known: KnownKey, retryMs: number): boolean {
    const wasInForce = known.acceptedAtMs > Number.NEGATIVE_INFINITY;
    known.acceptedAtMs = Number.NEGATIVE_INFINITY;
    known.failedAtMs = Number.NEGATIVE_INFINITY;
    known.renewAtMs = this.#clock.monotonicMs() + retryMs;
    return wasInForce;
  }

  /** A probe of a known key failed. */
  postpone(known: KnownKey, retryMs: number): void {
    known.failedAtMs = this.#clock.monotonicMs();
    known.renewAtMs = known.failedAtMs + retryMs;
  }

  reject(digest: string, answer: KeyAnswer, forMs: number): void {
    const nowMs = this.#clock.monotonicMs();
    this.#rejected.delete(digest);
    for (const [oldest, { untilMs }] of this.#rejected) {
      if (nowMs < untilMs && this.#rejected.size < this.#options.maxKeys) break;
      this.#rejected.delete(oldest);
    }
    this.#rejected.set(digest, { answer, untilMs: nowMs + forMs });
  }

  /** Makes every key due for a check, and forgets the rejected ones and what failed. */
  expireAll(): void {
    const never = Number.NEGATIVE_INFINITY;
    this.#expiredAtMs = this.#clock.monotonicMs();
    this.#rejected.clear();
    for (const known of this.#known.values()) Object.assign(known, { renewAtMs: never, failedAtMs: never });
  }

  /**
   * Whether the answer to a probe that was sent then counts. The backend may have answered an earlier one before the operator revoked
   * the key and expired all answers.
   */
  isCurrent(sentAtMs: number): boolean {
    return sentAtMs > this.#expiredAtMs;
  }

  /** Forgets the key that was used least recently, if there are too many. */
  #add(entry: KeyEntry): KnownKey {
    const [oldest] = this.#known.keys();
    if (oldest !== undefined && this.#known.size >= this.#options.maxKeys) this.#known.delete(oldest);
    const never = Number.NEGATIVE_INFINITY;
    const known = { entry, acceptedAtMs: never, renewAtMs: never, failedAtMs: never };
    this.#known.set(entry.digest, known);
    return known;
  }
}
