import { spawnSync } from 'node:child_process';

/** Prometheus' own checker, where it is installed. */
export const hasPromtool = spawnSync('promtool', ['--version']).error === undefined;

/** Runs it. Returns what it said where it was not content, else an empty text. */
export function promtool(...args: string[]): string {
  const { status, stdout, stderr } = spawnSync('promtool', args, { encoding: 'utf8' });
  return status === 0 ? '' : `${stdout}${stderr}` || `promtool ended with ${status}`;
}
