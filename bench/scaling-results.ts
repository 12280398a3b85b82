import type { Work } from './load.ts';
import type { Circumstances } from './results.ts';

/** What one request takes. */
export interface Footprint {
  requests: number;
  perSecond: number;
  /** Processor time of the gateway's processes; with SQLite that of the store is in it. */
  cpuUs: number;
  /** Processor time of the Redis servers; 0 with SQLite. */
  storeCpuUs: number;
  /** What the store's processes write to the disk; with SQLite the gateway's, its log included. */
  diskBytes: number;
  /** The gateway's log. */
  logBytes: number;
  /** Between the gateway and Redis, both directions. */
  networkBytes?: number;
  /** Answers other than 2xx and 3xx, and broken connections. */
  wrong: number;
  /** From sending to the answer; only at a rate. */
  p50Ms?: number;
  p99Ms?: number;
  /** Requests that could not be sent in time; only at a rate. */
  late?: number;
}

/** Gateways with their stores; all but the last have one process on one core. */
export type DeploymentName = 'redis' | 'cluster' | 'sqlite';

export interface ScalingRun extends Footprint {
  round: number;
  deployment: DeploymentName;
  work: Work;
  /** Requests per second. Default: as many as the gateway takes. */
  ratePerS: number | undefined;
}

/** What a store keeps for each record, after all runs. */
export interface StoreSize {
  deployment: DeploymentName;
  records: number;
  /** Header fields and body of the stored answer. */
  answerBytes: number;
  /** Memory of Redis, or the database of SQLite. */
  recordBytes: number;
  /** The append-only file of Redis, not rewritten. */
  appendBytes?: number;
  /** Of the records in a cluster: those of the master that has the most of them. */
  busiestShare?: number;
}

/** What a run has measured. */
export interface ScalingResults extends Circumstances {
  /** How many processes wanted a core before the run began. */
  loadAverage: number;
  runs: ScalingRun[];
  sizes: StoreSize[];
}
