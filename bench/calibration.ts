/**
 * A fixed task whose processor time shows how quiet the machine is. `node bench/calibration.ts` runs it once and prints the
 * microseconds that it took.
 */
import { execFileSync } from 'node:child_process';
import { hash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { CORES } from './processes.ts';

const SCRIPT = fileURLToPath(import.meta.url);
const REPEATS = 150_000;
const TRIES = 3;

/** Runs of the task on the core of the systems under test: the processor time of the fastest one, in microseconds. */
export function calibrate(): number {
  const args = ['-c', CORES.system, process.execPath, SCRIPT];
  return Math.min(...Array.from({ length: TRIES }, () => Number(execFileSync('taskset', args))));
}

/** Parses, writes and digests a small JSON document many times. */
function task(): number {
  let text = JSON.stringify({ action: 'withdraw', amount: 1500.25, account_number: '0123456789' });
  for (let warm = 0; warm < REPEATS / 10; warm++) text = step(text);
  const before = process.cpuUsage();
  for (let i = 0; i < REPEATS; i++) text = step(text);
  const { user, system } = process.cpuUsage(before);
  return user + system;
}

const step = (text: string): string =>
  JSON.stringify({ ...JSON.parse(text), digest: hash('sha256', text, 'hex') });

if (process.argv[1] === SCRIPT) process.stdout.write(`${task()}\n`);
