import type { Cell } from './cells.ts';
import type { Run, Work } from './load.ts';
import type { KeyFormat } from './systems.ts';

export interface CellRun extends Cell, Run {
  round: number;
}

/** At 1,000 requests a second. */
export interface PacedRun {
  round: number;
  system: string;
  p50Ms: number;
  p99Ms: number;
  answered: number;
  /** Answered with 503: the system said that it could not. Unknown in earlier runs, which counted it as wrong. */
  refused?: number;
  wrong: number;
  /** Could not be sent in time: the system did not keep up. */
  late: number;
}

export interface GrowthRun {
  round: number;
  store: 'redis' | 'sqlite';
  records: number;
  /** Of the gateway and, with Redis, of its server, in microseconds. */
  cpuUs: number;
  perSecond: number;
}

/** Memory of one gateway process, and bytes that its store takes, while new keys come. */
export interface MemoryRun {
  store: 'redis' | 'sqlite';
  /** Keys so far, and the resident memory then; `ownBytes` of it are no pages of files: unknown in earlier runs. */
  samples: { keys: number; rssBytes: number; ownBytes?: number }[];
  /** What the store takes for each settled record beyond the stored answer. */
  overheadBytes: number;
  answerBytes: number;
}

/** `bench/results.json`. */
export interface Results {
  at: string;
  command: string;
  seconds: number;
  machine: { cpu: string; cores: number; memoryGiB: number; kernel: string };
  versions: Record<string, string>;
  /** Begins every idempotency key of the run. */
  seed: string;
  rounds: number;
  cells: CellRun[];
  paced: PacedRun[];
  growth: GrowthRun[];
  memory: MemoryRun[];
  /** Milliseconds from the start of the process to its first connection, with 10,000 secret keys. */
  startsMs: Record<KeyFormat, number[]>;
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (sorted.length === 0) return Number.NaN;
  if (sorted.length % 2 === 1) return sorted[middle] as number;
  return ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
}

/** A system's figure divided by its peer's, one ratio a round. */
export function ratios(
  { cells, rounds }: Pick<Results, 'cells' | 'rounds'>,
  of: 'perSecond' | 'cpuUs',
  work: Work,
  system: string,
  peer: string,
): number[] {
  return Array.from({ length: rounds }, (_, i) => i + 1).flatMap((round) => {
    const at = (name: string) =>
      cells.find(
        (run) => run.round === round && run.work === work && run.size === 300 && run.system === name,
      );
    const [one, other] = [at(system), at(peer)];
    return one && other ? [one[of] / other[of]] : [];
  });
}
