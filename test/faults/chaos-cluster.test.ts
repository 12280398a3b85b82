import type { Redis } from 'ioredis';
import { expect, it, onTestFinished } from 'vitest';
import { clusterNodes } from '../support/cluster-nodes.ts';
import { until } from '../support/until.ts';
import { startCluster } from './chaos/topology-cluster.ts';

const KEYS = Array.from({ length: 20 }, (_, i) => `key ${i}`);

/** A node's answer to a write: OK, MOVED if another node has the slot, or what is wrong with its cluster. */
async function saysTo(node: Redis, key: string): Promise<string> {
  const said = await node.set(key, '').catch((error: Error) => error.message);
  return String(said).split(' ')[0] ?? '';
}

it('a fault of a cluster is healed when every node serves again, not when the server has started', async () => {
  const cluster = await startCluster();
  onTestFinished(cluster.stop);
  const nodes = clusterNodes(cluster.config.store);
  const killed = cluster.faults.find(({ name }) => name === 'master 3 killed');
  if (!killed) throw new Error('the suite kills no master');
  await killed.inject();
  // From now on the other nodes reject it for twice `cluster-node-timeout`, even if it is back earlier.
  await until(async () => (await nodes[0]?.cluster('INFO'))?.includes('cluster_state:fail'));
  await killed.heal();
  const said = await Promise.all(nodes.flatMap((node) => KEYS.map((key) => saysTo(node, key))));
  expect(new Set(said)).toEqual(new Set(['OK', 'MOVED']));
});
