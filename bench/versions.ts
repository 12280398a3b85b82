/**
 * Compares versions of the gateway: `node bench/versions.ts WORKS STORE DIR DIR...`, for example
 * `node bench/versions.ts first,replay redis ../before .`. Each DIR is a working tree with a build (`npm run build`).
 *
 * Prints the processor time for each request, of the gateway and of its Redis. Slices of load alternate between the versions, so
 * that all of them see the same machine. Each round begins with another version, because a slice's place in the round changes
 * its cost by up to a tenth. The ratios to the first one are taken within a round. All versions are started again after every
 * third round, because two processes of one build differ by up to a tenth, too. ROUNDS sets the number of rounds; default 9.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { launchRedis } from '../test/support/redis-process.ts';
import { load, type Work, warmUp } from './load.ts';
import { startBackend } from './nginx.ts';
import { cpuUs, end, pinned } from './processes.ts';
import { type System, startOncegate } from './systems.ts';

const ROUNDS = Number(process.env.ROUNDS ?? 9);
const ROUNDS_A_START = 3;
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
const backend = await startBackend(root);

/** A version under test. Each has its own Redis, because a version refuses the format of another one. */
interface Version {
  system: System;
  redis: Awaited<ReturnType<typeof launchRedis>>;
}

async function start(folder: string): Promise<Version> {
  const redis = await launchRedis({ args: ['--appendfsync', 'everysec'] });
  redises.add(redis);
  pinned(redis.pid);
  const place = { root, backendUrl: backend.urls[300], redisUrl: redis.url };
  const main = resolve(folder, 'dist/main.js');
  return { system: await startOncegate(store as 'redis' | 'sqlite', place, { main }), redis };
}

const redises = new Set<Version['redis']>();
try {
  for (const work of works.split(',') as Work[]) {
    const costs = { gateway: folders.map((): number[] => []), redis: folders.map((): number[] => []) };
    for (let begun = 0; begun < ROUNDS; begun += ROUNDS_A_START) {
      const seed = randomBytes(4).toString('hex');
      const versions: Version[] = [];
      for (const folder of folders) versions.push(await start(folder));
      for (let round = -WARM_UPS; round < Math.min(ROUNDS_A_START, ROUNDS - begun); round++) {
        for (const place of versions.keys()) {
          const which = (place + begun + round + WARM_UPS) % versions.length;
          const { system, redis } = versions[which] as Version;
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
      for (const { system, redis } of versions) {
        await end(system.process);
        await redis.stop();
        redises.delete(redis);
      }
    }
    for (const part of store === 'redis' ? (['gateway', 'redis'] as const) : (['gateway'] as const)) {
      const [first = []] = costs[part];
      for (const [which, folder] of folders.entries()) {
        const own = costs[part][which] ?? [];
        const ratio = median(own.map((cost, round) => cost / (first[round] as number)));
        const spread = `${Math.min(...own).toFixed(1)} to ${Math.max(...own).toFixed(1)}`;
        const cells = [work, part, folder, `${median(own).toFixed(1)} µs`, spread, `${ratio.toFixed(3)} ×`];
        process.stdout.write(`${cells.join('  ')}\n`);
      }
    }
  }
} finally {
  await end(backend.process);
  await Promise.all([...redises].map((redis) => redis.stop()));
  rmSync(root, { recursive: true, force: true });
}
