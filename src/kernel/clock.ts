/** The one source of time. Durations hang on `monotonicMs` only; `wallMs` is for what people read. */
export interface Clock {
  /** Milliseconds since the Unix epoch. May jump. */
  wallMs(): number;
  /** Milliseconds since the machine booted, the same line for every process of this boot. Never jumps. */
  monotonicMs(): number;
}

export const systemClock: Clock = {
  wallMs: () => Date.now(),
  // hrtime reads CLOCK_MONOTONIC, which all processes of one boot share; performance.now() starts anew in each.
  monotonicMs: () => Number(process.hrtime.bigint()) / 1e6,
};
