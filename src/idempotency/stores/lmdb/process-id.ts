import { readFileSync } from 'node:fs';

/** State and start time of a process, as Linux tells them; undefined where it does not. */
function statOf(pid: number): { state: string; startedAt: string } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name before, in parentheses, may hold anything.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { state: fields[0] ?? '', startedAt: fields[19] ?? '' };
  } catch {
    return undefined;
  }
}

/** Names a process so that a later one with the same number is not taken for it: number and start time. */
export function nameOfThisProcess(): string {
  return `${process.pid}.${statOf(process.pid)?.startedAt ?? ''}`;
}

/** Does the process that called itself so still live? Where nobody can tell, it does. */
export function isAlive(name: string): boolean {
  const [pid = '', startedAt = ''] = name.split('.');
  try {
    process.kill(Number(pid), 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
  }
  const stat = statOf(Number(pid));
  if (!stat || startedAt === '') return true;
  // A zombie is a process that has ended, and whose parent has not been told yet.
  return stat.startedAt === startedAt && !['Z', 'X'].includes(stat.state);
}
