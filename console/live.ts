import { useEffect, useRef } from 'preact/hooks';
import type { Overview, SeriesPoint } from '../src/admin/console/contract.ts';
import { api, sessionState } from './api.ts';
import { Shared } from './store.ts';
import { trouble } from './words.ts';

export const overview = new Shared<Overview | undefined>(undefined);
/** Why the overview could not be read the last time. */
export const overviewProblem = new Shared<string | undefined>(undefined);

/** The points of the charts, as far as the page has read them. */
export interface ReadSeries {
  cursor: string | undefined;
  everyMs: number;
  /** The gateway's clock when the newest points were read. */
  nowMs: number;
  points: readonly SeriesPoint[];
}

const NO_SERIES: ReadSeries = { cursor: undefined, everyMs: 2000, nowMs: 0, points: [] };
export const series = new Shared<ReadSeries>(NO_SERIES);

// Another session may belong to another person, and the gateway may have been restarted.
sessionState.listen(({ kind }) => {
  if (kind === 'open') return;
  overview.set(undefined);
  series.set(NO_SERIES);
});

export async function readOverview(): Promise<void> {
  const answer = await api.overview();
  if (answer.kind === 'ok') overview.set(answer.value);
  // app.tsx says it for all requests if the gateway does not answer.
  overviewProblem.set(answer.kind === 'refused' ? trouble(answer) : undefined);
}

export async function readSeries(): Promise<void> {
  const answer = await api.series(series.value.cursor);
  if (answer.kind !== 'ok') return;
  const { cursor, everyMs, keptMs, replaces, points, nowAt } = answer.value;
  const nowMs = Date.parse(nowAt);
  const known = replaces ? [] : series.value.points;
  const kept = [...known, ...points].filter(({ atMs }) => atMs > nowMs - keptMs);
  series.set({ cursor, everyMs, nowMs, points: kept });
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
