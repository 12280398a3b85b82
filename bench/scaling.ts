/**
 * What a payout takes from one gateway and from its store: `node bench/scaling.ts [ROUNDS]` (default 3, about four minutes). A Redis,
 * a cluster of three masters, and SQLite do the same work in turn. Prints the tables of docs/scaling.md, the calculated
 * ones included. It needs two cores, and a machine that has been idle for a minute.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { joinCluster } from '../test/faults/chaos/topology-cluster.ts';
import { freePort } from '../test/support/free-port.ts';
import { launchRedis, type RedisServer } from '../test/support/redis-process.ts';
import { calibrate } from './calibration.ts';
import { capacityTables } from './capacity.ts';
import { type Deployment, footprint } from './footprint.ts';
import { type Work, warmUp } from './load.ts';
import { machine, versions } from './machine.ts';
import { answerSize } from './memory.ts';
import { startBackend } from './nginx.ts';
import { end, pinned } from './processes.ts';
import type { DeploymentName, ScalingResults, StoreSize } from './scaling-results.ts';
import { build, type OncegateOptions, type Place, startOncegate } from './systems.ts';

const FULL_SPEED_S = 3;
const PACED_S = 5;
const MASTERS = 3;

/** The runs of a round, in this order. Those that are compared follow each other. */
const RUNS: readonly [deployment: DeploymentName, work: Work, ratePerS?: number][] = [
  ...(['redis', 'cluster', 'sqlite'] as const).map((name) => [name, 'first'] as [DeploymentName, Work]),
  ...(['redis', 'cluster', 'sqlite'] as const).map((name) => [name, 'replay'] as [DeploymentName, Work]),
  ...([250, 1000] as const).flatMap((ratePerS) =>
    (['redis', 'sqlite'] as const).map((name) => [name, 'first', ratePerS] as [DeploymentName, Work, number]),
  ),
];

const report = (line: string): void => void process.stderr.write(`${line}\n`);

/** A deployment, and the sizes of its store and its log when it was empty. */
interface Started extends Deployment {
  /** Of the processes on SQLite: the database. */
  database: string | undefined;
  empty: { storeBytes: number; appendBytes: number; records: number };
}

async function startDeployments(place: Place): Promise<Map<DeploymentName, Started>> {
  const started = new Map<DeploymentName, Started>();
  const dataPath = join(place.root, 'data');
  const options: Record<DeploymentName, () => Promise<[RedisServer[], OncegateOptions]>> = {
    redis: async () => onOne(await startRedis()),
    cluster: async () => {
      const servers = await Promise.all(Array.from({ length: MASTERS }, () => startRedis(true)));
      await joinCluster(servers);
      return [servers, { store: { kind: 'redis', cluster: servers.map(({ url }) => url) } }];
    },
    sqlite: async () => [[], { dataPath }],
  };
  for (const [name, prepare] of Object.entries(options) as [DeploymentName, (typeof options)['redis']][]) {
    const [servers, more] = await prepare();
    const system = await startOncegate(name === 'sqlite' ? 'sqlite' : 'redis', place, more);
    const deployment: Deployment & Pick<Started, 'database'> = {
      ...{ system, servers, database: name === 'sqlite' ? join(dataPath, 'records.db') : undefined },
      log: join(place.root, `oncegate-${system.port}`, 'log'),
    };
    started.set(name, { ...deployment, empty: await storeOf(deployment) });
  }
  return started;
}

const onOne = (server: RedisServer): [RedisServer[], OncegateOptions] => [
  [server],
  { store: { kind: 'redis', url: server.url } },
];

async function startRedis(inCluster = false): Promise<RedisServer> {
  const cluster = ['--cluster-enabled', 'yes', '--cluster-port', `${await freePort()}`];
  const server = await launchRedis({
    // A rewrite of the append-only file would hide how much it grows.
    args: ['--appendfsync', 'always', '--auto-aof-rewrite-percentage', '0', ...(inCluster ? cluster : [])],
  });
  pinned(server.pid);
  return server;
}

async function storeOf({ servers, database }: Pick<Started, 'servers' | 'database'>) {
  if (database !== undefined) {
    const reader = new DatabaseSync(database, { readOnly: true });
    const figure = (sql: string) => Number(Object.values(reader.prepare(sql).get() ?? {})[0]);
    const storeBytes = figure('PRAGMA page_count') * figure('PRAGMA page_size');
    const records = figure('SELECT count(*) FROM records');
    reader.close();
    return { storeBytes, appendBytes: 0, records };
  }
  const infos = await Promise.all(servers.map(({ admin }) => admin.info('everything')));
  const sum = (pattern: RegExp) =>
    infos.reduce((total, info) => total + Number(pattern.exec(info)?.[1] ?? 0), 0);
  return {
    storeBytes: sum(/^used_memory:(\d+)/m),
    appendBytes: sum(/^aof_current_size:(\d+)/m),
    records: sum(/^db0:keys=(\d+)/m),
  };
}

async function sizeOf(name: DeploymentName, started: Started, seed: string): Promise<StoreSize> {
  const { servers, empty, system } = started;
  const answerBytes = await answerSize(system, seed);
  const now = await storeOf(started);
  const records = now.records - empty.records;
  const counts = await Promise.all(servers.map(({ admin }) => admin.dbsize()));
  return {
    ...{ deployment: name, records, answerBytes },
    recordBytes: Math.round((now.storeBytes - empty.storeBytes) / records),
    ...(servers.length > 0 && { appendBytes: Math.round((now.appendBytes - empty.appendBytes) / records) }),
    ...(servers.length > 1 && {
      busiestShare: Math.round((Math.max(...counts) / now.records) * 1000) / 1000,
    }),
  };
}

async function measure(rounds: number): Promise<ScalingResults> {
  const startedMs = performance.now();
  const root = mkdtempSync(join(tmpdir(), 'oncegate-bench-'));
  const seed = randomBytes(6).toString('hex');
  const [loadAverage = 0] = loadavg();
  report('building');
  build();
  const backend = await startBackend(root);
  const results: ScalingResults = {
    ...{ at: new Date().toISOString(), command: `node bench/scaling.ts ${rounds}`, seconds: 0 },
    ...{ machine: machine(), versions: versions(), seed, rounds, loadAverage, calibrationUs: [] },
    ...{ runs: [], sizes: [] },
  };
  const deployments = await startDeployments({ root, backendUrl: backend.urls[300], redisUrl: '' });
  try {
    const keysOf = (name: string, work: Work, run: string) =>
      `${seed}-${name}-${work}${work === 'replay' ? '' : `-${run}`}`;
    for (const [name, work, ratePerS] of RUNS) {
      const { system } = deployments.get(name) as Started;
      if (ratePerS === undefined) await warmUp(system, work, keysOf(name, work, 'warm'));
    }
    for (let round = 1; round <= rounds; round++) {
      results.calibrationUs.push(calibrate());
      for (const [deployment, work, ratePerS] of RUNS) {
        const keys = keysOf(deployment, work, `${round}-${ratePerS}`);
        const seconds = ratePerS === undefined ? FULL_SPEED_S : PACED_S;
        const found = await footprint(deployments.get(deployment) as Started, {
          work,
          seconds,
          keys,
          ratePerS,
        });
        results.runs.push({ round, deployment, work, ratePerS, ...found });
        const { perSecond, cpuUs, storeCpuUs, diskBytes, wrong, late = 0 } = found;
        report(
          `${round}: ${deployment} ${work} ${ratePerS ?? ''}: ${perSecond}/s, ${cpuUs} + ${storeCpuUs} µs, ${diskBytes} bytes to disk, ${wrong} wrong, ${late} late`,
        );
      }
    }
    results.calibrationUs.push(calibrate());
    for (const name of ['redis', 'cluster', 'sqlite'] as const)
      results.sizes.push(await sizeOf(name, deployments.get(name) as Started, seed));
  } finally {
    for (const { system } of deployments.values()) await end(system.process);
    for (const { servers } of deployments.values()) for (const server of servers) await server.stop();
    await end(backend.process);
    rmSync(root, { recursive: true, force: true });
  }
  results.seconds = Math.round((performance.now() - startedMs) / 1000);
  return results;
}

const rounds = Number(process.argv[2] ?? 3);
if (!Number.isInteger(rounds) || rounds < 1 || rounds > 100) {
  process.stderr.write('node bench/scaling.ts [ROUNDS]\n');
  process.exit(64);
}
const results = await measure(rounds);
for (const table of Object.values(capacityTables)) process.stdout.write(`${table(results)}\n`);
process.exitCode = results.runs.some(({ wrong }) => wrong > 0) ? 1 : 0;
