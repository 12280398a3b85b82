import { readFileSync } from 'node:fs';
import { afterAll } from 'vitest';

const leashed = new Set<number>();
const endAll = () => {
  for (const pid of leashed) endNow(pid);
  leashed.clear();
};
afterAll(endAll);
process.once('exit', endAll);

/** A process that is not our child, such as a worker of one: killed at the end of this test file, frozen or not. */
export function leash(pid: number): number {
  leashed.add(pid);
  return pid;
}

/** SIGKILL; nothing where it is gone already. */
export function endNow(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // Gone.
  }
}

/** Whether it runs, or stands still. One that is dead and was not yet buried by its parent does not. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return !/^\d+ \(.*\) [ZX]/s.test(stat);
  } catch (error) {
    // Where there is no /proc, the signal's word counts.
    return (error as NodeJS.ErrnoException).code === 'ENOENT' && process.platform !== 'linux';
  }
}
