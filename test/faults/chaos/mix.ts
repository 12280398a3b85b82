import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { temporaryFolder } from '../../support/config.ts';
import type { Summary } from './summary.ts';

const MAIN = fileURLToPath(new URL('./main.ts', import.meta.url));

/** The recovery after a heal is judged only in separate runs: here other suites use most of the machine. */
const USUAL = { seed: 20_261_121, rate: 40, together: 5, 'recover-within': 10_000 };
/** The part of the fault suite that `npm run test:all` runs. A run goes on until every fault has come. */
const MIX = { ...USUAL, minutes: 0.375 };

export const LIMIT = { timeout: 180_000 };

/** Runs the suite as a command, and expects that there was no violation. */
export async function expectClean(flags: Record<string, string | number>): Promise<Summary> {
  const json = join(temporaryFolder(), 'summary.json');
  const all = Object.entries({ ...USUAL, ...flags, json });
  const args = all.flatMap(([name, value]) => [`--${name}`, String(value)]);
  // The output has the verdict, and a failed expectation shows it.
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [MAIN, ...args]).catch(
    (error) => error,
  );
  expect(stdout, stderr).toContain('clean: no violation');
  return JSON.parse(readFileSync(json, 'utf8')) as Summary;
}

/** All faults on one store. Expects enough load too. */
export async function expectCleanMix(store: 'sqlite' | 'redis' | 'postgres'): Promise<void> {
  const { keys, payouts, replays, ...summary } = await expectClean({ store, ...MIX });
  expect(keys).toBeGreaterThan(MIX.minutes * 60 * MIX.rate * 0.8);
  expect(payouts).toBeGreaterThan(keys * 0.8);
  expect(replays).toBeGreaterThan(keys / 2);
  expect(summary.gatewayDeaths).toBeGreaterThanOrEqual(5);
  expect(summary.missing).toEqual([]);
  expect(Object.entries(summary.faults).filter(([, count]) => count === 0)).toEqual([]);
}
