import type { Clock } from '../../../kernel/clock.ts';

export interface LmdbStoreOptions {
  /** Folder of the database; made if it is missing, for this user only. */
  path: string;
  retentionMs: number;
  leaseMs: number;
  /** A write that takes longer is taken for lost, though it may still happen. */
  timeoutMs: number;
  clock: Clock;
}
