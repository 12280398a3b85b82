/** `npm run bench`: oncegate and its peers on the same work, in turn, round after round. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { launchPostgres } from '../test/support/postgres-process.ts';
import { launchRedis } from '../test/support/redis-process.ts';
import { calibrate } from './calibration.ts';
import { ALL_CELLS, type Cell, nameOf, QUICK_CELLS } from './cells.ts';
import { growth } from './growth.ts';
import { load, WARM_UP_S, type Work, warmUp } from './load.ts';
import { machine, versions } from './machine.ts';
import { memory } from './memory.ts';
import { type Backend, startBackend } from './nginx.ts';
import { type BenchOptions, optionsOf, USAGE } from './options.ts';
import { paced } from './paced-runs.ts';
import { CORES, cpuUs, end, pinned } from './processes.ts';
import { describeRun } from './report.ts';
import type { Results } from './results.ts';
import { build, type Place, type System, startOncegate, startPeer } from './systems.ts';

const RUN_S = 2;
const PACED_ROUNDS = 3;
const PACED_S = 4;
const PACED_SYSTEMS = [
  'backend',
  'oncegate-redis',
  'oncegate-sqlite',
  'node-idempotency',
  'express-idempotency',
  'express-redis-logged',
];
const STARTS = 20;
const START_KEYS = 10_000;
const MEMORY_WITHIN_MS = 45_000;
const A_MILLION = { keys: 1_000_000, withinMs: 900_000 };

/** Every measurement of the last run. */
const RESULTS = fileURLToPath(new URL('results.json', import.meta.url));

const report = (line: string): void => void process.stderr.write(`${line}\n`);

/** The servers of stores: Redis by `appendfsync`, and PostgreSQL, which syncs each commit. */
type Servers = Record<'everysec' | 'always' | 'postgres', { url: string; pid: number }>;

/** The systems of a run: started when they are first needed, and kept until the run is over. */
class Systems {
  readonly #started = new Map<string, System>();
  readonly #root: string;
  readonly #backend: Backend;
  readonly #servers: Servers;

  constructor(root: string, backend: Backend, servers: Servers) {
    this.#root = root;
    this.#backend = backend;
    this.#servers = servers;
  }

  placeFor(size: Cell['size'], appendfsync: 'everysec' | 'always' = 'everysec'): Place {
    return {
      root: this.#root,
      backendUrl: this.#backend.urls[size],
      redisUrl: this.#servers[appendfsync].url,
      postgresUrl: this.#servers.postgres.url,
    };
  }

  backendRequests(): Promise<number> {
    return this.#backend.requests();
  }

  /** The process of the server that has the records of a system. */
  serverOf(system: string): number | undefined {
    if (['oncegate-redis', 'express-redis', 'node-idempotency'].includes(system))
      return this.#servers.everysec.pid;
    if (system === 'oncegate-redis-always') return this.#servers.always.pid;
    return system === 'oncegate-postgres' ? this.#servers.postgres.pid : undefined;
  }

  async get({ system, size }: Pick<Cell, 'system' | 'size'>): Promise<System> {
    const name = `${system} ${size}`;
    const known = this.#started.get(name);
    if (known && known.process.exitCode === null && known.process.signalCode === null) return known;
    if (known && system.startsWith('oncegate')) throw new Error(`${name} exited unexpectedly`);
    if (known) report(`${name} exited unexpectedly; starting it again`);
    const appendfsync = system === 'oncegate-redis-always' ? 'always' : 'everysec';
    const started = await start(system, this.placeFor(size, appendfsync));
    this.#started.set(name, started);
    return started;
  }

  async end(): Promise<void> {
    await Promise.all([...this.#started.values()].map(({ process: child }) => end(child)));
  }
}

async function start(system: string, place: Place): Promise<System> {
  if (system.startsWith('oncegate-redis')) return await startOncegate('redis', place);
  if (system === 'oncegate-postgres') return await startOncegate('postgres', place);
  if (system === 'oncegate-sqlite') return await startOncegate('sqlite', place);
  return await startPeer(system, place);
}

async function bench(options: BenchOptions): Promise<Results> {
  const startedMs = performance.now();
  const root = mkdtempSync(join(tmpdir(), 'oncegate-bench-'));
  const seed = randomBytes(6).toString('hex');
  report('building');
  build();
  const redis = await launchRedis({ args: ['--appendfsync', 'everysec'] });
  const durableRedis = await launchRedis({ args: ['--appendfsync', 'always'] });
  const postgres = await launchPostgres({ shared_buffers: '128MB' });
  for (const { pid } of [redis, durableRedis, postgres]) pinned(pid);
  const backend = await startBackend(root);
  const systems = new Systems(root, backend, { everysec: redis, always: durableRedis, postgres });
  const results: Results = {
    ...{
      at: new Date().toISOString(),
      command: commandOf(options),
    },
    ...{ seconds: 0, machine: machine(), versions: versions(), seed, rounds: options.rounds },
    ...{
      cells: [],
      paced: [],
      growth: [],
      memory: [],
      startsMs: { yaml: [], json: [], hundred: [] },
      calibrationUs: [],
    },
  };
  try {
    const cells = cellsOf(options);
    for (let round = 1; round <= options.rounds; round++) {
      results.calibrationUs.push(calibrate());
      await runCells(cells, round, systems, results);
    }
    results.calibrationUs.push(calibrate());
    if (options.only === undefined) await runPaced(options, systems, results);
    await systems.end();
    const place = systems.placeFor(300);
    for (let i = 0; i < startsOf(options); i++) {
      for (const keyFormat of ['yaml', 'json'] as const) {
        const options = { keys: START_KEYS, keyFormat, core: CORES.both };
        const started = await startOncegate('sqlite', place, options);
        results.startsMs[keyFormat].push(Math.round(started.readyMs));
        await end(started.process);
      }
      const started = await startOncegate('sqlite', place, { core: CORES.both });
      results.startsMs.hundred.push(Math.round(started.readyMs));
      await end(started.process);
    }
    if (!options.quick) {
      results.growth = await growth(place, options.rounds, seed, report);
      const { keys, withinMs } = options.million ? A_MILLION : { ...A_MILLION, withinMs: MEMORY_WITHIN_MS };
      for (const store of ['redis', 'sqlite'] as const)
        results.memory.push(await memory(store, place, keys, withinMs, seed, report));
    }
  } catch (error) {
    writeFileSync(join(root, 'results.json'), JSON.stringify(results));
    report(`logs and the measurements so far: ${root}`);
    throw error;
  } finally {
    await systems.end();
    await end(backend.process);
    await Promise.all([redis.stop(), durableRedis.stop(), postgres.stop()]);
  }
  rmSync(root, { recursive: true, force: true });
  results.seconds = Math.round((performance.now() - startedMs) / 1000);
  return results;
}

function cellsOf({ quick, only }: BenchOptions): readonly Cell[] {
  if (only !== undefined) return ALL_CELLS.filter(({ work, size }) => only.includes(work) && size === 300);
  return quick ? QUICK_CELLS : ALL_CELLS;
}

function startsOf({ quick, only }: BenchOptions): number {
  if (only?.includes('start')) return STARTS;
  if (only !== undefined) return 0;
  return quick ? 1 : STARTS;
}

/** The command that repeats such a run. */
function commandOf({ quick, only, rounds, million }: BenchOptions): string {
  const which = only === undefined ? (quick ? ' --quick' : '') : ` --only ${only.join(',')}`;
  return `npm run bench --${which} --rounds ${rounds}${million ? ' --million' : ''}`;
}

async function runCells(
  cells: readonly Cell[],
  round: number,
  systems: Systems,
  results: Results,
): Promise<void> {
  for (const cell of cells) {
    const { work } = cell;
    const system = await systems.get(cell);
    // Replayed keys are the same in each round, new keys are different. No two cells share keys, because some peers share records.
    const cellKeys = `${results.seed}-${work}-${100 + ALL_CELLS.indexOf(cell)}`;
    const keys = work === 'replay' ? cellKeys : `${cellKeys}-${round}`;
    const warmKeys = work === 'replay' ? keys : `${keys}-warm`;
    // V8 drops compiled code of a process that rests, and it has rested while the others worked.
    if (system.warmFor.has(work)) await load(system, work, WARM_UP_S, warmKeys);
    else await warmUp(system, work, warmKeys);
    system.warmFor.add(work);
    const server = systems.serverOf(cell.system);
    const beforeUs = server === undefined ? 0 : cpuUs(server);
    const sentBefore = await systems.backendRequests();
    const run = await load(system, work, RUN_S, keys);
    const sent = (await systems.backendRequests()) - sentBefore;
    run.wrong += wrongExecutions(work, run.requests, sent);
    const storeCpuUs = server === undefined ? undefined : (cpuUs(server) - beforeUs) / run.requests;
    results.cells.push({ round, ...cell, ...run, ...(storeCpuUs !== undefined && { storeCpuUs }) });
    const wrong = run.wrong > 0 ? `, ${run.wrong} WRONG` : '';
    const ofStore = storeCpuUs === undefined ? '' : ` and ${storeCpuUs.toFixed(1)} µs of the store`;
    report(
      `${round}: ${nameOf(cell)}: ${run.perSecond}/s, ${run.cpuUs} µs${ofStore}, busy ${run.busy}${wrong}`,
    );
  }
}

/** New keys that the backend did not execute, and replays that it executed. */
function wrongExecutions(work: Work, answered: number, sent: number): number {
  if (work === 'replay') return sent;
  return work === 'mixed' ? 0 : Math.max(0, answered - sent);
}

async function runPaced({ quick }: BenchOptions, systems: Systems, results: Results): Promise<void> {
  const seconds = quick ? 2 : PACED_S;
  for (let round = 1; round <= (quick ? 1 : PACED_ROUNDS); round++) {
    for (const name of PACED_SYSTEMS) {
      const { backendUrl } = systems.placeFor(300);
      const port =
        name === 'backend'
          ? Number(new URL(backendUrl).port)
          : (await systems.get({ system: name, size: 300 })).port;
      const keys = `${results.seed}-paced-${PACED_SYSTEMS.indexOf(name)}-${round}`;
      const run = await paced(name, port, { round, seconds, keys });
      results.paced.push(run);
      report(
        `${round}: 500 a second: ${name}: p50 ${run.p50Ms} ms, p99 ${run.p99Ms} ms, ${run.late} late, ${run.refused} refused, ${run.wrong} wrong`,
      );
    }
  }
}

async function main(args: string[]): Promise<number> {
  let options: BenchOptions | 'help';
  try {
    options = optionsOf(args);
  } catch (error) {
    process.stderr.write(`bench: ${(error as Error).message}\n\n${USAGE}`);
    return 64;
  }
  if (options === 'help') {
    process.stdout.write(USAGE);
    return 0;
  }
  const results = await bench(options);
  process.stdout.write(describeRun(results, options.only !== undefined));
  writeFileSync(RESULTS, `${JSON.stringify(results)}\n`);
  return wrongOf(results) === 0 ? 0 : 1;
}

/** Unsuccessful answers of oncegate. A figure that includes them means nothing. */
function wrongOf({ cells, paced: runs }: Results): number {
  const ours = [...cells, ...runs].filter(({ system }) => system.startsWith('oncegate'));
  return ours.reduce((sum, { wrong }) => sum + wrong, 0);
}

process.exitCode = await main(process.argv.slice(2));
