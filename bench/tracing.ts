/**
 * What tracing costs: `node bench/tracing.ts [ROUNDS] [MAIN]`. Gateways on Redis without tracing, with one request in a hundred
 * recorded and with every request recorded do the same work in turn. MAIN is the entry point of another build, without
 * tracing, to compare with. Prints a Markdown table of ratios of processor time per request. It takes a minute for two rounds.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { freePort } from '../test/support/free-port.ts';
import { launchRedis } from '../test/support/redis-process.ts';
import { untilListening } from './listening.ts';
import { load, type Work, warmUp } from './load.ts';
import { startBackend } from './nginx.ts';
import { CORES, end, pinned, startPinned } from './processes.ts';
import { median } from './results.ts';
import { build, type Place, type System, startOncegate } from './systems.ts';

const SLICE_S = 2;
const WORKS: readonly Work[] = ['balance', 'first', 'replay'];

/** Takes every request, and keeps nothing. */
function collect(port: number): void {
  createServer((req, res) => {
    req.resume().once('end', () => res.end('{}'));
  }).listen(port, '127.0.0.1');
}

async function startSystems(place: Place, endpoint: string, other: string | undefined) {
  const systems: [string, System][] = [];
  if (other !== undefined)
    systems.push(['another build', await startOncegate('redis', place, { main: other })]);
  systems.push(['off', await startOncegate('redis', place)]);
  for (const ratio of [0.01, 1])
    systems.push([`ratio ${ratio}`, await startOncegate('redis', place, { tracing: { endpoint, ratio } })]);
  return systems;
}

async function bench(rounds: number, other: string | undefined): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'oncegate-bench-'));
  build();
  const redis = await launchRedis({ args: ['--appendfsync', 'everysec'] });
  pinned(redis.pid);
  const backend = await startBackend(root);
  const port = await freePort();
  const self = fileURLToPath(import.meta.url);
  const collector = startPinned(CORES.rest, process.execPath, [self, '--collect', `${port}`], {
    logFile: join(root, 'collector.log'),
  });
  await untilListening(port);
  const place = { root, backendUrl: backend.urls[300], redisUrl: redis.url };
  const systems = await startSystems(place, `http://127.0.0.1:${port}`, other);
  const seed = randomBytes(6).toString('hex');
  process.stdout.write(
    '| work | CPU µs, off | ratio of processor time, median (lowest to highest) |\n|---|---|---|\n',
  );
  try {
    for (const work of WORKS) {
      const us = new Map<string, number[]>(systems.map(([name]) => [name, []]));
      // Replayed keys are the same in each slice, new keys are different.
      const keysOf = (name: string, slice: string) =>
        `${seed}-${work}-${name}${work === 'replay' ? '' : `-${slice}`}`;
      for (const [name, system] of systems) await warmUp(system, work, keysOf(name, 'warm'));
      for (let round = 0; round < rounds; round++) {
        for (const [name, system] of systems) {
          const { cpuUs, wrong } = await load(system, work, SLICE_S, keysOf(name, `${round}`));
          if (wrong > 0) process.stderr.write(`${name}, ${work}: ${wrong} answers were wrong\n`);
          us.get(name)?.push(cpuUs);
        }
      }
      const off = us.get('off') as number[];
      const says = [...us].flatMap(([name, values]) => {
        const ratios = values.map((value, round) => value / (off[round] as number));
        const [least, most] = [Math.min(...ratios), Math.max(...ratios)].map((ratio) => ratio.toFixed(2));
        return name === 'off' ? [] : [`${name}: ${median(ratios).toFixed(2)} (${least} to ${most})`];
      });
      process.stdout.write(`| ${work} | ${median(off).toFixed(1)} | ${says.join('; ')} |\n`);
    }
  } finally {
    for (const [, { process: child }] of systems) await end(child);
    await end(collector);
    await end(backend.process);
    await redis.stop();
    rmSync(root, { recursive: true });
  }
}

const [first = '6', second] = process.argv.slice(2);
if (first === '--collect') collect(Number(second));
else await bench(Number(first), second);
