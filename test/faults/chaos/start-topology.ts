import type { StoreName, Topology, Unsafe } from './topology.ts';
import { startCluster } from './topology-cluster.ts';
import { startPostgres, startPostgresPair } from './topology-postgres.ts';
import { startQuorum, startSingle } from './topology-redis.ts';
import { startReplicas } from './topology-replicas.ts';
import { startSentinels } from './topology-sentinel.ts';
import { startSqlite } from './topology-sqlite.ts';

export async function startTopology(store: StoreName, folder: string, unsafe?: Unsafe): Promise<Topology> {
  const starts: Record<StoreName, () => Promise<Topology>> = {
    sqlite: () => startSqlite(folder),
    redis: () => startSingle(unsafe !== 'memory'),
    quorum: startQuorum,
    sentinel: () => startSentinels(unsafe === 'no-replicas' ? 0 : 1),
    replicas: () => startReplicas(unsafe === 'one-of-two' ? 1 : 2),
    cluster: startCluster,
    postgres: startPostgres,
    'postgres-standby': () => startPostgresPair(unsafe !== 'asynchronous'),
  };
  return await starts[store]();
}
