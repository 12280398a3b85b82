import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll } from 'vitest';
import { type ConfigInput, configFile, temporaryFolder } from './config.ts';
import { checkLine } from './log-lines.ts';

/** The delivered command, which vitest's global setup bundles from the sources. */
export const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));

const children = new Set<ChildProcess>();
const endAll = () => {
  for (const child of children) child.kill('SIGKILL');
};
process.once('exit', endAll);
// vitest kills its processes without an 'exit' event.
afterAll(endAll);

/** A gateway in its own process. */
export interface SpawnedGateway {
  child: ChildProcess;
  pid: number;
  url: string;
  port: number;
  adminUrl: string;
  /** The configuration file. */
  file: string;
  /** Lines of standard output so far. */
  lines: string[];
  /** Sends SIGTERM or another signal. Returns the exit code, or the name of the signal that killed the process. */
  end(signal?: NodeJS.Signals): Promise<number | string | null>;
}

/** A child process that is killed when this one exits, whatever happens. */
export function track(child: ChildProcess): ChildProcess {
  children.add(child);
  child.once('exit', () => children.delete(child));
  return child;
}

/** Starts a program with these as file descriptors 3, 4, ... A shell knows the process id that LISTEN_PID has to name. */
export function spawnInheriting(
  inherited: readonly (Socket | number)[],
  [program, ...args]: readonly [string, ...string[]],
  env: NodeJS.ProcessEnv,
): ChildProcess {
  const script = 'LISTEN_PID=$$ exec "$@"';
  return spawn('/bin/sh', ['-c', script, 'sh', program, ...args], {
    env: { LISTEN_FDS: `${inherited.length}`, ...env },
    stdio: ['pipe', 'pipe', 'pipe', ...inherited],
  });
}

/**
 * Runs `oncegate serve` and resolves when it listens.
 *
 * @param folder for the configuration file. Concurrent tests pass their own: the default one is removed after the test
 * @param inherited a listening socket, as systemd passes it: see `SharedSocket`
 * @throws with its standard error if it exits before it listens
 */
export async function spawnGateway(
  config: ConfigInput,
  env: NodeJS.ProcessEnv = {},
  folder: string = temporaryFolder(),
  inherited?: Socket,
): Promise<SpawnedGateway> {
  const file = configFile(config, folder);
  const args = [MAIN, 'serve', '--config', file];
  const all = { ...process.env, ...env };
  const child = track(
    inherited
      ? spawnInheriting([inherited], [process.execPath, ...args], all)
      : spawn(process.execPath, args, { env: all }),
  );
  const lines: string[] = [];
  let errors = '';
  child.stderr?.on('data', (chunk) => {
    errors += chunk;
  });
  const listening = new Promise<{ port: number; adminPort: number }>((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', (line) => {
      lines.push(line);
      if (line.startsWith('{')) checkLine(line, JSON.parse(line));
      if (line.includes('"msg":"listening"')) resolve(JSON.parse(line));
    });
    child.once('exit', (code, signal) =>
      reject(new Error(`the gateway ended (${signal ?? code}): ${errors}`)),
    );
  });
  const { port, adminPort } = await listening;
  return {
    child,
    pid: child.pid as number,
    url: `${config.listen?.tls ? 'https' : 'http'}://127.0.0.1:${port}`,
    port,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    file,
    lines,
    async end(signal = 'SIGTERM') {
      if (child.exitCode !== null || child.signalCode !== null) return child.exitCode ?? child.signalCode;
      const exited = once(child, 'exit');
      child.kill(signal);
      const [code, name] = await exited;
      return code ?? name;
    },
  };
}
