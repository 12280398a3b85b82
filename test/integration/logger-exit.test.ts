import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { track } from '../support/spawn.ts';

const LOGGER = fileURLToPath(new URL('../../src/telemetry/logger.ts', import.meta.url));

/** A program that runs `code` and exits at once, so that the lines are written during its exit. */
const program = (code: string) => `
  const { createLogger, requestLogger } = await import(${JSON.stringify(LOGGER)});
  const logger = createLogger('info');
  ${code}
  process.exit();
`;

/** Logs this many lines of 100 characters. */
const log = (lines: number) => `for (let i = 0; i < ${lines}; i++) logger.info('x'.repeat(100));`;

function run(code: string, stdout: number | 'pipe') {
  const args = ['--input-type=module', '--eval', program(code)];
  return track(spawn(process.execPath, args, { stdio: ['ignore', stdout, 'inherit'] }));
}

it('a process exits although its last lines cannot be written', async () => {
  // Every write to this file fails with ENOSPC.
  const full = openSync('/dev/full', 'w');
  const [onFullDisk, unread] = [run(log(10), full), run(log(10), 'pipe')];
  closeSync(full);
  unread.stdout?.destroy();
  const ends = [onFullDisk, unread].map((child) => once(child, 'exit'));
  expect(await Promise.all(ends)).toEqual([
    [0, null],
    [0, null],
  ]);
});

it('a process exits although the reader of its log has stopped', async () => {
  // More than a pipe holds.
  const unread = run(log(10_000), 'pipe');
  expect(await once(unread, 'exit')).toEqual([0, null]);
});

it('a process writes its last lines while it exits', async () => {
  const child = run(log(2000), 'pipe');
  const [output] = await Promise.all([text(child.stdout as NodeJS.ReadableStream), once(child, 'exit')]);
  expect(output.trimEnd().split('\n')).toHaveLength(2000);
});

it('a process writes the lines of its last requests while it exits', async () => {
  const child = run(
    `const request = requestLogger(logger);
     request({ path: '/before' });
     await new Promise(setImmediate);
     request({ path: '/last' });`,
    'pipe',
  );
  const [output] = await Promise.all([text(child.stdout as NodeJS.ReadableStream), once(child, 'exit')]);
  expect(output.match(/"path":"[^"]*"/g)).toEqual(['"path":"/before"', '"path":"/last"']);
});
