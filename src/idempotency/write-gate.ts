import type { Clock } from '../kernel/clock.ts';

/** Fewer failures in a row may be one node of a cluster. Failures that are further apart than this do not count. */
const FAILURES = 8;
const TOGETHER_MS = 2000;
const TRY_EVERY_MS = 100;

/**
 * Shuts after several starts in a row have failed. While it is shut, one request at a time may try a start; the others are
 * answered from reads, so that a store that is away does not keep the slots from requests that need no store.
 */
export class WriteGate {
  readonly #clock: Clock;
  #failures = 0;
  #failedAtMs = Number.NEGATIVE_INFINITY;
  #nextTryMs = 0;
  #trying = false;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get isShut(): boolean {
    if (this.#failures < FAILURES) return false;
    return this.#trying || this.#clock.monotonicMs() - this.#failedAtMs < TOGETHER_MS;
  }

  /** May this request try a start? Then one of the other methods must be called with what came of it. */
  admits(): boolean {
    if (!this.isShut) return true;
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
    this.#failures = nowMs - this.#failedAtMs < TOGETHER_MS || this.#trying ? this.#failures + 1 : 1;
    this.#failedAtMs = nowMs;
    this.#nextTryMs = nowMs + TRY_EVERY_MS;
    this.#trying = false;
  }

  succeeded(): void {
    this.#failures = 0;
    this.#trying = false;
  }
}
