import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { atEndOfFile } from './at-end-of-file.ts';
import { MAIN, type Running, track, watch } from './spawn.ts';

/** A program that is killed after the test file. */
export interface Begun extends Running {
  /** Resolves to the exit code and the signal that ended it. */
  end(signal: NodeJS.Signals): Promise<[code: number | null, signal: string | null]>;
}

interface BeginOptions {
  /** The program to run in place of `oncegate`. */
  program?: string[];
  cwd?: string;
  env?: NodeJS.ProcessEnv;
}

/** Ids of process groups. npm does not forward signals, so all that it started get them. */
const groups = new Set<number>();
function signal(group: number, name: NodeJS.Signals): void {
  try {
    process.kill(-group, name);
  } catch {
    // All of its processes are gone.
  }
}
const endAll = () => {
  for (const group of groups) signal(group, 'SIGKILL');
  groups.clear();
};
atEndOfFile(endAll);
process.once('exit', endAll);

/** Runs `oncegate` with these arguments, or another program. */
export function begin(
  args: string[],
  { program = [process.execPath, MAIN], cwd, env }: BeginOptions = {},
): Begun {
  const [file = '', ...before] = program;
  const options = { env: { ...process.env, ...env }, cwd, detached: true };
  const child = track(spawn(file, [...before, ...args], options));
  const group = child.pid as number;
  groups.add(group);
  const exited = once(child, 'exit') as ReturnType<Begun['end']>;
  return {
    ...watch(child),
    async end(name) {
      signal(group, name);
      groups.delete(group);
      return await exited;
    },
  };
}

/** `oncegate start` on free ports, when it has printed its tour. */
export async function startTour(args: string[] = [], options: BeginOptions = {}) {
  const ports = ['--port', '0', '--admin-port', '0', '--sandbox-port', '0'];
  const program = options.program ?? [process.execPath, MAIN, 'start'];
  const running = begin([...ports, ...args], { ...options, program });
  const commands = await running.printed(/^curl /, 3);
  const urlOf = (server: 'gateway' | 'sandbox' | 'admin') =>
    running.output().match(new RegExp(`^  ${server} +(http://[\\d.]+:\\d+)`, 'm'))?.[1] ?? '';
  return { ...running, commands, urlOf };
}
