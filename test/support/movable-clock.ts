import { type Clock, systemClock } from '../../src/lib/clock.ts';

/** A clock that runs as the system's does, and that the test can move. */
export interface MovableClock extends Clock {
  /** How far it is ahead of the system's clock. */
  ahead: { wallMs: number; monotonicMs: number };
  /** Lets this time pass at once. */
  pass(ms: number): void;
}

export function movableClock(): MovableClock {
  const ahead = { wallMs: 0, monotonicMs: 0 };
  return {
    ...systemClock,
    ahead,
    wallMs: () => systemClock.wallMs() + ahead.wallMs,
    monotonicMs: () => systemClock.monotonicMs() + ahead.monotonicMs,
    pass(ms) {
      ahead.wallMs += ms;
      ahead.monotonicMs += ms;
    },
  };
}
