import type { Cell } from './cells.ts';
import type { Run, Work } from './load.ts';
import type { KeyFormat } from './systems.ts';

export interface CellRun extends Cell, Run {
  round: number;
  /** CPU time of the store's server for each request, in microseconds. Undefined in earlier runs, and without a server. */
  storeCpuUs?: number;
}

/** At 500 requests a second. */
export interface PacedRun {
  round: number;
  system: string;
  p50Ms: number;
  p99Ms: number;
  answered: number;
  /** Answered with 503. Undefined in earlier runs, which counted them as wrong. */
  refused?: number;
  wrong: number;
  /** Could not be sent in time, because the system did not keep up. */
  late: number;
}

export interface GrowthRun {
  round: number;
  store: 'redis' | 'sqlite';
  records: number;
  /** CPU time of the gateway and, with Redis, of the Redis server, in microseconds. */
  cpuUs: number;
  perSecond: number;
}

/** Memory of one gateway process, and size of its store in bytes, while new keys arrive. */
export interface MemoryRun {
  store: 'redis' | 'sqlite';
  /** Keys so far, and the resident memory then. `ownBytes` excludes file pages; it is undefined in earlier runs. */
  samples: { keys: number; rssBytes: number; ownBytes?: number }[];
  /** Bytes that the store needs for each completed record, without the stored answer. */
  overheadBytes: number;
  answerBytes: number;
}

/** When, where and how a benchmark ran. */
export interface Circumstances {
  at: string;
  command: string;
  seconds: number;
  machine: { cpu: string; cores: number; memoryGiB: number; kernel: string };
  versions: Record<string, string>;
  /** Every idempotency key of the run starts with this. */
  seed: string;
  rounds: number;
  /** Processor time of a fixed task before each round and after the last one, in microseconds. Shows how quiet the run was. */
  calibrationUs: number[];
}

/** What a run has measured. */
export interface Results extends Circumstances {
  cells: CellRun[];
  paced: PacedRun[];
  growth: GrowthRun[];
  memory: MemoryRun[];
  /** Milliseconds from the start of the process to its first connection: with 10,000 secret keys, and with 100 in YAML. */
  startsMs: Record<KeyFormat | 'hundred', number[]>;
}

/** Above this spread of the calibration, targets are not judged. */
const QUIET = 0.1;

/** How much longer the fixed task took at its slowest than at its fastest; 0.05 is 5 %. */
export function noiseOf({ calibrationUs }: Pick<Results, 'calibrationUs'>): {
  spread: number;
  isNoisy: boolean;
} {
  const spread = Math.max(...calibrationUs) / Math.min(...calibrationUs) - 1;
  return { spread, isNoisy: !(spread <= QUIET) };
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
