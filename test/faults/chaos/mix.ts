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
 * What `npm test` runs of the fault suite: 45 seconds of everything on one store, by a fixed seed. How soon merchants know
 * after a heal is judged in runs of their own: here other suites have most of the machine.
 */
export const MIX = {
  minutes: 0.75,
  seed: 20_261_121,
  rate: 40,
  together: 5,
  recoverWithinMs: 10_000,
  limitMs: 180_000,
};

/** Runs the suite as its users do, and expects that the promise held and that the run was busy. */
export async function expectCleanMix(store: 'sqlite' | 'redis'): Promise<void> {
  const json = join(temporaryFolder(), 'summary.json');
  const { minutes, seed, rate, together, recoverWithinMs } = MIX;
  const numbers = { minutes, seed, rate, together, 'recover-within': recoverWithinMs };
  const flags = Object.entries(numbers).flatMap(([name, value]) => [`--${name}`, String(value)]);
  const args = [MAIN, '--store', store, '--json', json, ...flags];
  // Its verdict is in what it prints, which a failure shows.
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args).catch((error) => error);
  expect(stdout, stderr).toContain('clean: no violation');
  const summary = JSON.parse(readFileSync(json, 'utf8')) as Summary;
  expect(summary.keys).toBeGreaterThan(minutes * 60 * rate * 0.8);
  expect(summary.payouts).toBeGreaterThan(summary.keys * 0.8);
  expect(summary.replays).toBeGreaterThan(summary.keys / 2);
  expect(summary.gatewayDeaths).toBeGreaterThanOrEqual(5);
  expect(summary.missing).toEqual([]);
  expect(Object.entries(summary.faults).filter(([, count]) => count === 0)).toEqual([]);
}
