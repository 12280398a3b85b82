/** The one source of time. Durations hang on `monotonicMs` only; `wallMs` is for what people read. */
export interface Clock {
  /** Milliseconds since the Unix epoch. May jump. */
  wallMs(): number;
  /** Milliseconds since the machine booted, the same line for every process of this boot. Never jumps. */
  monotonicMs(): number;
}

/** hrtime reads CLOCK_MONOTONIC, which all processes of one boot share; performance.now(), which is quicker, starts anew in each. */
const STARTED_MS = Number(process.hrtime.bigint()) / 1e6 - performance.now();

export const systemClock: Clock = {
  wallMs: () => Date.now(),
  monotonicMs: () => performance.now() + STARTED_MS,
};
