/**
 * `node bench/rest.ts [FLAG OF NODE...]`: the processor time of a first payout on Redis in a gateway that is warm, and in the first
 * seconds after it has rested. Each figure is that of a load of two seconds.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { NODE_FLAGS } from '../scripts/node-flags.ts';
import { launchRedis } from '../test/support/redis-process.ts';
import { load, WARM_UP_S, warmUp } from './load.ts';
import { startBackend } from './nginx.ts';
import { end, pinned } from './processes.ts';
import { build, startOncegate } from './systems.ts';

const REST_MS = 30_000;
const RESTS = 2;
const LOADS = 3;

build();
NODE_FLAGS.push(...process.argv.slice(2));
const root = mkdtempSync(join(tmpdir(), 'oncegate-bench-'));
const backend = await startBackend(root);
const redis = await launchRedis({ args: ['--appendfsync', 'everysec'] });
pinned(redis.pid);
try {
  const place = { root, backendUrl: backend.urls[300], redisUrl: redis.url, postgresUrl: '' };
  const system = await startOncegate('redis', place);
  await warmUp(system, 'first', 'warm-up');
  for (let rest = 0; rest <= RESTS; rest++) {
    if (rest > 0) await sleep(REST_MS);
    const costs: number[] = [];
    for (let each = 0; each < LOADS; each++)
      costs.push((await load(system, 'first', WARM_UP_S, `${rest}-${each}`)).cpuUs);
    process.stdout.write(`${rest === 0 ? 'warm' : 'after a rest'}: ${costs.join(', ')} µs\n`);
  }
  await end(system.process);
} finally {
  await redis.stop();
  await end(backend.process);
  rmSync(root, { recursive: true, force: true });
}
