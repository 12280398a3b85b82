import { type ChildProcess, execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { NODE_FLAGS } from '../scripts/node-flags.ts';
import { hashSecret } from '../src/keys/key-index.ts';
import { freePort } from '../test/support/free-port.ts';
import { untilListening } from './listening.ts';
import { nginxProxy } from './nginx.ts';
import { CORES, startPinned } from './processes.ts';

const MAIN = fileURLToPath(new URL('../dist/main.js', import.meta.url));
const PEERS = fileURLToPath(new URL('./peers/', import.meta.url));

/** The secret key of the run; the key file has its HMAC. */
export const SECRET = 'sk_bench_0000000000000000000000000000';
const PEPPER = 'the benchmark has no secrets';

export interface Place {
  /** A folder for all files of the run. */
  root: string;
  backendUrl: string;
  redisUrl: string;
  /** Of a server whose schema is prepared. */
  postgresUrl?: string;
}

/** A running system under test. */
export interface System {
  url: string;
  port: number;
  process: ChildProcess;
  /** Workloads that it is already warm for. */
  warmFor: Set<string>;
  /** From the start of its process to its first connection, in milliseconds. */
  readyMs: number;
}

/** How a system is started; systems that are not named here are `peers/NAME.mjs`. */
export type Flavour = 'redis' | 'sqlite' | 'postgres';

export async function startPeer(name: string, { root, backendUrl, redisUrl }: Place): Promise<System> {
  const port = await freePort();
  const logFile = join(root, `${name}-${port}.log`);
  const startedMs = performance.now();
  if (name === 'nginx') {
    const { conf, folder } = nginxProxy(root, port, backendUrl);
    return await ready(
      port,
      startPinned(CORES.system, 'nginx', ['-c', conf, '-p', folder], { logFile }),
      startedMs,
    );
  }
  const env = { PORT: `${port}`, BACKEND_URL: backendUrl, REDIS_URL: redisUrl, FOLDER: root, SECRET };
  const child = startPinned(CORES.system, process.execPath, [join(PEERS, `${name}.mjs`)], { env, logFile });
  return await ready(port, child, startedMs);
}

export type KeyFormat = 'yaml' | 'json';

export interface OncegateOptions {
  /** The folder of the SQLite store; by default a new one. */
  dataPath?: string;
  /** How many secret keys the key file has, each of a different merchant. */
  keys?: number;
  /** The format of the key file. */
  keyFormat?: KeyFormat;
  /** By default the core of the system under test. */
  core?: string;
  /** The entry point of the gateway's build; by default that of this working tree. */
  main?: string;
  /** The configuration's section; by default that of the flavour. */
  store?: object;
}

/** The gateway as users run it: built, with default options, its log in a file. */
export async function startOncegate(
  flavour: Flavour,
  { root, backendUrl, redisUrl, postgresUrl }: Place,
  { dataPath, keys = 100, keyFormat = 'yaml', core = CORES.system, main = MAIN, store }: OncegateOptions = {},
): Promise<System> {
  const [port, adminPort] = [await freePort(), await freePort()];
  const folder = join(root, `oncegate-${port}`);
  mkdirSync(folder, { recursive: true });
  const ofFlavour = {
    redis: { kind: 'redis', url: redisUrl },
    postgres: { kind: 'postgres', url: postgresUrl },
    sqlite: { kind: 'sqlite', path: dataPath ?? join(folder, 'data') },
  }[flavour];
  const config = {
    listen: { host: '127.0.0.1', port },
    admin: { port: adminPort },
    upstream: { url: backendUrl },
    store: store ?? ofFlavour,
    auth: { pepper: PEPPER, keys: { source: 'file', path: keyFile(folder, keys, keyFormat) } },
    shutdown: { delayMs: 0 },
  };
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(config), { mode: 0o600 });
  const startedMs = performance.now();
  const logFile = join(folder, 'log');
  const args = [...NODE_FLAGS, main, 'serve', '--config', file];
  const child = startPinned(core, process.execPath, args, { logFile });
  return await ready(port, child, startedMs);
}

function keyFile(folder: string, count: number, format: KeyFormat): string {
  const path = join(folder, `keys.${format}`);
  const merchants = Array.from({ length: count }, (_, i) => ({
    code: `M-${1000 + i}`,
    keys: [{ id: 'bench', hash: `hmac-sha256:${hashSecret(PEPPER, i === 0 ? SECRET : `sk_bench_${i}`)}` }],
  }));
  const text = format === 'json' ? JSON.stringify({ merchants }) : stringify({ merchants });
  writeFileSync(path, text, { mode: 0o600 });
  return path;
}

async function ready(port: number, child: ChildProcess, startedMs: number): Promise<System> {
  const died = new Promise<never>((_, reject) => {
    child.once('exit', (code) =>
      reject(new Error(`${child.spawnargs.slice(3).join(' ')} ended (${code}) before it was ready`)),
    );
  });
  died.catch(() => {});
  await Promise.race([untilListening(port), died]);
  const readyMs = performance.now() - startedMs;
  return { url: `http://127.0.0.1:${port}`, port, process: child, readyMs, warmFor: new Set() };
}

/** Compiles the gateway into `dist`. */
export function build(): void {
  const script = fileURLToPath(new URL('../scripts/build.ts', import.meta.url));
  execFileSync(process.execPath, [script], { stdio: ['ignore', 'ignore', 'inherit'] });
}
