/**
 * `npm test`: type check, lint, and every suite but those that need more programs; `npm run test:all`: those too.
 * `npm run test:fast`: type check, lint, and the unit tests. Other arguments go to vitest. With --record it writes how long each
 * file took into test/times.json, by which the next runs order them. The last line reads `N passed, N failed, N skipped`; the
 * type check and the lint count as one test each. The exit code is 0 only if nothing failed.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { root } from './root.ts';

interface Counts {
  passed: number;
  failed: number;
  skipped: number;
}

/** True if it ended with 0. */
function run(command: string, args: string[]): Promise<boolean> {
  process.stdout.write(`\n> ${command} ${args.join(' ')}\n`);
  // Not every platform has a Node among the packages.
  const path = command === 'node' ? process.execPath : join(root, 'node_modules', '.bin', command);
  const child = spawn(path, args, { cwd: root, stdio: 'inherit' });
  return new Promise((resolve) => {
    child.once('error', (error) => {
      process.stderr.write(`oncegate: ${command}: ${error.message}\n`);
      resolve(false);
    });
    child.once('exit', (status) => resolve(status === 0));
  });
}

async function runStep(...commands: [command: string, args: string[]][]): Promise<Counts> {
  const done = await Promise.all(commands.map(([command, args]) => run(command, args)));
  const ok = done.every(Boolean);
  return { passed: ok ? 1 : 0, failed: ok ? 0 : 1, skipped: 0 };
}

/** vitest's numbers. A run that fails without a failed test (an error outside of tests) counts as one failure. */
async function runSuites(filters: string[]): Promise<Counts> {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-results-'));
  const file = join(folder, 'results.json');
  try {
    const reporting = ['--reporter=default', '--reporter=json', `--outputFile.json=${file}`];
    const ok = await run('vitest', ['run', ...reporting, ...filters]);
    const results = JSON.parse(readFileSync(file, 'utf8'));
    if (has('--record')) writeTimes(results.testResults);
    const failed = Number(results.numFailedTests);
    return {
      passed: Number(results.numPassedTests),
      failed: ok || failed > 0 ? failed : 1,
      skipped: Number(results.numPendingTests) + Number(results.numTodoTests),
    };
  } catch (error) {
    process.stderr.write(`oncegate: the suites gave no results: ${(error as Error).message}\n`);
    return { passed: 0, failed: 1, skipped: 0 };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** For these the order matters. */
const LONG_SECONDS = 3;

/** Long files that ran get a new time, and files that there are no longer lose theirs. */
function writeTimes(ran: { name: string; startTime: number; endTime: number }[]): void {
  const path = join(root, 'test', 'times.json');
  const times: Record<string, number> = JSON.parse(readFileSync(path, 'utf8'));
  for (const { name, startTime, endTime } of ran)
    times[relative(join(root, 'test'), name)] = Math.round((endTime - startTime) / 100) / 10;
  const there = Object.entries(times).filter(
    ([name, seconds]) => seconds >= LONG_SECONDS && existsSync(join(root, 'test', name)),
  );
  const sorted = Object.fromEntries(there.sort(([, a], [, b]) => b - a));
  writeFileSync(path, `${JSON.stringify(sorted, undefined, 2)}\n`);
}

const OWN_OPTIONS = ['--fast', '--all', '--record'];
const given = process.argv.slice(2);
const has = (option: string) => given.includes(option);
const filters = given.filter((argument) => !OWN_OPTIONS.includes(argument));
const checks = Promise.all([
  runStep(['tsc', ['--noEmit']], ['tsc', ['-p', 'src/console']]),
  runStep(['biome', ['check', '.']]),
]);
// The other suites wait for leases and time limits: they get the machine for themselves.
if (!has('--fast')) await checks;
const without = has('--all') ? [] : ['--project', '!more*'];
const suites = await runSuites([...(has('--fast') ? ['--project', 'unit'] : without), ...filters]);
const steps = [...(await checks), suites];
const sum = (name: keyof Counts) => steps.reduce((total, counts) => total + counts[name], 0);
process.stdout.write(`\n${sum('passed')} passed, ${sum('failed')} failed, ${sum('skipped')} skipped\n`);
process.exitCode = sum('failed') > 0 ? 1 : 0;
