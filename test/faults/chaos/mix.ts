import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { temporaryFolder } from '../../support/config.ts';
import type { Summary } from './summary.ts';

const MAIN = fileURLToPath(new URL('./main.ts', import.meta.url));

/**
 * The part of the fault suite that `npm run test:all` runs: 45 seconds of all faults on one store with a fixed seed. The recovery time
 * after a heal is judged only in separate runs, because here other suites use most of the machine.
 */
export const MIX = {
  minutes: 0.75,
  seed: 20_261_121,
  rate: 40,
  together: 5,
  recoverWithinMs: 10_000,
  limitMs: 180_000,
};

/** Runs the suite as a command, and expects that there was no violation. */
export async function expectClean(flags: Record<string, string | number>): Promise<Summary> {
  const json = join(temporaryFolder(), 'summary.json');
  const args = Object.entries({ ...flags, json }).flatMap(([name, value]) => [`--${name}`, String(value)]);
  // The output has the verdict, and a failed expectation shows it.
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [MAIN, ...args]).catch(
    (error) => error,
  );
  expect(stdout, stderr).toContain('clean: no violation');
  return JSON.parse(readFileSync(json, 'utf8')) as Summary;
}

/** Expects enough load too. */
export async function expectCleanMix(store: 'sqlite' | 'redis'): Promise<void> {
  const { minutes, seed, rate, together, recoverWithinMs } = MIX;
  const numbers = { minutes, seed, rate, together, 'recover-within': recoverWithinMs };
  const summary = await expectClean({ store, ...numbers });
  expect(summary.keys).toBeGreaterThan(minutes * 60 * rate * 0.8);
  expect(summary.payouts).toBeGreaterThan(summary.keys * 0.8);
  expect(summary.replays).toBeGreaterThan(summary.keys / 2);
  expect(summary.gatewayDeaths).toBeGreaterThanOrEqual(5);
  expect(summary.missing).toEqual([]);
  expect(Object.entries(summary.faults).filter(([, count]) => count === 0)).toEqual([]);
}
