/**
 * `npm test`: type check, lint, and every suite. The last line reads `N passed, N failed, N skipped`; the type check and
 * the lint count as one test each. The exit code is 0 only if nothing failed.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

interface Counts {
  passed: number;
  failed: number;
  skipped: number;
}

const root = fileURLToPath(new URL('..', import.meta.url));

function run(command: string, args: string[]): boolean {
  process.stdout.write(`\n> ${command} ${args.join(' ')}\n`);
  const { status, error } = spawnSync(join(root, 'node_modules', '.bin', command), args, {
    cwd: root,
    stdio: 'inherit',
  });
  if (error) process.stderr.write(`oncegate: ${command}: ${error.message}\n`);
  return status === 0;
}

function runStep(command: string, args: string[]): Counts {
  const ok = run(command, args);
  return { passed: ok ? 1 : 0, failed: ok ? 0 : 1, skipped: 0 };
}

/** vitest's numbers. A run that fails without a failed test (an error outside of tests) counts as one failure. */
function runSuites(filters: string[]): Counts {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-results-'));
  const file = join(folder, 'results.json');
  try {
    const ok = run('vitest', [
      'run',
      '--reporter=default',
      '--reporter=json',
      `--outputFile.json=${file}`,
      ...filters,
    ]);
    const results = JSON.parse(readFileSync(file, 'utf8'));
    const failed = Number(results.numFailedTests);
    return {
      passed: Number(results.numPassedTests),
      failed: ok || failed > 0 ? failed : 1,
      skipped: Number(results.numPendingTests) + Number(results.numTodoTests),
    };
  } catch (error) {
    process.stderr.write(`oncegate: vitest wrote no results: ${(error as Error).message}\n`);
    return { passed: 0, failed: 1, skipped: 0 };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const filters = process.argv.slice(2);
const steps = [runStep('tsc', ['--noEmit']), runStep('biome', ['check', '.']), runSuites(filters)];
const sum = (name: keyof Counts) => steps.reduce((total, counts) => total + counts[name], 0);
process.stdout.write(`\n${sum('passed')} passed, ${sum('failed')} failed, ${sum('skipped')} skipped\n`);
process.exitCode = sum('failed') > 0 ? 1 : 0;
