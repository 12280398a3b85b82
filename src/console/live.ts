import { useEffect, useRef } from 'preact/hooks';
import { api, sessionState } from './api.ts';
import type { Overview, Sample } from './contract.ts';
import { Shared } from './store.ts';
import { trouble } from './words.ts';

const AN_HOUR_MS = 3_600_000;

export const overview = new Shared<Overview | undefined>(undefined);
/** Why the overview could not be read the last time. */
export const overviewProblem = new Shared<string | undefined>(undefined);
/** A sample, and when it was taken, by the gateway's clock in Unix milliseconds. */
export type PlacedSample = Sample & { atMs: number };
/** The samples that the gateway keeps, as far as the page has read them. Oldest first. */
export const samples = new Shared<readonly PlacedSample[]>([]);

// Another session may belong to another person, and the gateway may have been restarted.
sessionState.listen(({ kind }) => {
  if (kind === 'open') return;
  overview.set(undefined);
  samples.set([]);
});

const newest = (): number => samples.value.at(-1)?.upMs ?? -1;

let asked = 0;
let shown = 0;

export async function readOverview(): Promise<void> {
  const number = ++asked;
  const session = sessionState.value;
  const answer = await api.overview(newest());
  // A later request was answered first, or the answer belongs to a session that has ended.
  if (number < shown || sessionState.value !== session) return;
  shown = number;
  // app.tsx says it for all requests if the gateway does not answer.
  overviewProblem.set(answer.kind === 'refused' ? trouble(answer) : undefined);
  if (answer.kind !== 'ok') return;
  overview.set(answer.value);
  const { nowAt, upMs: nowMs, samples: added } = answer.value;
  const newestMs = newest();
  const kept = [...samples.value, ...added.filter(({ upMs }) => upMs > newestMs)];
  // The gateway's clock may have been set since the earlier ones were read. Times must not go back.
  const startedMs = Date.parse(nowAt) - nowMs;
  samples.set(
    kept
      .filter(({ upMs }) => upMs >= nowMs - AN_HOUR_MS)
      .map((sample) => ({ ...sample, atMs: startedMs + sample.upMs })),
  );
}

/** Repeats `run` while the page is visible, with a pause between the end of one and the beginning of the next. */
export function usePolling(run: () => Promise<unknown>, everyMs: number): void {
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    let timer: number | undefined;
    let isEnded = false;
    let isRunning = false;
    const turn = async () => {
      clearTimeout(timer);
      if (isEnded || isRunning || document.hidden) return;
      isRunning = true;
      try {
        await latest.current();
      } finally {
        isRunning = false;
        if (!isEnded) timer = setTimeout(turn, everyMs);
      }
    };
    void turn();
    document.addEventListener('visibilitychange', turn);
    return () => {
      isEnded = true;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', turn);
    };
  }, [everyMs]);
}
