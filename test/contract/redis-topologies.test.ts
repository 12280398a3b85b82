import { setTimeout as sleep } from 'node:timers/promises';
import type { Redis } from 'ioredis';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Claim, ClaimRequest, Fenced } from '../../src/idempotency/store.ts';
import { RedisStore } from '../../src/idempotency/stores/redis/redis-store.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { startTopology, type Topology } from '../faults/chaos/topology.ts';
import { clusterNodes } from '../support/cluster-nodes.ts';
import { LONG } from '../support/open-store.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';
import { bring } from './states.ts';

async function started(name: 'sentinel' | 'cluster'): Promise<Topology> {
  const topology = await startTopology(name, '');
  onTestFinished(() => topology.stop());
  return topology;
}

/** What a gateway would open by this topology's configuration. */
async function opened({ config: { store } }: Topology, timeoutMs = 2000): Promise<RedisStore> {
  if (store?.kind !== 'redis') throw new TypeError('this is a topology of redis');
  const { sentinels, cluster } = store;
  const location = sentinels ? { sentinels, credentials: {} } : { cluster: cluster ?? [], credentials: {} };
  const redis = await RedisStore.open({
    ...{ ...LONG, location, prefix: 'test', lockNodes: [], clock: systemClock },
    ...{ replicas: store.durability?.replicas ?? 0, timeoutMs, connectTimeoutMs: 10_000 },
  });
  onTestFinished(() => redis.close());
  return redis;
}

/** A third of the cluster's 16,384. */
const SLOTS_OF_FIRST = 5461;

/** Repeats a write that its owner may repeat. */
const untilOk = (write: () => Promise<Fenced>) =>
  until(async () => (await write().catch(() => 'away')) === 'ok', 20_000);

const faultOf = ({ faults }: Topology, wanted: string) => {
  const fault = faults.find(({ name }) => name === wanted);
  if (!fault) throw new Error(`there is no fault ${wanted}`);
  return fault;
};

describe('what is stored', { timeout: 120_000 }, () => {
  it('is there after the sentinels have failed over, and the old master has come back', async () => {
    const topology = await started('sentinel');
    const store = await opened(topology);
    expect(await store.health()).toMatchObject({ ok: true, warnings: [] });
    const [settled, executing] = [await bring(store, 'settled'), await bring(store, 'executing')];
    const failover = faultOf(topology, 'master killed, failover');
    await failover.inject();
    await expect
      .poll(() => store.claim(duplicateOf(settled)).catch(String), { timeout: 60_000 })
      .toMatchObject({
        kind: 'settled',
      });
    // Nothing is begun while no replica has it.
    await expect(store.claim(newRequest())).rejects.toThrow('did not reach its replicas');
    await failover.heal();
    await untilOk(() => store.settle(executing, paid('late')));
    expect(await store.claim(duplicateOf(executing))).toEqual({ kind: 'settled', settlement: paid('late') });
  });

  it('is spread over a cluster, listed from all of it, and there again when a master is', async () => {
    const topology = await started('cluster');
    const store = await opened(topology);
    const settled = await Promise.all(Array.from({ length: 30 }, () => bring(store, 'settled')));
    const doubtful = await Promise.all(Array.from({ length: 30 }, () => bring(store, 'in_doubt')));
    const listed = new Set<string>();
    let cursor: string | undefined;
    do {
      const page = await store.list({ inDoubt: true, limit: 10, cursor });
      for (const { scope } of page.records) listed.add(scope);
      cursor = page.cursor;
    } while (cursor !== undefined);
    expect(listed).toEqual(new Set(doubtful.map(({ scope }) => scope)));
    const killed = faultOf(topology, 'master 1 killed');
    await killed.inject();
    const claims = await Promise.allSettled(settled.map((owner) => store.claim(duplicateOf(owner))));
    const away = claims.filter(({ status }) => status === 'rejected').length;
    expect(away).toBeGreaterThan(0);
    await killed.heal();
    for (const owner of settled) {
      await until(
        async () => (await store.claim(duplicateOf(owner)).catch(() => undefined))?.kind === 'settled',
        20_000,
      );
    }
  });

  it('is there as far as the other masters hold it when one is given up, but only of a cluster that need not be whole', async () => {
    const topology = await started('cluster');
    const store = await opened(topology);
    const others = clusterNodes(topology.config.store).slice(1);
    const settled = await Promise.all(Array.from({ length: 30 }, () => bring(store, 'settled')));
    const slots = await Promise.all(settled.map(({ scope }) => others[0]?.cluster('KEYSLOT', scope)));
    const held = slots.filter((slot) => Number(slot) >= SLOTS_OF_FIRST).length;
    const replays = async () => {
      const claims = settled.map((owner) => store.claim(duplicateOf(owner)).catch(() => undefined));
      return (await Promise.all(claims)).filter((claim) => claim?.kind === 'settled').length;
    };
    const say = async (sign: string) => {
      const states = await Promise.all(others.map((node) => node.cluster('INFO')));
      return states.every((state) => state.includes(sign));
    };
    await faultOf(topology, 'master 1 killed').inject();
    await until(() => say('cluster_state:fail'));
    expect(await replays()).toBe(0);
    for (const node of others) await node.config('SET', 'cluster-require-full-coverage', 'no');
    await until(() => say('cluster_state:ok'));
    await until(async () => (await replays()) === held);
    expect(held).toBeGreaterThan(0);
    expect(held).toBeLessThan(settled.length);
  });

  it('is moved with its slot to another master, in the middle of an execution, and executed once', async () => {
    const topology = await started('cluster');
    const store = await opened(topology);
    const [from, to] = clusterNodes(topology.config.store) as [Redis, Redis];
    const ids = await Promise.all([from, to].map((node) => node.cluster('MYID')));
    const inFirst = async (request: ClaimRequest) =>
      Number(await from.cluster('KEYSLOT', request.scope)) < SLOTS_OF_FIRST;
    let request = newRequest();
    while (!(await inFirst(request))) request = newRequest();
    const slot = Number(await from.cluster('KEYSLOT', request.scope));
    expect(await store.claim(request)).toMatchObject({ kind: 'claimed' });
    await to.call('CLUSTER', 'SETSLOT', slot, 'IMPORTING', String(ids[0]));
    await from.call('CLUSTER', 'SETSLOT', slot, 'MIGRATING', String(ids[1]));
    const begun = untilOk(() => store.begin(request));
    const duplicates = () =>
      Promise.allSettled(Array.from({ length: 20 }, () => store.claim(duplicateOf(request))));
    const kinds = (answers: PromiseSettledResult<Claim>[]) =>
      answers.flatMap((answer) => (answer.status === 'fulfilled' ? [answer.value.kind] : []));
    const meanwhile = await duplicates();
    const port = Number(new URL((topology.config.store as { cluster: string[] }).cluster[1] ?? '').port);
    const keys = (await from.call('CLUSTER', 'GETKEYSINSLOT', slot, 100)) as string[];
    await from.call('MIGRATE', '127.0.0.1', port, '', 0, 5000, 'KEYS', ...keys);
    const moved = await duplicates();
    for (const node of [to, from]) await node.call('CLUSTER', 'SETSLOT', slot, 'NODE', String(ids[1]));
    await begun;
    await untilOk(() => store.settle(request, paid('moved')));
    expect(kinds([...meanwhile, ...moved])).not.toContain('claimed');
    expect(await store.claim(duplicateOf(request))).toEqual({ kind: 'settled', settlement: paid('moved') });
  });

  it('can be opened while a master of the cluster stands still for a moment', async () => {
    const topology = await started('cluster');
    const frozen = faultOf(topology, 'master 2 frozen');
    await frozen.inject();
    const opening = opened(topology, 200);
    // Longer than a command may take: the first look at that master has failed, unless the others had left it out by then.
    await Promise.race([opening, sleep(800)]);
    await frozen.heal();
    expect(await (await opening).health()).toMatchObject({ ok: true });
  });
});
