import type { Clock } from '../../../kernel/clock.ts';
import type { Location } from './connect.ts';

export interface RedisStoreOptions {
  location: Location;
  /** Before every key name. */
  prefix: string;
  retentionMs: number;
  leaseMs: number;
  /** Independent Redis nodes for the lease; empty: the store's own. An odd number, so that a tie cannot be. */
  lockNodes: readonly string[];
  /** Replicas that must have a write before it counts. 0: none is waited for. */
  replicas: number;
  /** A settled result had not reached the replicas in time; the merchant gets it all the same. */
  onUnreplicated?: () => void;
  /** A command that takes longer is taken for lost, though it may still be executed. */
  timeoutMs: number;
  /** How long to wait for Redis at the start. */
  connectTimeoutMs: number;
  clock: Clock;
}
