import type { UnorderedList } from './collections.ts';

/**
 * The only source of time and of timers. Measure durations with `monotonicMs`; `wallMs` is for times that people read. Only
 * {@link sinceMs} measures with both.
 */
export interface Clock {
  /** Milliseconds since the Unix epoch. May jump. */
  wallMs(): number;
  /** Milliseconds since the machine booted, the same in all of its processes. Never jumps. */
  monotonicMs(): number;
  /**
   * Calls `act` once, later, after `ms` at the earliest. Returns a function that cancels it; afterwards that does nothing.
   *
   * @param isBackground the process may end before. Default: false, because a gateway that shuts down may wait for nothing else
   *   than the next attempt of a pending write
   */
  after(ms: number, act: () => void, isBackground?: boolean): () => void;
}

const EXACT_MS = 0.01;

/**
 * The value of CLOCK_MONOTONIC when performance.now() was 0. `monotonicMs` adds it, because performance.now() is quick but
 * begins at 0 in each process, while all processes of a machine share CLOCK_MONOTONIC (hrtime). Reads hrtime between two
 * calls of performance.now(), and keeps the attempt whose two calls were closest together.
 */
function startedMs(): number {
  let [best, error] = [0, Number.POSITIVE_INFINITY];
  for (let i = 0; i < 100 && error > EXACT_MS; i++) {
    const before = performance.now();
    const monotonicMs = Number(process.hrtime.bigint()) / 1e6;
    const after = performance.now();
    if (after - before < error) [best, error] = [monotonicMs - (before + after) / 2, after - before];
  }
  return best;
}

const STARTED_MS = startedMs();

export const systemClock: Clock = {
  wallMs: () => Date.now(),
  monotonicMs: () => performance.now() + STARTED_MS,
  after(ms, act, isBackground = false) {
    const timer = setTimeout(act, ms);
    if (isBackground) timer.unref();
    return () => clearTimeout(timer);
  },
};

/** A moment on both clocks. */
export interface Moment {
  wallMs: number;
  monotonicMs: number;
}

export const momentOf = (clock: Clock): Moment => ({
  wallMs: clock.wallMs(),
  monotonicMs: clock.monotonicMs(),
});

/** How long ago a moment was, by the clock that says longer: the monotonic one stops while a machine is suspended, and the other may jump. */
export const sinceMs = (clock: Clock, { wallMs, monotonicMs }: Moment): number =>
  Math.max(clock.wallMs() - wallMs, clock.monotonicMs() - monotonicMs);

/**
 * Runs `act` after this process has read what its sockets have received. After a pause of the process, Node runs timers before it reads
 * sockets, so the answer may have arrived already when a time limit ends.
 */
export function afterReading(act: () => void): void {
  setImmediate(() => setImmediate(act));
}

/**
 * Resolves to the result of `work`, or to undefined after `ms` or when `gone` is aborted. `work` continues in any case.
 *
 * @param work without it, waits for `ms` and `gone` only
 * @param waits has, while this waits, a function that ends it
 */
export async function within<T>(
  clock: Clock,
  work: Promise<T> | undefined,
  ms: number,
  gone?: AbortSignal,
  waits?: UnorderedList<() => void>,
): Promise<T | undefined> {
  let giveUp: () => void = () => {};
  const over = new Promise<undefined>((resolve) => {
    giveUp = () => resolve(undefined);
  });
  const cancel = clock.after(Math.max(0, ms), giveUp);
  if (gone?.aborted) giveUp();
  gone?.addEventListener('abort', giveUp);
  const remove = waits?.add(giveUp);
  try {
    return await Promise.race(work === undefined ? [over] : [work, over]);
  } finally {
    cancel();
    gone?.removeEventListener('abort', giveUp);
    remove?.();
  }
}

/**
 * Resolves after `ms`, or as soon as `signal` is aborted.
 *
 * @param isBackground as in {@link Clock.after}
 */
export function pause(clock: Clock, ms: number, signal?: AbortSignal, isBackground = false): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) {
      resolve();
      return;
    }
    const end = () => {
      cancel();
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const cancel = clock.after(ms, end, isBackground);
    signal?.addEventListener('abort', end);
  });
}
