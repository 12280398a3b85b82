import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, expect } from 'vitest';
import { MAIN, track } from './spawn.ts';

/** The compile cache is shared by all processes, which halves the time to start one. */
export const FAST_START = {
  NODE_COMPILE_CACHE: fileURLToPath(new URL('../../node_modules/.cache/node-compile', import.meta.url)),
};

const folders = mkdtempSync(join(tmpdir(), 'oncegate-test-'));
afterAll(() => rmSync(folders, { recursive: true, force: true }));

/** A folder that is removed after the test file. `temporaryFolder` is for tests that run one after the other. */
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
  /** The process is killed if it has not exited by then. */
  withinMs?: number;
}

/** Runs `node src/main.ts` with these arguments until it exits. */
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
  // A command that does not read its input may exit before the input is written.
  child.stdin?.on('error', () => {}).end(input);
  const { stdout, stderr } = child;
  if (!stdout || !stderr) throw new Error('the child has no pipes');
  const [out, err, [code, signal]] = await Promise.all([text(stdout), text(stderr), once(child, 'exit')]);
  clearTimeout(timer);
  return { code: code ?? signal, stdout: out, stderr: err, elapsedMs: performance.now() - startedMs };
}

/**
 * Runs a command line of a document, in which `oncegate` is this source, and `programs` are scripts by their name.
 *
 * @returns its standard output
 * @throws if it exits with another code than 0
 */
export async function inShell(
  line: string,
  { cwd, env = {}, programs = {} }: CommandOptions & { programs?: Record<string, string> },
): Promise<string> {
  const bin = newFolder();
  const oncegate = `exec '${process.execPath}' '${MAIN}' "$@"`;
  for (const [name, body] of Object.entries({ oncegate, ...programs }))
    writeFileSync(join(bin, name), `#!/bin/sh\n${body}\n`, { mode: 0o755 });
  const path = [bin, dirname(process.execPath), process.env.PATH].join(delimiter);
  const { stdout } = await promisify(execFile)('sh', ['-ec', line], {
    ...(cwd ? { cwd } : {}),
    env: { ...process.env, ...FAST_START, ...env, PATH: path },
  });
  return stdout;
}

/** Expects error messages for operators only: every line starts with the program's name, and there is no stack trace. */
export function expectPlain({ stderr }: Ended): void {
  const lines = stderr.trimEnd().split('\n');
  expect(lines.filter((line) => !/^oncegate:(?: |$)/.test(line))).toEqual([]);
  expect(stderr).not.toMatch(/^.*\s+at .+[:(]\d+/m);
  expect(stderr).not.toMatch(/node:internal|\[object |Error:/);
}
