/**
 * `npm run simulate -- --guards`: takes out the guards of what the simulation runs, one by one, each in a copy of the sources, and says
 * which ones the simulation notices.
 */
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Guard } from '../../scripts/guards/guard.ts';
import { guards, sourceWithout, testOf } from '../../scripts/guards.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const COPIED = ['src', 'test/simulation', 'test/support', 'test/faults/chaos', 'scripts', 'package.json'];
/** What the simulation runs. */
const SIMULATED =
  /^src\/(?:ledger\/(?:rules|ledger|reader|commits|record-id)|middleware\/transactions\/|idempotency\/(?:engine|execution|fence-and-lease|duplicates|pending-writes|outcome|circuit-breaker)|doubts\/|backend\/slots|lib\/clock)/;

/** Whether the simulation notices that the guard is gone. `broken`: the source without it cannot run. */
function notices(copy: string, guard: Guard, payouts: number): Promise<'yes' | 'no' | 'broken'> {
  const [, [file]] = guard;
  const place = join(copy, file);
  const source = readFileSync(place, 'utf8');
  writeFileSync(place, sourceWithout(source, guard));
  const args = ['test/simulation/main.ts', '--payouts', `${payouts}`, '--seed', '1', '--quick'];
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd: copy }, (error, stdout) => {
      writeFileSync(place, source);
      if (!error) resolve('no');
      else resolve(stdout.includes('breaks the promise') ? 'yes' : 'broken');
    });
  });
}

/** Prints a line for each guard. One that is not noticed here has a test of its own, which is named. */
export async function tryGuards(payouts: number, write: (line: string) => void): Promise<void> {
  const copy = mkdtempSync(join(tmpdir(), 'simulate-'));
  try {
    for (const name of COPIED) cpSync(join(root, name), join(copy, name), { recursive: true });
    symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
    const chosen = guards.filter(([, [file]]) => SIMULATED.test(file));
    let noticed = 0;
    for (const guard of chosen) {
      const answer = await notices(copy, guard, payouts);
      if (answer === 'yes') noticed++;
      const [without, [file], [, named]] = guard;
      const by = answer === 'yes' ? '' : ` (${answer}; ${file}; noticed by ${testOf(guard)}: ${named})`;
      write(`${answer === 'yes' ? 'noticed' : 'NOT noticed'}  ${without}${by}`);
    }
    write(`${noticed} of ${chosen.length} guards are noticed within ${payouts} payouts`);
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}
