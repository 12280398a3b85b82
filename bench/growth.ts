import { join } from 'node:path';
import { launchRedis } from '../test/support/redis-process.ts';
import { fillRedis, fillSqlite } from './fill.ts';
import { load, warmUp } from './load.ts';
import { cpuUs, end, pinned } from './processes.ts';
import type { GrowthRun } from './results.ts';
import { type Place, type System, startOncegate } from './systems.ts';

const FEW = 10_000;
export const MANY = 5_000_000;
const SECONDS = 2;

interface Filled {
  store: 'redis' | 'sqlite';
  records: number;
  system: System;
  /** The processes of Redis, whose CPU time is counted too. */
  serverPid: number | undefined;
  stop(): Promise<void>;
}

/** First-time withdraws on a store with few records and on one with many, in turn. */
export async function growth(
  place: Place,
  rounds: number,
  seed: string,
  report: (line: string) => void,
): Promise<GrowthRun[]> {
  const runs: GrowthRun[] = [];
  for (const store of ['redis', 'sqlite'] as const) {
    const filled: Filled[] = [];
    try {
      for (const records of [FEW, MANY]) {
        report(`filling ${store} with ${records} records`);
        filled.push(
          store === 'redis' ? await filledRedis(place, records) : await filledSqlite(place, records),
        );
      }
      for (const { system, records } of filled) await warmUp(system, 'first', `${seed}-warm-${records}`);
      for (let round = 1; round <= rounds; round++) {
        for (const one of filled) runs.push(await measure(one, round, seed));
      }
    } finally {
      for (const one of filled) await one.stop();
    }
  }
  return runs;
}

async function measure(
  { store, records, system, serverPid }: Filled,
  round: number,
  seed: string,
): Promise<GrowthRun> {
  const before = serverPid === undefined ? 0 : cpuUs(serverPid);
  const run = await load(system, 'first', SECONDS, `${seed}-growth-${store}-${records}-${round}`);
  const serverUs = serverPid === undefined ? 0 : cpuUs(serverPid) - before;
  const perRequest = run.cpuUs + serverUs / run.requests;
  return { round, store, records, cpuUs: Math.round(perRequest * 10) / 10, perSecond: run.perSecond };
}

async function filledRedis(place: Place, records: number): Promise<Filled> {
  // Redis rewrites a grown append-only file in the background. That is not a cost of the requests.
  const background = ['--auto-aof-rewrite-percentage', '0'];
  const server = await launchRedis({ args: ['--appendfsync', 'everysec', ...background] });
  pinned(server.pid);
  await fillRedis(server.url, records);
  const system = await startOncegate('redis', { ...place, redisUrl: server.url });
  const stop = async () => {
    await end(system.process);
    await server.stop();
  };
  return { store: 'redis', records, system, serverPid: server.pid, stop };
}

async function filledSqlite(place: Place, records: number): Promise<Filled> {
  const dataPath = join(place.root, `filled-${records}`);
  await fillSqlite(dataPath, records);
  const system = await startOncegate('sqlite', place, { dataPath });
  return { store: 'sqlite', records, system, serverPid: undefined, stop: () => end(system.process) };
}
