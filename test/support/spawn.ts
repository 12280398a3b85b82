import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { atEndOfFile } from './at-end-of-file.ts';
import { type ConfigInput, configFile } from './config.ts';
import { checkLine } from './log-lines.ts';
import { until } from './until.ts';

/** The delivered command, which vitest's global setup bundles from the sources. */
export const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));

const children = new Set<ChildProcess>();
const endAll = () => {
  for (const child of children) child.kill('SIGKILL');
  children.clear();
};
process.once('exit', endAll);
// vitest ends its processes by SIGTERM, which raises no 'exit' event. If a file fails while it loads, nothing else ends its servers.
process.once('SIGTERM', () => process.exit(143));
atEndOfFile(endAll);

/** A child process, and what it has printed. */
export interface Running {
  child: ChildProcess;
  /** Lines of standard output so far. */
  lines: string[];
  /** These lines, and standard error. */
  output(): string;
  /** Waits until it has printed that many lines that match, and returns them. @throws with its standard error if it ends before */
  printed(what: RegExp, count?: number): Promise<string[]>;
}

/** A gateway in its own process. */
export interface SpawnedGateway extends Running {
  pid: number;
  url: string;
  port: number;
  adminUrl: string;
  /** The configuration file. */
  file: string;
  /** Sends SIGTERM or another signal. Returns the exit code, or the name of the signal that killed the process. */
  end(signal?: NodeJS.Signals): Promise<number | string | null>;
}

/** A child process that is killed when this one exits, whatever happens. */
export function track(child: ChildProcess): ChildProcess {
  children.add(child);
  child.once('exit', () => children.delete(child));
  return child;
}

/** @param onLine gets each line of standard output */
export function watch(child: ChildProcess, onLine: (line: string) => void = () => {}): Running {
  const lines: string[] = [];
  let errors = '';
  let ended: unknown;
  child.stderr?.on('data', (chunk) => {
    errors += chunk;
  });
  if (child.stdout)
    createInterface(child.stdout).on('line', (line) => {
      lines.push(line);
      onLine(line);
    });
  // 'close' comes after the last output.
  child.once('close', (code, signal) => {
    ended = signal ?? code;
  });
  const printed = (what: RegExp, count = 1) =>
    until(() => {
      const found = lines.filter((line) => what.test(line));
      if (found.length >= count) return found;
      if (ended !== undefined) throw new Error(`it ended (${ended}): ${errors}`);
      return undefined;
    }, 60_000);
  return { child, lines, output: () => `${lines.join('\n')}${errors}`, printed };
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
 * @param folder for the configuration file
 * @param inherited a listening socket, as systemd passes it: see `SharedSocket`
 * @throws with its standard error if it exits before it listens
 */
export async function spawnGateway(
  config: ConfigInput,
  env: NodeJS.ProcessEnv = {},
  { folder, inherited }: { folder?: string; inherited?: Socket } = {},
): Promise<SpawnedGateway> {
  const file = configFile(config, folder);
  const args = [MAIN, 'serve', '--config', file];
  const all = { ...process.env, ...env };
  const child = track(
    inherited
      ? spawnInheriting([inherited], [process.execPath, ...args], all)
      : spawn(process.execPath, args, { env: all }),
  );
  const running = watch(child, (line) => {
    if (line.startsWith('{')) checkLine(line, JSON.parse(line));
  });
  const [listening = ''] = await running.printed(/"msg":"listening"/);
  const { port, adminPort } = JSON.parse(listening);
  return {
    ...running,
    pid: child.pid as number,
    url: `${config.listen?.tls ? 'https' : 'http'}://127.0.0.1:${port}`,
    port,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    file,
    async end(signal = 'SIGTERM') {
      if (child.exitCode !== null || child.signalCode !== null) return child.exitCode ?? child.signalCode;
      const exited = once(child, 'exit');
      child.kill(signal);
      const [code, name] = await exited;
      return code ?? name;
    },
  };
}
