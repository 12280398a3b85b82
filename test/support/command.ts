import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterAll, expect } from 'vitest';
import { MAIN, track } from './spawn.ts';

/** Compiled modules are kept from one process to the next: it halves the time to start one. */
export const FAST_START = {
  NODE_COMPILE_CACHE: fileURLToPath(new URL('../../node_modules/.cache/node-compile', import.meta.url)),
};

const folders = mkdtempSync(join(tmpdir(), 'oncegate-test-'));
afterAll(() => rmSync(folders, { recursive: true, force: true }));

/** A folder that is gone when the test file is over: `temporaryFolder` is for tests that run one after the other. */
export const newFolder = (): string => mkdtempSync(join(folders, 'folder-'));

export interface Ended {
  /** The exit code, or the signal that ended it. */
  code: number | string;
  stdout: string;
  stderr: string;
  elapsedMs: number;
}

export interface CommandOptions {
  env?: NodeJS.ProcessEnv;
  /** Standard input. */
  input?: string;
  cwd?: string;
  /** It is killed if it has not ended by then. */
  withinMs?: number;
}

/** Runs `node src/main.ts` with these arguments to its end. */
export async function run(
  args: string[],
  { env = {}, input = '', cwd, withinMs = 20_000 }: CommandOptions = {},
): Promise<Ended> {
  const startedMs = performance.now();
  const child = track(
    spawn(process.execPath, [MAIN, ...args], {
      env: { ...process.env, ...FAST_START, ...env },
      ...(cwd ? { cwd } : {}),
    }),
  );
  const timer = setTimeout(() => child.kill('SIGKILL'), withinMs);
  // A command that does not read its input may be gone before it is written.
  child.stdin?.on('error', () => {}).end(input);
  const { stdout, stderr } = child;
  if (!stdout || !stderr) throw new Error('the child has no pipes');
  const [out, err, [code, signal]] = await Promise.all([text(stdout), text(stderr), once(child, 'exit')]);
  clearTimeout(timer);
  return { code: code ?? signal, stdout: out, stderr: err, elapsedMs: performance.now() - startedMs };
}

/** What went wrong is told in lines for the operator: each says who speaks, and none is a stack trace. */
export function expectPlain({ stderr }: Ended): void {
  const lines = stderr.trimEnd().split('\n');
  expect(lines.filter((line) => !/^oncegate:(?: |$)/.test(line))).toEqual([]);
  expect(stderr).not.toMatch(/^.*\s+at .+[:(]\d+/m);
  expect(stderr).not.toMatch(/node:internal|\[object |Error:/);
}
