import type { Clock } from '../lib/clock.ts';

/** The breaker opens after this many failures in a row. Fewer may come from a single node of a cluster. */
const FAILURES_TO_OPEN = 8;
/** A failure counts as the next one in a row if it comes within this time. */
const FAILURE_WINDOW_MS = 2000;
const TRY_EVERY_MS = 100;

/**
 * A circuit breaker for starts. It opens after several starts in a row have failed. While it is open, one request at a time may try a
 * start, and the others are answered from reads. So a store that does not answer cannot occupy all slots, and requests without a key
 * still get one.
 */
export class CircuitBreaker {
  readonly #clock: Clock;
  #failures = 0;
  #failedAtMs = Number.NEGATIVE_INFINITY;
  #nextTryMs = 0;
  #trying = false;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get isOpen(): boolean {
    if (this.#failures < FAILURES_TO_OPEN) return false;
    return this.#trying || this.#clock.monotonicMs() - this.#failedAtMs < FAILURE_WINDOW_MS;
  }

  /** Whether this request may try a start. If so, the caller must call `succeeded`, `failed` or `notTried` afterwards. */
  admits(): boolean {
    if (!this.isOpen) return true;
    if (this.#trying || this.#clock.monotonicMs() < this.#nextTryMs) return false;
    this.#trying = true;
    return true;
  }

  /** No start was sent, or its answer says nothing about writes. */
  notTried(): void {
    if (!this.#trying) return;
    this.#trying = false;
    this.#nextTryMs = this.#clock.monotonicMs() + TRY_EVERY_MS;
  }

  failed(): void {
    const nowMs = this.#clock.monotonicMs();
    this.#failures = nowMs - this.#failedAtMs < FAILURE_WINDOW_MS || this.#trying ? this.#failures + 1 : 1;
    this.#failedAtMs = nowMs;
    this.#nextTryMs = nowMs + TRY_EVERY_MS;
    this.#trying = false;
  }

  succeeded(): void {
    this.#failures = 0;
    this.#trying = false;
  }
}
