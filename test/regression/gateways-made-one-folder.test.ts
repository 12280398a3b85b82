/** Two gateways that started together both created the missing data folder. One of them failed, and so did the start. */
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { expect, onTestFinished, test } from 'vitest';

const THREADS = 2;
const ROUNDS = 300;

const SCRIPT = `
  const { workerData: { folder, module, rounds, threads, arrived } } = require('node:worker_threads');
  import(module).then(({ makeFolder }) => {
    const counter = new Int32Array(arrived);
    for (let round = 0; round < rounds; round++) {
      Atomics.add(counter, 0, 1);
      while (Atomics.load(counter, 0) < threads * (round + 1));
      makeFolder(folder + '/' + round + '/data');
    }
  });`;

test('several threads create one folder at once, and none fails', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'folders-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const module = new URL('../../src/lib/files.ts', import.meta.url).href;
  const arrived = new SharedArrayBuffer(4);
  const workerData = { folder, module, rounds: ROUNDS, threads: THREADS, arrived };
  const ends = Array.from({ length: THREADS }, () => {
    const thread = new Worker(SCRIPT, { eval: true, workerData });
    onTestFinished(async () => void (await thread.terminate()));
    return new Promise<string>((resolve) => {
      thread.once('error', (error) => {
        // Otherwise the other threads would wait for it.
        new Int32Array(arrived).fill(THREADS * ROUNDS);
        resolve((error as Error).message);
      });
      thread.once('exit', () => resolve('done'));
    });
  });
  expect(await Promise.all(ends)).toEqual(Array(THREADS).fill('done'));
  const made = Array.from({ length: ROUNDS }, (_, round) => statSync(join(folder, `${round}`, 'data')));
  expect(made.every((one) => one.isDirectory() && (one.mode & 0o777) === 0o700)).toBe(true);
});
