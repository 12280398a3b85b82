import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { afterAll } from 'vitest';
import type { StorePlace } from '../support/open-store.ts';
import { until } from '../support/until.ts';
import type { Work } from './store-worker.ts';

const SCRIPT = fileURLToPath(new URL('./store-worker.ts', import.meta.url));

const running = new Set<Worker>();
afterAll(async () => {
  await Promise.all([...running].map((worker) => worker.kill()));
});

/** One line of a worker's output: a word and its subject, such as a key. */
export type Said = [word: string, about: unknown];

/** A second process that works on a store; killed after the test file. */
export class Worker {
  readonly said: Said[] = [];
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #ended: Promise<unknown>;

  constructor(place: StorePlace, work: Work) {
    const argument = JSON.stringify({ place, work });
    this.#child = spawn(process.execPath, [SCRIPT, argument], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdin.on('error', () => {});
    // 'close' comes after the last line of output.
    this.#ended = once(this.#child, 'close');
    createInterface(this.#child.stdout).on('line', (line) => this.said.push(JSON.parse(line) as Said));
    running.add(this);
  }

  /** Waits for `word`, and returns its subject. */
  async hears(word: string): Promise<unknown> {
    const [, about] = await until(() => this.said.find(([said]) => said === word));
    return about;
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  /** Sends SIGKILL. Resolves when the process is gone and all its output has been read. */
  async kill(): Promise<void> {
    running.delete(this);
    this.#child.kill('SIGKILL');
    await this.#ended;
  }
}
