import { join } from 'node:path';
import type { ConfigInput } from '../../support/config.ts';
import { startCluster } from './topology-cluster.ts';
import { startQuorum, startSingle } from './topology-redis.ts';
import { startSentinels } from './topology-sentinel.ts';

export const STORES = ['lmdb', 'redis', 'sentinel', 'cluster', 'quorum'] as const;
export type StoreName = (typeof STORES)[number];

/** Ways to configure a store under which the promise cannot be kept: to show that the suite sees it. */
export const UNSAFE = {
  memory: 'redis without persistence, killed',
  'no-replicas': 'sentinels with durability.replicas 0: failover loses writes',
} as const;
export type Unsafe = keyof typeof UNSAFE;

/** What can happen to a store: `inject` resolves when the fault stands, `heal` when it is over. */
export interface StoreFault {
  name: string;
  inject(): Promise<void>;
  heal(): Promise<void>;
  /** Results are stored all the same while it stands. */
  settlesOn?: true;
}

/** A store with its servers running. */
export interface Topology {
  /** Sections of the gateways' configuration. */
  config: Pick<ConfigInput, 'store' | 'lock'>;
  faults: StoreFault[];
  stop(): Promise<void>;
}

export async function startTopology(store: StoreName, folder: string, unsafe?: Unsafe): Promise<Topology> {
  switch (store) {
    case 'lmdb':
      return {
        config: { store: { kind: 'lmdb', path: join(folder, 'store') } },
        faults: [],
        stop: async () => {},
      };
    case 'redis':
      return await startSingle(unsafe !== 'memory');
    case 'quorum':
      return await startQuorum();
    case 'sentinel':
      return await startSentinels(unsafe === 'no-replicas' ? 0 : 1);
    case 'cluster':
      return await startCluster();
  }
}
