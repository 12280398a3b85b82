/** `npm run mutants`: see {@link HELP}. */
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Guard } from './guards/guard.ts';
import { guards, sourceWithout, testOf } from './guards.ts';
import { root } from './root.ts';

const HELP = `npm run mutants [-- PATTERN...]

Removes the guards of the promise one by one, each in a copy of the sources, and runs the test that must fail then. With
patterns: only the guards whose description, file or test contains all of them, such as redis or "a lookup".

The exit code is 0 only if every guard was noticed. docs/adr/0010-guards-and-their-tests.md lists the guards.
`;

/** How many copies run at the same time. Half of each test's time is waiting. */
const COPIES = 2;
/** The time limit for each test file. */
const AT_MOST_MS = 120_000;
const COPIED = [
  ...['src', 'test', 'config', 'scripts'],
  ...['package.json', 'package-lock.json', 'tsconfig.json', 'vitest.config.ts'],
];

interface TestResult {
  ancestorTitles: string[];
  title: string;
  status: string;
  failureMessages: string[];
}

function copyOfTheTree(): string {
  const copy = mkdtempSync(join(tmpdir(), 'mutants-'));
  for (const name of COPIED) cpSync(join(root, name), join(copy, name), { recursive: true });
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
  return copy;
}

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

/** The tests of these guards, with their results. Empty if a file could not be loaded. */
async function runTests(copy: string, wanted: readonly Guard[]): Promise<TestResult[]> {
  const results = join(copy, 'results.json');
  rmSync(results, { force: true });
  const files = [...new Set(wanted.map(testOf))];
  const names = wanted.map(([, , [, named]]) => escaped(named)).join('|');
  const reporting = ['--reporter=json', `--outputFile.json=${results}`];
  await new Promise<void>((resolve) => {
    const vitest = join(root, 'node_modules', '.bin', 'vitest');
    const options = { cwd: copy, timeout: files.length * AT_MOST_MS, maxBuffer: 100_000_000 };
    execFile(vitest, ['run', ...reporting, '-t', names, ...files], options, () => resolve());
  });
  try {
    const { testResults } = JSON.parse(readFileSync(results, 'utf8'));
    return (testResults as { assertionResults: TestResult[] }[])
      .flatMap(({ assertionResults }) => assertionResults)
      .filter(({ status }) => status === 'passed' || status === 'failed');
  } catch {
    return [];
  }
}

const isTestOf = ([, , [, named]]: Guard, { ancestorTitles, title }: TestResult): boolean =>
  [...ancestorTitles, title].join(' > ').includes(named);

/** A mutated source that does not even load proves nothing about the test. */
const isBroken = ({ failureMessages: [message = ''] }: TestResult): boolean =>
  /^(?:SyntaxError|ReferenceError|TypeError)/.test(message);

/** Why the guard was not noticed; undefined if its test failed as it must. */
async function survives(copy: string, guard: Guard): Promise<string | undefined> {
  const [, [file]] = guard;
  const place = join(copy, file);
  const source = readFileSync(place, 'utf8');
  writeFileSync(place, sourceWithout(source, guard));
  const ran = (await runTests(copy, [guard])).filter((result) => isTestOf(guard, result));
  writeFileSync(place, source);
  const failed = ran.find(({ status }) => status === 'failed');
  if (ran.length === 0) return 'the mutated source could not be run';
  if (!failed) return 'the test passes';
  return isBroken(failed) ? `not a mutation: ${failed.failureMessages[0]?.split('\n')[0]}` : undefined;
}

const patterns = process.argv.slice(2);
if (patterns.includes('--help')) {
  process.stdout.write(HELP);
  process.exit();
}
const chosen = guards.filter((guard) => {
  const [without, [file], [, named]] = guard;
  const line = `${without} ${file} ${testOf(guard)} ${named}`.toLowerCase();
  return patterns.every((pattern) => line.includes(pattern.toLowerCase()));
});
if (chosen.length === 0) {
  process.stderr.write(`mutants: no guard matches all of these words: ${patterns.join(', ')}\n`);
  process.exit(64);
}
const copies = Array.from({ length: COPIES }, copyOfTheTree);
const startedMs = performance.now();
const seconds = (sinceMs: number): string => `${((performance.now() - sinceMs) / 1000).toFixed(1)} s`;
const say = (line: string): void => void process.stdout.write(`${line}\n`);
const survived: string[] = [];
let done = 0;

async function work(copy: string, left: Guard[]): Promise<void> {
  for (let guard = left.shift(); guard; guard = left.shift()) {
    const sinceMs = performance.now();
    const [without, [file], [, named]] = guard;
    const why = await survives(copy, guard);
    if (why) survived.push(`${without}: ${why} (${file}; ${testOf(guard)}: ${named})`);
    say(`${++done}/${chosen.length} ${why ? 'SURVIVED' : 'caught'}  ${without}  (${seconds(sinceMs)})`);
  }
}

try {
  say(`${chosen.length} guards: first the tests as they are`);
  const sound = await runTests(copies[0] ?? '', chosen);
  const left = chosen.filter((guard) => {
    const own = sound.filter((result) => isTestOf(guard, result));
    if (own.length > 0 && own.every(({ status }) => status === 'passed')) return true;
    const [without, , [, named]] = guard;
    survived.push(`${without}: its test does not pass without a mutation (${testOf(guard)}: ${named})`);
    return false;
  });
  done = chosen.length - left.length;
  await Promise.all(copies.map((copy) => work(copy, left)));
  say(`\n${chosen.length - survived.length} caught, ${survived.length} survived, ${seconds(startedMs)}`);
  for (const line of survived) say(`survived: ${line}`);
} finally {
  for (const copy of copies) rmSync(copy, { recursive: true, force: true });
}
process.exitCode = survived.length > 0 ? 1 : 0;
