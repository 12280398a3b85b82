import { readFileSync } from 'node:fs';

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
