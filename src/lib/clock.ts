/**
 * The only source of time. Measure durations with `monotonicMs`; `wallMs` is for times that people read. Only the fence
 * (lease.ts) measures with both.
 */
export interface Clock {
  /** Milliseconds since the Unix epoch. May jump. */
  wallMs(): number;
  /** Milliseconds since the machine booted, the same in all of its processes. Never jumps. */
  monotonicMs(): number;
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
};

/**
 * Runs `act` when this process has read what it has received. After a pause of the process, Node runs timers before it reads
 * sockets: when a time limit ends, the answer may be there already.
 */
export function afterReading(act: () => void): void {
  setImmediate(() => setImmediate(act));
}

/** Resolves to the result of `work`, or to undefined after `ms` or when `gone` is aborted. `work` continues in any case. */
export async function within<T>(work: Promise<T>, ms: number, gone?: AbortSignal): Promise<T | undefined> {
  let giveUp: () => void = () => {};
  const over = new Promise<undefined>((resolve) => {
    giveUp = () => resolve(undefined);
  });
  const timer = setTimeout(giveUp, Math.max(0, ms));
  if (gone?.aborted) giveUp();
  gone?.addEventListener('abort', giveUp);
  try {
    return await Promise.race([work, over]);
  } finally {
    clearTimeout(timer);
    gone?.removeEventListener('abort', giveUp);
  }
}
