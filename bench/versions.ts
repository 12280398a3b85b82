/**
 * Compares versions of the gateway: `node bench/versions.ts WORKS STORE DIR DIR...`, for example
 * `node bench/versions.ts first,replay redis ../before .`. Each DIR is a working tree with a build (`npm run build`).
 *
 * Prints the processor time for each request, of the gateway and of its Redis. Slices of load alternate between the versions, so
 * that all of them see the same machine. Each round begins with another version, because a slice's place in the round changes
 * its cost by up to a tenth. The ratios to the first one are taken within a round. ROUNDS sets the number of rounds; default 8.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { launchRedis } from '../test/support/redis-process.ts';
import { load, type Work, warmUp } from './load.ts';
import { startBackend } from './nginx.ts';
import { cpuUs, end, pinned } from './processes.ts';
import { startOncegate } from './systems.ts';

const ROUNDS = Number(process.env.ROUNDS ?? 8);
const SLICE_S = 2;
/** After so many slices V8 compiles next to nothing more. After one, it costs a busy gateway a tenth of its time. */
const WARM_UPS = 6;

const [works = '', store = '', ...folders] = process.argv.slice(2);
const missing = folders.filter((folder) => !existsSync(join(folder, 'dist/main.js')));
if (folders.length < 2 || !['redis', 'sqlite'].includes(store) || missing.length > 0) {
  const built = missing.map((folder) => `\nthere is no build in ${folder}`).join('');
  process.stderr.write(`node bench/versions.ts WORKS redis|sqlite DIR DIR...${built}\n`);
  process.exit(64);
}

const median = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[values.length >> 1] as number;

const root = mkdtempSync(join(tmpdir(), 'oncegate-bench-'));
/** One for each version, because one refuses the format of another. */
const servers: Awaited<ReturnType<typeof launchRedis>>[] = [];
const backend = await startBackend(root);
try {
  const systems = [];
  for (const folder of folders) {
    const redis = await launchRedis({ args: ['--appendfsync', 'everysec'] });
    pinned(redis.pid);
    servers.push(redis);
    const place = { root, backendUrl: backend.urls[300], redisUrl: redis.url };
    const main = resolve(folder, 'dist/main.js');
    const system = await startOncegate(store as 'redis' | 'sqlite', place, { main });
    systems.push({ folder, system, redis });
  }
  for (const work of works.split(',') as Work[]) {
    const seed = randomBytes(4).toString('hex');
    const costs = { gateway: systems.map((): number[] => []), redis: systems.map((): number[] => []) };
    for (let round = -WARM_UPS; round < ROUNDS; round++) {
      for (const place of systems.keys()) {
        const which = (place + round + WARM_UPS) % systems.length;
        const { system, redis } = systems[which] as (typeof systems)[number];
        const keys = `${seed}-${which}${work === 'replay' ? '' : `-${round}`}`;
        if (round < 0) {
          await warmUp(system, work, keys);
          continue;
        }
        const before = cpuUs(redis.pid);
        const run = await load(system, work, SLICE_S, keys);
        costs.gateway[which]?.push(run.cpuUs);
        costs.redis[which]?.push((cpuUs(redis.pid) - before) / run.requests);
      }
    }
    for (const part of store === 'redis' ? (['gateway', 'redis'] as const) : (['gateway'] as const)) {
      const [first = []] = costs[part];
      for (const [which, { folder }] of systems.entries()) {
        const own = costs[part][which] ?? [];
        const ratio = median(own.map((cost, round) => cost / (first[round] as number)));
        const spread = `${Math.min(...own).toFixed(1)} to ${Math.max(...own).toFixed(1)}`;
        const cells = [work, part, folder, `${median(own).toFixed(1)} µs`, spread, `${ratio.toFixed(3)} ×`];
        process.stdout.write(`${cells.join('  ')}\n`);
      }
    }
  }
  await Promise.all(systems.map(({ system }) => end(system.process)));
} finally {
  await end(backend.process);
  await Promise.all(servers.map((redis) => redis.stop()));
  rmSync(root, { recursive: true, force: true });
}
