import type { ConfigInput } from '../../support/config.ts';

export const STORES = [
  'sqlite',
  'redis',
  'sentinel',
  'replicas',
  'cluster',
  'quorum',
  'postgres',
  'postgres-standby',
] as const;
export type StoreName = (typeof STORES)[number];

/** Store configurations that cannot keep the promise, to show that the suite detects the violations. */
export const UNSAFE = {
  memory: 'redis without persistence, killed',
  'no-replicas': 'sentinels with durability.replicas 0: failover loses writes',
  asynchronous: 'a standby of postgres that is not synchronous: failover loses writes',
  'one-of-two': 'two replicas with durability.replicas 1: failover loses writes',
} as const;
export type Unsafe = keyof typeof UNSAFE;

/** A fault of a store: `inject` resolves when it is there, `heal` when it is over. */
export interface StoreFault {
  name: string;
  inject(): unknown;
  heal(): unknown;
  /** How long it lasts; a usual time by default. */
  holdMs?: number;
  /** Results are still stored while it lasts. */
  completesOn?: true;
}

/** A store with its servers running. */
export interface Topology {
  /** Sections of the gateways' configuration. */
  config: Pick<ConfigInput, 'store' | 'lock'>;
  /** The same for one gateway, if they differ. */
  configFor?(gateway: number): Topology['config'];
  faults: StoreFault[];
  /** Faults that this machine does not allow, each with its reason. */
  missing?: string[];
  stop(): Promise<void>;
}
