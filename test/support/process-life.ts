import { readFileSync } from 'node:fs';
import { afterAll } from 'vitest';

const toKill = new Set<number>();
const endAll = () => {
  for (const pid of toKill) endNow(pid);
  toKill.clear();
};
afterAll(endAll);
process.once('exit', endAll);

/**
 * A process that is not a child of this one, such as a worker of a gateway. It is killed after this test file, even if stopped.
 *
 * @throws if this is no process id. A signal to 0, which is what `Number('')` gives, would go to this process and all its relatives
 */
export function killAfterTests(pid: number): number {
  if (!Number.isInteger(pid) || pid <= 1) throw new Error(`${pid} is no process id`);
  toKill.add(pid);
  return pid;
}

/** Sends SIGKILL; does nothing if the process is gone. */
export function endNow(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // Gone.
  }
}

/** Whether a process exists, running or stopped. A zombie does not count. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return !'ZX'.includes(stateOf(pid));
  } catch (error) {
    // Without /proc, the result of the signal counts.
    return (error as NodeJS.ErrnoException).code === 'ENOENT' && process.platform !== 'linux';
  }
}

/** Whether a process was stopped (SIGSTOP). */
export const isStopped = (pid: number): boolean => stateOf(pid) === 'T';

/** The letter of a process' state in /proc. @throws if the process is gone */
function stateOf(pid: number): string {
  const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  return /^\d+ \(.*\) (\w)/s.exec(stat)?.[1] ?? '';
}
