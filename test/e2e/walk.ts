/**
 * `npm run walk` prints which functions of `src` a first payout, a replay and a balance read enter, as V8 counts them in a real
 * gateway in this process. `-- redis`, `-- postgres`: with that store, otherwise SQLite. `-- --json`: for programs.
 *
 * A function counts once, however often a request calls it: getters, callbacks and constructors too. What timers call does not count,
 * nor does SQLite's writer thread.
 */
import { randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { Session } from 'node:inspector/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { configSchema } from '../../src/config/schema.ts';
import { RunningGateway } from '../../src/gateway/gateway.ts';
import { listen } from '../../src/gateway/http-server.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { createSandbox } from '../../src/sandbox/create-sandbox.ts';
import { BEARER, send, withdraw } from '../support/client.ts';
import { launchPostgres } from '../support/postgres-process.ts';
import { launchRedis } from '../support/redis-process.ts';

/** The functions of each file of `src`, as `name:line:column`. */
export type Walk = Record<string, string[]>;

const SRC = new URL('../../src/', import.meta.url).href;
/** How often each request is sent, so that what happens beside it is in some rounds only. */
const ROUNDS = 10;
/** What happens behind an answer: the log line, the metrics, the slot. */
const AFTERWARDS_MS = 20;

/** Whether a request is under way whose functions are counted. */
let isCounting = false;
holdTimers();

const [kind = 'sqlite'] = process.argv.filter((word) => word === 'redis' || word === 'postgres');
const server = kind === 'sqlite' ? undefined : await (kind === 'redis' ? launchRedis() : launchPostgres());
const folder = mkdtempSync(join(tmpdir(), 'oncegate-walk-'));
const sandbox = await createSandbox({ port: 0 });
const keys = join(folder, 'keys.yaml');
writeFileSync(
  keys,
  'merchants: [{ code: M-ALPHA, keys: [{ id: alpha-1, dangerouslyPlainSecret: sk_sandbox_alpha }] }]',
);
const config = configSchema.parse({
  upstream: { url: sandbox.url },
  auth: { keys: { source: 'file', path: keys } },
  store: server ? { kind, url: server.url } : { kind, path: join(folder, 'data') },
});
const logger = pino(pino.destination('/dev/null'));
const gateway = await RunningGateway.open(config, { clock: systemClock, logger });
const url = `http://127.0.0.1:${await listen(gateway.server, '127.0.0.1', 0)}`;
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

const session = new Session();
session.connect();
await session.post('Profiler.enable');
await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });

/**
 * Timers that are due while a request is counted wait once more. On a slow machine a request takes so long that some of them would be
 * due in each round.
 */
function holdTimers(): void {
  const { setTimeout, setInterval } = globalThis;
  const later = (act: (...args: unknown[]) => void, ms?: number, ...args: unknown[]) => {
    const timer = setTimeout(() => {
      if (isCounting) timer.refresh();
      else act(...args);
    }, ms);
    return timer;
  };
  const again = (act: (...args: unknown[]) => void, ms?: number, ...args: unknown[]) =>
    setInterval(() => {
      if (!isCounting) act(...args);
    }, ms);
  Object.assign(globalThis, { setTimeout: later, setInterval: again });
}

/** The functions that were entered since this was called last, as `file name:line`. */
async function entered(): Promise<Set<string>> {
  const { result } = await session.post('Profiler.takePreciseCoverage');
  const found = new Set<string>();
  for (const { url: file, functions } of result) {
    if (!file.startsWith(SRC) || file.startsWith(`${SRC}sandbox/`)) continue;
    const source = readFileSync(new URL(file), 'utf8');
    for (const { functionName, ranges } of functions) {
      const [{ count, startOffset } = { count: 0, startOffset: 0 }] = ranges;
      if (count === 0) continue;
      const lines = source.slice(0, startOffset).split('\n');
      const place = `${lines.length}:${(lines.at(-1)?.length ?? 0) + 1}`;
      found.add(`${file.slice(SRC.length)} ${functionName.replaceAll(' ', '_') || '=>'}:${place}`);
    }
  }
  return found;
}

/** The functions that each of several requests enters. */
async function walkOf(request: () => Promise<unknown>): Promise<Walk> {
  await request();
  let common: string[] | undefined;
  for (let round = 0; round < ROUNDS; round++) {
    await sleep(AFTERWARDS_MS);
    await entered();
    isCounting = true;
    await request();
    await sleep(AFTERWARDS_MS);
    const found = await entered();
    isCounting = false;
    common = common?.filter((one) => found.has(one)) ?? [...found];
  }
  const walk: Walk = {};
  for (const one of (common ?? []).sort()) {
    const [file = '', name = ''] = one.split(' ');
    walk[file] = [...(walk[file] ?? []), name];
  }
  return walk;
}

const key = randomUUID();
await withdraw(url, { key, agent });
const walks: Record<string, Walk> = {
  'first payout': await walkOf(() => withdraw(url, { key: randomUUID(), agent })),
  replay: await walkOf(() => withdraw(url, { key, agent })),
  balance: await walkOf(() => send(url, { path: '/v2/get_balance', headers: BEARER, agent })),
};

agent.destroy();
await gateway.shutdownNow();
await sandbox.close();
await server?.stop();
rmSync(folder, { recursive: true });

if (process.argv.includes('--json')) console.log(JSON.stringify(walks));
else
  for (const [name, walk] of Object.entries(walks)) {
    const files = Object.entries(walk);
    console.log(`${name}: ${files.flatMap(([, names]) => names).length} functions in ${files.length} files`);
    for (const [file, names] of files) console.log(`  ${file}  ${names.join(' ')}`);
  }
