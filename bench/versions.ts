/**
 * Compares versions of the gateway: `node bench/versions.ts WORKS STORE DIR DIR...`, for example
 * `node bench/versions.ts first,replay redis ../before .`. Each DIR is a working tree with a build (`npm run build`).
 *
 * Slices of load alternate between the versions, so that all of them see the same machine. The ratios to the first one are
 * taken within a round. ROUNDS sets the number of rounds; default 8.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { launchRedis } from '../test/support/redis-process.ts';
import { load, type Work, warmUp } from './load.ts';
import { startBackend } from './nginx.ts';
import { end, pinned } from './processes.ts';
import { startOncegate } from './systems.ts';

const ROUNDS = Number(process.env.ROUNDS ?? 8);
const SLICE_S = 2;

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
const redis = await launchRedis({ args: ['--appendfsync', 'everysec'] });
pinned(redis.pid);
const backend = await startBackend(root);
try {
  const systems = [];
  for (const folder of folders) {
    const place = { root, backendUrl: backend.urls[300], redisUrl: redis.url };
    const main = resolve(folder, 'dist/main.js');
    systems.push({ folder, system: await startOncegate(store as 'redis' | 'sqlite', place, { main }) });
  }
  for (const work of works.split(',') as Work[]) {
    const seed = randomBytes(4).toString('hex');
    const costs = systems.map((): number[] => []);
    for (let round = -1; round < ROUNDS; round++) {
      for (const [which, { system }] of systems.entries()) {
        const keys = `${seed}-${which}${work === 'replay' ? '' : `-${round}`}`;
        if (round < 0) await warmUp(system, work, keys);
        else costs[which]?.push((await load(system, work, SLICE_S, keys)).cpuUs);
      }
    }
    const [first = []] = costs;
    for (const [which, { folder }] of systems.entries()) {
      const own = costs[which] ?? [];
      const ratio = median(own.map((cost, round) => cost / (first[round] as number)));
      const spread = `${Math.min(...own)} to ${Math.max(...own)}`;
      const cells = [work, folder, `${median(own)} µs`, spread, `${ratio.toFixed(3)} ×`];
      process.stdout.write(`${cells.join('  ')}\n`);
    }
  }
  await Promise.all(systems.map(({ system }) => end(system.process)));
} finally {
  await end(backend.process);
  await redis.stop();
  rmSync(root, { recursive: true, force: true });
}
