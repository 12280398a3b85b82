import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { CORES } from './processes.ts';
import type { PacedRun } from './results.ts';
import { SECRET } from './systems.ts';

const CLIENT = fileURLToPath(new URL('./paced.ts', import.meta.url));
const RATE_PER_S = 500;

const run = promisify(execFile);

/** First-time withdraws at a fixed rate on a port. */
export async function paced(
  system: string,
  port: number,
  {
    round,
    seconds,
    keys,
    ratePerS = RATE_PER_S,
  }: { round: number; seconds: number; keys: string; ratePerS?: number },
): Promise<PacedRun> {
  const args = [CLIENT, `${port}`, 'first', `${ratePerS}`, `${seconds}`, keys, SECRET];
  const { stdout } = await run('taskset', ['-c', CORES.rest, process.execPath, ...args]);
  return { round, system, ...JSON.parse(stdout) };
}
