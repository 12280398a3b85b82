import type { Redis } from 'ioredis';
import { afterAll, expect, it } from 'vitest';
import { clusterNodes } from '../support/cluster-nodes.ts';
import { until } from '../support/until.ts';
import { startCluster } from './chaos/topology-cluster.ts';

const KEYS = Array.from({ length: 20 }, (_, i) => `key ${i}`);

/** A node's answer to a write: OK, MOVED if another node has the slot, or what is wrong with its cluster. */
async function saysTo(node: Redis, key: string): Promise<string> {
  const said = await node.set(key, '').catch((error: Error) => error.message);
  return String(said).split(' ')[0] ?? '';
}

const cluster = await startCluster();
afterAll(() => cluster.stop());
const faultOf = (wanted: string) => {
  const fault = cluster.faults.find(({ name }) => name === wanted);
  if (!fault) throw new Error(`there is no fault ${wanted}`);
  return fault;
};

it('a fault of a cluster is healed when every node serves again, not when the server has started', async () => {
  const nodes = clusterNodes(cluster.config.store);
  const killed = faultOf('master 3 killed');
  await killed.inject();
  // From now on the other nodes reject it for twice `cluster-node-timeout`, even if it is back earlier.
  await until(async () => (await nodes[0]?.cluster('INFO'))?.includes('cluster_state:fail'));
  await killed.heal();
  const said = await Promise.all(nodes.flatMap((node) => KEYS.map((key) => saysTo(node, key))));
  expect(new Set(said)).toEqual(new Set(['OK', 'MOVED']));
});

it('slots that move have moved with their keys when the fault is healed, also if a master was killed meanwhile', async () => {
  const nodes = clusterNodes(cluster.config.store);
  await Promise.all(nodes.flatMap((node) => KEYS.map((key) => saysTo(node, key))));
  /** For each key the nodes that have it. */
  const holders = async () =>
    await Promise.all(
      KEYS.map(async (key) => {
        const values = await Promise.all(nodes.map((node) => node.get(key).catch(() => null)));
        return values.flatMap((value, at) => (value === null ? [] : [at]));
      }),
    );
  const views = async () => String(await Promise.all(nodes.map((node) => node.cluster('NODES'))));
  const before = await holders();
  const [moving, killed] = [faultOf('slots moved to another master'), faultOf('master 2 killed')];
  await moving.inject();
  expect(await views()).toContain('->-');
  await killed.inject();
  await killed.heal();
  await moving.heal();
  expect(await views()).not.toContain('-<-');
  const after = await holders();
  expect(after.map(({ length }) => length)).toEqual(KEYS.map(() => 1));
  expect(after).not.toEqual(before);
});
