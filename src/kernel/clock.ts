/** The one source of time. Durations hang on `monotonicMs` only; `wallMs` is for what people read. */
export interface Clock {
  /** Milliseconds since the Unix epoch. May jump. */
  wallMs(): number;
  /** Milliseconds since the machine booted, the same line for every process of this boot. Never jumps. */
  monotonicMs(): number;
}

const EXACT_MS = 0.01;

/**
 * When performance.now(), which is quick, was 0 on CLOCK_MONOTONIC, which hrtime reads and all processes of one boot share.
 * Read between two of the other, until those are so near that the difference means nothing.
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

/** The result of `work`, or undefined after `ms` or when `gone` is aborted. */
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
