import { type Clock, within } from '../../lib/clock.ts';

const FIRST_MS = 25;
const LONGEST_MS = 250;

/**
 * Asks less and less often until there is an answer.
 *
 * @param ask resolves to undefined if there is none yet
 * @param gone stops the asking when it is aborted
 * @returns undefined if there was none in time
 */
export async function poll<T>(
  clock: Clock,
  ms: number,
  ask: () => Promise<T | undefined>,
  gone?: AbortSignal,
): Promise<T | undefined> {
  const untilMs = clock.monotonicMs() + ms;
  for (let pollMs = FIRST_MS; ; pollMs = Math.min(pollMs * 1.5, LONGEST_MS)) {
    const answer = await ask();
    const leftMs = untilMs - clock.monotonicMs();
    if (answer !== undefined || leftMs <= 0 || gone?.aborted) return answer;
    await within(clock, undefined, Math.min(pollMs, leftMs), gone);
  }
}
