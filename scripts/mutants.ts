/**
 * `npm run mutants`: removes the guards one by one, each in a copy of the sources, and runs the test that must fail then.
 * `npm run mutants -- start` runs only the guards whose description or test contains `start`. The exit code is 0 only if the
 * tests caught every mutation.
 */
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Guard, guards } from './guards.ts';

/** How many copies run at the same time. Half of each test's time is waiting. */
const COPIES = 2;
/** The time limit for each test file. */
const AT_MOST_MS = 120_000;
const root = fileURLToPath(new URL('..', import.meta.url));
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

/** The tests that ran, with their results. Empty if a file could not be loaded. */
async function runTests(copy: string, wanted: readonly Guard[]): Promise<TestResult[]> {
  const results = join(copy, 'results.json');
  rmSync(results, { force: true });
  const files = [...new Set(wanted.map(({ test }) => test))];
  const names = wanted.map(({ named }) => escaped(named)).join('|');
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

const isTestOf = ({ named }: Guard, { ancestorTitles, title }: TestResult): boolean =>
  [...ancestorTitles, title].join(' > ').includes(named);

/** A mutated source that does not even load proves nothing about the test. */
const isBroken = ({ failureMessages: [message = ''] }: TestResult): boolean =>
  /^(?:SyntaxError|ReferenceError|TypeError)/.test(message);

function mutate(copy: string, { file, text, replacement }: Guard): () => void {
  const place = join(copy, file);
  const source = readFileSync(place, 'utf8');
  const parts = source.split(text);
  if (parts.length !== 2) throw new Error(`${file} holds ${parts.length - 1} times: ${text}`);
  writeFileSync(place, parts.join(replacement));
  return () => writeFileSync(place, source);
}

/** One line that says what is wrong; undefined if the test failed as it must. */
async function survives(copy: string, guard: Guard): Promise<string | undefined> {
  const restore = mutate(copy, guard);
  try {
    const ran = (await runTests(copy, [guard])).filter((result) => isTestOf(guard, result));
    const failed = ran.find(({ status }) => status === 'failed');
    if (ran.length === 0) return 'the mutated source could not be run';
    if (!failed) return 'NOT CAUGHT';
    return isBroken(failed) ? `not a mutation: ${failed.failureMessages[0]?.split('\n')[0]}` : undefined;
  } finally {
    restore();
  }
}

const filters = process.argv.slice(2);
const chosen = guards.filter(({ without, test }) =>
  filters.every((filter) => `${without} ${test}`.includes(filter)),
);
if (chosen.length === 0) {
  process.stderr.write(`mutants: no guard matches all of these words: ${filters.join(', ')}\n`);
  process.exit(64);
}
const copies = Array.from({ length: COPIES }, copyOfTheTree);
const startedMs = performance.now();
const seconds = (sinceMs: number): string => `${((performance.now() - sinceMs) / 1000).toFixed(1)} s`;
const say = (line: string): void => void process.stdout.write(`${line}\n`);
let survived = 0;
let done = 0;

async function work(copy: string, left: Guard[]): Promise<void> {
  for (let guard = left.shift(); guard; guard = left.shift()) {
    const sinceMs = performance.now();
    const wrong = await survives(copy, guard);
    if (wrong) survived++;
    const place = `${++done}/${chosen.length}`;
    const by = `${guard.test}: ${guard.named}`;
    say(`${place} ${wrong ? 'SURVIVED' : 'caught'}  ${guard.without}  (${wrong ?? by}, ${seconds(sinceMs)})`);
  }
}

try {
  say(`${chosen.length} guards: first the tests as they are`);
  const sound = await runTests(copies[0] ?? '', chosen);
  const unsound = chosen.filter((guard) => {
    const own = sound.filter((result) => isTestOf(guard, result));
    return own.length === 0 || own.some(({ status }) => status === 'failed');
  });
  for (const { test, named } of unsound) say(`does not pass without a mutation: ${test}: ${named}`);
  survived = unsound.length;
  done = unsound.length;
  const left = chosen.filter((guard) => !unsound.includes(guard));
  await Promise.all(copies.map((copy) => work(copy, left)));
  say(`${chosen.length - survived} caught, ${survived} survived, ${seconds(startedMs)}`);
} finally {
  for (const copy of copies) rmSync(copy, { recursive: true, force: true });
}
process.exitCode = survived > 0 ? 1 : 0;
