import { hash } from 'node:crypto';
import type { Clock } from '../lib/clock.ts';

/** Wrong tokens count for this long, and so does the right token of an address. */
const WINDOW_MS = 5 * 60_000;
/** Wrong tokens from one address. Behind a proxy or a tunnel, everyone has the same address. */
export const MAX_OF_ADDRESS = 10;
/** Wrong tokens from all addresses, those of trusted addresses not counted. */
export const MAX_IN_ALL = 50;
/** The most addresses that are trusted. This and the two limits above bound the memory. */
const MAX_TRUSTED = 100;

/**
 * Counts the wrong tokens of the admin port, those of logins and those of programs. While there are too many, a right token is
 * refused too: otherwise an attacker could go on guessing. A right token does not reset the count: otherwise the holder of one token
 * could guess others.
 *
 * A wrong token that an address repeats is one try, because repeating it guesses nothing: a Prometheus with an old token does so. An address that had a right
 * token within the last five minutes is refused only for its own wrong tokens, so that nobody else can keep the metrics from it.
 */
export class Tries {
  readonly #clock: Clock;
  /** Oldest first. */
  #wrong: { address: string; digest: string; atMs: number }[] = [];
  /** When each address had a right token last. */
  readonly #trusted = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Milliseconds until the address may try again. 0: it may try now. */
  waitMs(address: string): number {
    const nowMs = this.#clock.monotonicMs();
    this.#dropOld(nowMs);
    const own = this.#wrong.filter((wrong) => wrong.address === address);
    const others = this.#wrong.filter((wrong) => !this.#trusted.has(wrong.address));
    const inAllMs = this.#trusted.has(address) ? 0 : waitFor(others, MAX_IN_ALL, nowMs);
    return Math.max(waitFor(own, MAX_OF_ADDRESS, nowMs), inAllMs);
  }

  right(address: string): void {
    if (this.#trusted.has(address) || this.#trusted.size < MAX_TRUSTED)
      this.#trusted.set(address, this.#clock.monotonicMs());
  }

  /**
   * Call it only after `waitMs` was 0.
   *
   * @returns whether the address has not tried this token within the last five minutes
   */
  wrong(address: string, token: string): boolean {
    const digest = hash('sha256', token);
    if (this.#wrong.some((wrong) => wrong.address === address && wrong.digest === digest)) return false;
    this.#wrong.push({ address, digest, atMs: this.#clock.monotonicMs() });
    return true;
  }

  #dropOld(nowMs: number): void {
    this.#wrong = this.#wrong.filter(({ atMs }) => nowMs - atMs < WINDOW_MS);
    for (const [address, atMs] of this.#trusted) if (nowMs - atMs >= WINDOW_MS) this.#trusted.delete(address);
  }
}

/** Milliseconds until fewer than `most` of these tries count. */
function waitFor(wrong: readonly { atMs: number }[], most: number, nowMs: number): number {
  const first = wrong.at(-most);
  return first === undefined ? 0 : first.atMs + WINDOW_MS - nowMs;
}
