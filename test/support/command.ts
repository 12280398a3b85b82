import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { Readable, Writable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import { runCommand } from '../../src/cli/run.ts';
import { temporaryFolder } from './config.ts';
import { MAIN, track } from './spawn.ts';

export { temporaryFolder as newFolder } from './config.ts';

export interface Ended {
  /** The exit code. Of a process, also the signal that ended it. */
  code: number | string;
  stdout: string;
  stderr: string;
}

export interface CommandOptions {
  env?: NodeJS.ProcessEnv;
  /** Standard input. */
  input?: string;
}

interface RunOptions extends CommandOptions {
  /** Standard input is a terminal, at which a person types. */
  isTerminal?: boolean;
  /** Called before each write to standard output. */
  beforeWrite?: () => void;
}

/** Keeps what is written. */
class Written extends Writable {
  readonly #chunks: Buffer[] = [];
  readonly #before: () => void;

  constructor(before = () => {}) {
    super();
    this.#before = before;
  }

  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    this.#before();
    this.#chunks.push(chunk);
    done();
  }

  override toString(): string {
    return Buffer.concat(this.#chunks).toString();
  }
}

/** Listeners that `serve` leaves in the process if its start fails. They would keep it from ending at a signal. */
function removeListeners(): void {
  for (const [signal, listeners] of listenersBefore)
    for (const listener of process.listeners(signal))
      if (!listeners.includes(listener)) process.off(signal, listener);
}
const listenersBefore = (['SIGHUP', 'SIGINT', 'SIGTERM'] as const).map(
  (signal) => [signal, process.listeners(signal)] as const,
);

/** Runs `oncegate` with these arguments in this process, with an input and outputs of its own. */
export async function run(
  args: string[],
  { env = {}, input = '', isTerminal = false, beforeWrite }: RunOptions = {},
): Promise<Ended> {
  const [stdout, stderr] = [new Written(beforeWrite), new Written()];
  const chunks = input === '' ? [] : [Buffer.from(input)];
  const stdin = Object.assign(Readable.from(chunks), { isTTY: isTerminal });
  try {
    const code = await runCommand(args, { stdin, stdout, stderr, env: { ...process.env, ...env } });
    return { code, stdout: `${stdout}`, stderr: `${stderr}` };
  } finally {
    removeListeners();
  }
}

/** Runs `oncegate` with these arguments until it exits. */
export async function runProcess(
  args: string[],
  { env = {}, input = '', cwd }: CommandOptions & { cwd?: string } = {},
): Promise<Ended> {
  const child = track(
    spawn(process.execPath, [MAIN, ...args], {
      env: { ...process.env, ...env },
      ...(cwd ? { cwd } : {}),
    }),
  );
  // A command that does not read its input may exit before the input is written.
  child.stdin?.on('error', () => {}).end(input);
  const { stdout, stderr } = child;
  if (!stdout || !stderr) throw new Error('the child has no pipes');
  const [out, err, [code, signal]] = await Promise.all([text(stdout), text(stderr), once(child, 'exit')]);
  return { code: code ?? signal, stdout: out, stderr: err };
}

/**
 * Runs a command line of a document, in which `oncegate` is the delivered command, and `programs` are scripts by their name.
 *
 * @returns its standard output
 * @throws if it exits with another code than 0
 */
export async function inShell(
  line: string,
  {
    cwd,
    env = {},
    programs = {},
  }: { cwd?: string; env?: NodeJS.ProcessEnv; programs?: Record<string, string> },
): Promise<string> {
  const bin = temporaryFolder();
  const oncegate = `exec '${process.execPath}' '${MAIN}' "$@"`;
  for (const [name, body] of Object.entries({ oncegate, ...programs }))
    writeFileSync(join(bin, name), `#!/bin/sh\n${body}\n`, { mode: 0o755 });
  const path = [bin, dirname(process.execPath), process.env.PATH].join(delimiter);
  const { stdout } = await promisify(execFile)('sh', ['-ec', line], {
    ...(cwd ? { cwd } : {}),
    env: { ...process.env, ...env, PATH: path },
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
