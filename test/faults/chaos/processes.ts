import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { until } from '../../support/until.ts';

const KEPT_LINES = 20;

const running = new Set<ChildProcess>();
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/**
 * Starts `node ...args` as a process that dies with the suite. Resolves when `isReady` is true for the output lines so
 * far.
 *
 * @param logFile gets all of its output
 * @throws with the last lines of its output if it exits before that
 */
export async function startNode(
  args: string[],
  options: {
    isReady(lines: readonly string[]): boolean | Promise<boolean>;
    logFile: string;
    env?: NodeJS.ProcessEnv;
    /** Gets each line that the process writes to its descriptor `NOTES_FD`. */
    onNote?(line: string): void;
  },
): Promise<ChildProcess> {
  const child = spawn(process.execPath, args, {
    // The last one is NOTES_FD.
    stdio: ['ignore', 'pipe', 'pipe', 'ipc', 'pipe'],
    env: { ...process.env, ...options.env },
  });
  running.add(child);
  child.once('exit', () => running.delete(child));
  // A message to a process that has just been killed.
  child.on('error', () => {});
  const log = createWriteStream(options.logFile, { flags: 'a', mode: 0o600 });
  const lines: string[] = [];
  const [, stdout, stderr, , notes] = child.stdio as Readable[];
  for (const stream of [stdout, stderr] as Readable[]) {
    createInterface({ input: stream }).on('line', (line) => {
      log.write(`${line}\n`);
      if (lines.push(line) > KEPT_LINES) lines.shift();
    });
  }
  const input = (notes as Readable).on('error', () => {});
  createInterface({ input }).on('line', (line) => options.onNote?.(line));
  const isReady = async () => {
    if (isGone(child)) throw new Error(`${args.join(' ')} ended:\n${lines.join('\n')}`);
    return await options.isReady(lines);
  };
  try {
    await until(isReady);
  } catch (error) {
    await end(child, 'SIGKILL');
    throw error;
  }
  return child;
}

/** Ends a process. Resolves when it is gone. */
export async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (isGone(child)) return;
  const gone = once(child, 'exit');
  child.kill(signal);
  await gone;
}

export const isGone = ({ exitCode, signalCode }: ChildProcess): boolean =>
  exitCode !== null || signalCode !== null;
