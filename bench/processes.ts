import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { openSync, readdirSync, readFileSync } from 'node:fs';

/** The system under test has one core to itself; load, backend and Redis share the other one. A start has both. */
export const CORES = { system: '0', rest: '1', both: '0,1' } as const;

const TICKS_PER_S = 100;

const running = new Set<ChildProcess>();
process.once('exit', () => {
  // Not SIGKILL: it would leave the worker process of nginx running.
  for (const child of running) child.kill('SIGTERM');
});
// Without a listener, a signal kills the process without its 'exit' event.
process.once('SIGINT', () => process.exit(130)).once('SIGTERM', () => process.exit(143));

/** Starts a process on one core; it is stopped when the benchmark exits. Its output goes to `logFile`. */
export function startPinned(
  core: string,
  command: string,
  args: readonly string[],
  { env = {}, logFile }: { env?: NodeJS.ProcessEnv; logFile: string },
): ChildProcess {
  const log = openSync(logFile, 'a', 0o600);
  const child = spawn('taskset', ['-c', core, command, ...args], {
    stdio: ['ignore', log, log],
    env: { ...process.env, NODE_ENV: 'production', ...env },
  });
  running.add(child);
  child.once('exit', () => running.delete(child));
  return child;
}

/** Sends SIGTERM, and SIGKILL if the process does not exit within twenty seconds. */
export async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  // Long enough to write a CPU profile.
  const timer = setTimeout(() => child.kill('SIGKILL'), 20_000);
  child.kill('SIGTERM');
  await exited;
  clearTimeout(timer);
}

/** Processor time of a process and all of its descendants, in microseconds, user and system. */
export function cpuUs(pid: number): number {
  return treeOf(pid).reduce((total, one) => total + cpuOf(one), 0);
}

/** What a process and all of its descendants have written to disks so far. */
export function diskBytes(pid: number): number {
  return treeOf(pid).reduce((total, one) => {
    const [, bytes] = /^write_bytes: (\d+)$/m.exec(readFileSync(`/proc/${one}/io`, 'latin1')) ?? [];
    return total + Number(bytes);
  }, 0);
}

/** Resident memory of the largest process among a process and its descendants. */
export function rssBytes(pid: number): number {
  return Math.max(...treeOf(pid).map((one) => statusBytes(one, 'VmRSS')));
}

/** The same without file pages, which the kernel may reclaim. */
export function ownBytes(pid: number): number {
  return Math.max(...treeOf(pid).map((one) => statusBytes(one, 'RssAnon')));
}

function treeOf(pid: number): number[] {
  const children = readdirSync(`/proc/${pid}/task`).flatMap((task) =>
    readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
  );
  return [pid, ...children.flatMap(treeOf)];
}

function cpuOf(pid: number): number {
  // The process name may contain spaces and brackets, so the fields are counted from the last bracket.
  const fields = readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ').at(-1)?.split(' ') ?? [];
  // The last two are of children that have ended, such as Redis' rewrites of its file.
  const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
  return (ticks * 1_000_000) / TICKS_PER_S;
}

function statusBytes(pid: number, name: string): number {
  const line = new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'latin1'));
  return Number(line?.[1] ?? 0) * 1024;
}

/** Moves a process that is already running to the core of load, backend and Redis. */
export function pinned(pid: number): void {
  execFileSync('taskset', ['-a', '-c', '-p', CORES.rest, `${pid}`], { stdio: 'ignore' });
}
