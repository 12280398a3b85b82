/**
 * Compares versions of the gateway, and peers: `node bench/versions.ts WORKS STORE SYSTEM SYSTEM...`, for example
 * `node bench/versions.ts first,replay redis ../before .`. A SYSTEM is a working tree with a build (`npm run build`), or with
 * another store in front of it (`sqlite=.`), or a peer (`node-idempotency`), whose packages `npm ci --ignore-scripts --prefix bench/peers`
 * installs. Name one build twice (as a copy) to see how far a version is from itself.
 *
 * Prints the processor time for each request, of the gateway and of its store's server, and the ratio to the first system with its
 * standard error. A server that a system does not use is idle, and costs a few hundredths. All systems work at the same time and on
 * the same core, so all of them see the same machine. (Slices that alternate differ by a tenth, and V8 drops code of a process that rests
 * meanwhile.) All systems are started again for each ratio, because two processes of one build differ, too. STARTS sets how often;
 * default 8.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { launchPostgres } from '../test/support/postgres-process.ts';
import { launchRedis } from '../test/support/redis-process.ts';
import { load, WARM_UP_S, type Work } from './load.ts';
import { startBackend } from './nginx.ts';
import { cpuUs, end, pinned } from './processes.ts';
import { type Flavour, type System, startOncegate, startPeer } from './systems.ts';

const STARTS = Number(process.env.STARTS ?? 8);
const MEASURED_S = 10;
/** After so many V8 compiles next to nothing more. All systems have the same number of them, so that all work until the end. */
const WARM_UPS = 8;

const [works = '', store = '', ...names] = process.argv.slice(2);
const systems = names.map((name) => {
  const [, own = store, folder = name] = /^(redis|postgres|sqlite)=(.*)$/.exec(name) ?? [];
  const isPeer = existsSync(new URL(`peers/${name}.mjs`, import.meta.url));
  return { name, store: own as Flavour, folder, isPeer };
});
const missing = systems.filter(({ isPeer, folder }) => !isPeer && !existsSync(join(folder, 'dist/main.js')));
if (systems.length < 2 || !['redis', 'sqlite', 'postgres'].includes(store) || missing.length > 0) {
  const built = missing
    .map(({ folder }) => `\nthere is no build in ${folder}, and no peer of this name`)
    .join('');
  process.stderr.write(`node bench/versions.ts WORKS redis|postgres|sqlite SYSTEM SYSTEM...${built}\n`);
  process.exit(64);
}

/** A system under test. Each has its own server, because a version refuses the format of another one. */
interface Compared {
  name: string;
  system: System;
  server: { url: string; pid: number; stop(): Promise<void> };
  /** What the keys of its payouts begin with. */
  keys: string;
}

/** Processor time for each request, in microseconds. */
interface Cost {
  gateway: number;
  server: number;
}

const root = mkdtempSync(join(tmpdir(), 'oncegate-bench-'));
const backend = await startBackend(root);
const running = new Set<Compared>();

async function start({ name, store, folder, isPeer }: (typeof systems)[number]): Promise<Compared> {
  // Redis rewrites a grown append-only file in the background: within some measurements, and not within others.
  const noRewrite = ['--auto-aof-rewrite-percentage', '0'];
  const server =
    store === 'postgres' && !isPeer
      ? await launchPostgres({ shared_buffers: '128MB' })
      : await launchRedis({ args: ['--appendfsync', 'everysec', ...noRewrite] });
  pinned(server.pid);
  const { url } = server;
  const place = { root, backendUrl: backend.urls[300], redisUrl: url, postgresUrl: url };
  const system = isPeer
    ? await startPeer(name, place)
    : await startOncegate(store, place, { main: resolve(folder, 'dist/main.js') });
  const compared = { name, system, server, keys: randomBytes(4).toString('hex') };
  running.add(compared);
  return compared;
}

async function stop(compared: Compared): Promise<void> {
  await end(compared.system.process);
  await compared.server.stop();
  running.delete(compared);
}

async function measure({ name, system, server, keys }: Compared, work: Work): Promise<Cost> {
  for (let each = 0; each < WARM_UPS; each++)
    await load(system, work, WARM_UP_S, work === 'replay' ? keys : `${keys}-${each}`);
  const before = cpuUs(server.pid);
  const run = await load(system, work, MEASURED_S, keys);
  if (run.wrong > 0)
    process.stderr.write(`${name}: ${run.wrong} of ${run.requests} answers to ${work} were wrong\n`);
  return { gateway: run.cpuUs, server: (cpuUs(server.pid) - before) / run.requests };
}

/** Of what is compared as ratios: the geometric mean, and its standard error as a part of it. */
function meanOf(ratios: readonly number[]): [mean: number, error: number] {
  const logs = ratios.map(Math.log);
  const mean = logs.reduce((sum, log) => sum + log, 0) / logs.length;
  const squares = logs.reduce((sum, log) => sum + (log - mean) ** 2, 0);
  return [Math.exp(mean), Math.sqrt(squares / (logs.length - 1) / logs.length)];
}

/** Every second time in the other order: what is started first has another place in memory, and begins earlier. */
const inTurn = <T>(each: number, list: readonly T[]): T[] => (each % 2 === 0 ? [...list] : list.toReversed());

function print(work: Work, costs: readonly Cost[][]): void {
  const usesServer = store !== 'sqlite' && ['first', 'replay', 'mixed'].includes(work);
  const parts = usesServer ? (['gateway', 'server'] as const) : (['gateway'] as const);
  for (const part of parts)
    for (const [which, { name }] of systems.entries()) {
      const own = costs.map((cost) => cost[which]?.[part] as number);
      const [ratio, error] = meanOf(own.map((cost, each) => cost / (costs[each]?.[0]?.[part] as number)));
      const spread = `${Math.min(...own).toFixed(1)} to ${Math.max(...own).toFixed(1)} µs`;
      const cells = [work, part, name, spread, `${ratio.toFixed(3)} × ± ${error.toFixed(3)}`];
      process.stdout.write(`${cells.join('  ')}\n`);
    }
}

try {
  for (const work of works.split(',') as Work[]) {
    const costs: Cost[][] = [];
    for (let each = 0; each < STARTS; each++) {
      const compared: Compared[] = [];
      for (const system of inTurn(each, systems)) compared.push(await start(system));
      costs.push(inTurn(each, await Promise.all(compared.map((one) => measure(one, work)))));
      for (const one of compared) await stop(one);
    }
    print(work, costs);
  }
} finally {
  for (const one of running) await stop(one);
  await end(backend.process);
  rmSync(root, { recursive: true, force: true });
}
