import type { Clock } from '../../../kernel/clock.ts';

export interface LmdbStoreOptions {
  /** Folder of the database; made if it is missing, for this user only. */
  path: string;
  retentionMs: number;
  leaseMs: number;
  /** A write that takes longer is taken for lost, though it may still happen. */
  timeoutMs: number;
  /** Room on the disk below which nothing new is claimed, in bytes. Default: 64 MiB. */
  keepFreeBytes?: number;
  /** Told of the first commit that could not be written: nothing is written any more, and the process is to end. */
  onFailure?: (failure: Error) => void;
  clock: Clock;
}
