/** A copy of a Redis with sentinels, which fails over in the middle, and of a cluster, whose slots move. */
import type { Redis } from 'ioredis';
import { expect, it, onTestFinished } from 'vitest';
import { Copy } from '../../src/ledger/copy.ts';
import type { Scope } from '../../src/lib/brands.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { StoreUnavailable } from '../../src/store/contract.ts';
import { RedisCopyRegister } from '../../src/store/redis/copy-register.ts';
import type { CopyRegister } from '../../src/store/register.ts';
import { startTopology, type Topology } from '../faults/chaos/topology.ts';
import { completed, newId, newRecord, replacement } from '../registers/records.ts';
import { clusterNodes } from '../support/cluster-nodes.ts';
import { openCopyRegister } from '../support/open-store.ts';
import { storeFolder } from '../support/sqlite-files.ts';
import { until } from '../support/until.ts';

async function started(name: 'sentinel' | 'cluster'): Promise<Topology> {
  const topology = await startTopology(name, '');
  onTestFinished(() => topology.stop());
  return topology;
}

async function opened({ config: { store } }: Topology, prefix = 'old'): Promise<RedisCopyRegister> {
  if (store?.kind !== 'redis') throw new TypeError('this topology has no redis');
  const { sentinels, cluster, durability } = store;
  const location = { sentinels, cluster };
  const side = await RedisCopyRegister.open({
    ...{ gatewayId: 'copy', location, prefix, lockNodes: [], clock: systemClock },
    ...{ replicas: durability?.replicas ?? 0, timeoutMs: 10_000, connectTimeoutMs: 10_000 },
  });
  onTestFinished(() => side.close());
  return side;
}

async function sqlite() {
  const side = await openCopyRegister({ kind: 'sqlite', path: storeFolder() });
  onTestFinished(() => side.close());
  return side;
}

async function filled(side: CopyRegister, count = 3000): Promise<Scope[]> {
  const ids = Array.from({ length: count }, newId);
  await side.register.mark('protect');
  for (let at = 0; at < count; at += 100)
    await Promise.all(
      ids
        .slice(at, at + 100)
        .map((id) => side.register.replace(id, replacement(undefined, completed(newRecord())))),
    );
  return ids;
}

/** The same side, with something that happens behind the first page of a scan, once. */
function interrupted(side: CopyRegister, happen: () => Promise<unknown>): CopyRegister {
  let isFirst = true;
  async function* scan() {
    for await (const page of side.scan()) {
      yield page;
      if (isFirst) await happen();
      isFirst = false;
    }
  }
  return new Proxy(side, {
    get(target, name) {
      const member = Reflect.get(target, name, target);
      return name === 'scan' ? scan : typeof member === 'function' ? member.bind(target) : member;
    },
  });
}

/** As an operator, who repeats the command if a store does not answer. Returns its lines. */
async function copied(from: CopyRegister, to: CopyRegister): Promise<string[]> {
  const lines: string[] = [];
  await until(async () => {
    const run = new Copy({ from, to, onProgress: (line) => void lines.push(line) }).run();
    return await run.catch((error: unknown) => {
      expect(error).toBeInstanceOf(StoreUnavailable);
      lines.push(String(error));
      return undefined;
    });
  }, 60_000);
  return lines;
}

async function expectAll(side: CopyRegister, ids: readonly Scope[]): Promise<void> {
  const found = await Promise.all(ids.map((id) => side.register.read(id)));
  expect(found.filter((seen) => seen?.record.state === 'completed')).toHaveLength(ids.length);
}

const BEGAN_AGAIN = /copying everything again|StoreUnavailable/;

it('a Redis that fails over while it is scanned is copied whole', { timeout: 120_000 }, async () => {
  const topology = await started('sentinel');
  const [from, to] = [await opened(topology), await sqlite()];
  const ids = await filled(from);
  const servers = await from.servers();
  const failover = topology.faults.find(({ name }) => name === 'master killed, failover');
  const lines = await copied(
    interrupted(from, async () => {
      await failover?.inject();
      await failover?.heal();
    }),
    to,
  );
  expect(lines.filter((line) => BEGAN_AGAIN.test(line)).length).toBeGreaterThan(0);
  expect(await from.servers()).not.toBe(servers);
  await expectAll(to, ids);
});

it('a cluster whose slot moves while it is scanned is copied whole, and so is the copy back', {
  timeout: 120_000,
}, async () => {
  const topology = await started('cluster');
  const [from, to] = [await opened(topology), await sqlite()];
  const ids = await filled(from);
  const [first, second] = clusterNodes(topology.config.store) as [Redis, Redis];
  let slot = 0;
  while ((await first.cluster('COUNTKEYSINSLOT', slot)) === 0) slot++;
  const [firstId, secondId] = [String(await first.cluster('MYID')), String(await second.cluster('MYID'))];
  const { host, port } = second.options;
  const lines = await copied(
    interrupted(from, async () => {
      const servers = await from.servers();
      await second.cluster('SETSLOT', slot, 'IMPORTING', firstId);
      await first.cluster('SETSLOT', slot, 'MIGRATING', secondId);
      const moving = await from.servers();
      expect(moving).not.toBe(servers);
      expect(await from.servers()).not.toBe(moving);
      const keys = (await first.cluster('GETKEYSINSLOT', slot, 1000)) as string[];
      await first.migrate(host ?? '', port ?? 0, '', 0, 5000, 'KEYS', ...keys);
      for (const node of [second, first]) await node.cluster('SETSLOT', slot, 'NODE', secondId);
    }),
    to,
  );
  expect(lines.filter((line) => BEGAN_AGAIN.test(line)).length).toBeGreaterThan(0);
  await expectAll(to, ids);
  expect(await from.readCopyMark()).toMatchObject({ state: 'moved', isWhole: true });

  const back = await opened(topology, 'new');
  const report = await new Copy({ from: to, to: back }).run();
  expect(report).toMatchObject({ completed: ids.length });
  await expectAll(back, ids);
});
