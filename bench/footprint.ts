import { statSync } from 'node:fs';
import type { RedisServer } from '../test/support/redis-process.ts';
import { load, type Work } from './load.ts';
import { paced } from './paced-runs.ts';
import { cpuUs, diskBytes } from './processes.ts';
import type { Footprint } from './scaling-results.ts';
import type { System } from './systems.ts';

/** A gateway with the servers of its store: none with SQLite, whose work is the gateway's own. */
export interface Deployment {
  system: System;
  servers: readonly RedisServer[];
  /** Its log file. */
  log: string;
}

interface Totals {
  cpuUs: number;
  storeCpuUs: number;
  diskBytes: number;
  logBytes: number;
  networkBytes: number;
}

/** How long load lasts, how its idempotency keys begin, and how fast it is: at full speed, if there is no rate. */
export interface Load {
  work: Work;
  seconds: number;
  keys: string;
  ratePerS: number | undefined;
}

/** Puts load on a gateway, and measures what each request takes from the gateway and from its store. */
export async function footprint(
  deployment: Deployment,
  { work, seconds, keys, ratePerS }: Load,
): Promise<Footprint> {
  const { system, servers } = deployment;
  const before = await totals(deployment);
  const run =
    ratePerS === undefined
      ? await load(system, work, seconds, keys)
      : await atRate(system.port, { seconds, keys, ratePerS });
  const after = await totals(deployment);
  const each = (name: keyof Totals) => (after[name] - before[name]) / run.requests;
  return {
    ...{ requests: run.requests, perSecond: run.perSecond, wrong: run.wrong },
    ...{ cpuUs: rounded(each('cpuUs')), storeCpuUs: rounded(each('storeCpuUs')) },
    ...{ diskBytes: Math.round(each('diskBytes')), logBytes: Math.round(each('logBytes')) },
    ...(servers.length > 0 && { networkBytes: Math.round(each('networkBytes')) }),
    ...('p50Ms' in run && { p50Ms: run.p50Ms, p99Ms: run.p99Ms, late: run.late }),
  };
}

const rounded = (value: number): number => Math.round(value * 10) / 10;

/** First-time withdraws at a rate. */
async function atRate(port: number, run: { seconds: number; keys: string; ratePerS: number }) {
  const { answered, refused = 0, wrong, p50Ms, p99Ms, late } = await paced('', port, { round: 0, ...run });
  const perSecond = Math.round(answered / run.seconds);
  return { requests: answered, perSecond, wrong: wrong + refused, p50Ms, p99Ms, late };
}

async function totals({ system, servers, log }: Deployment): Promise<Totals> {
  const own = system.process.pid as number;
  const infos = await Promise.all(servers.map(({ admin }) => admin.info('everything')));
  const sum = (pattern: RegExp) =>
    infos.reduce((total, info) => total + Number(pattern.exec(info)?.[1] ?? 0), 0);
  return {
    cpuUs: cpuUs(own),
    storeCpuUs: servers.reduce((total, { pid }) => total + cpuUs(pid), 0),
    diskBytes: (servers.length === 0 ? [own] : servers.map(({ pid }) => pid)).reduce(
      (total, pid) => total + diskBytes(pid),
      0,
    ),
    logBytes: statSync(log).size,
    networkBytes: sum(/^total_net_input_bytes:(\d+)/m) + sum(/^total_net_output_bytes:(\d+)/m),
  };
}
