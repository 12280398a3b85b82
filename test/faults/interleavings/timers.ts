/** A timer of the engine, which fires when the search chooses it. */
export interface HeldTimer {
  ms: number;
  fire(): void;
}

/** Timers that are set during a step belong to the process whose step it is. */
let holder: Set<HeldTimer> | undefined;

export function holdTimersIn(timers: Set<HeldTimer> | undefined): void {
  holder = timers;
}

const real = { setTimeout, clearTimeout, setInterval, clearInterval };

function hold(callback: (...args: unknown[]) => void, ms: number, args: unknown[]): unknown {
  const timers = holder as Set<HeldTimer>;
  const timer: HeldTimer & { timers: Set<HeldTimer> } = {
    ms,
    timers,
    fire: () => {
      timers.delete(timer);
      callback(...args);
    },
  };
  timers.add(timer);
  return timer;
}

function drop(timer: unknown): void {
  (timer as { timers?: Set<HeldTimer> } | undefined)?.timers?.delete(timer as HeldTimer);
}

const noTimer = { unref: () => noTimer };

/**
 * Replaces the global timers during a step, so that the search fires them. Renewals are left out: they only delay the moment at
 * which the lease lapses, and the search lets that moment come at any time, or never.
 */
export const heldTimers = {
  setTimeout: ((callback: () => void, ms: number, ...args: unknown[]) =>
    holder ? hold(callback, ms, args) : real.setTimeout(callback, ms, ...(args as []))) as typeof setTimeout,
  clearTimeout: ((timer: NodeJS.Timeout | undefined) =>
    holder ? drop(timer) : real.clearTimeout(timer)) as typeof clearTimeout,
  setInterval: ((callback: () => void, ms: number, ...args: unknown[]) =>
    holder ? noTimer : real.setInterval(callback, ms, ...(args as []))) as typeof setInterval,
  clearInterval: ((timer: NodeJS.Timeout | undefined) =>
    holder ? undefined : real.clearInterval(timer)) as typeof clearInterval,
};
