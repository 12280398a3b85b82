import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { DatabaseSync } from 'node:sqlite';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { expect, onTestFinished } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import type { Execution } from '../../src/store/types.ts';
import { databaseOf, openSqliteStore, type SqliteOptions } from './open-store.ts';
import { duplicateOf, newRequest, paid } from './requests.ts';
import type { RemoteCall, RemoteRequest, Reply } from './sqlite-worker.ts';

export { temporaryFolder as storeFolder } from './config.ts';

/** A store that is closed after the test. By default its times are so long that nothing lapses. */
export async function openSqlite(path: string, options?: SqliteOptions): Promise<Store> {
  const store = await openSqliteStore(path, options);
  onTestFinished(() => store.close());
  return store;
}

/** Runs one statement on a new connection, and returns its rows. */
export function query<T = Record<string, unknown>>(path: string, sql: string): T[] {
  using database = new DatabaseSync(databaseOf({ kind: 'sqlite', path }), { timeout: 10_000 });
  return database.prepare(sql).all() as T[];
}

export const countRecords = (path: string): number =>
  query<{ n: number }>(path, 'SELECT count(*) AS n FROM records')[0]?.n ?? -1;

export function expectIntact(path: string): void {
  expect(query(path, 'PRAGMA integrity_check')).toEqual([{ integrity_check: 'ok' }]);
}

class ProcessEnded extends Error {}

const SCRIPT = fileURLToPath(new URL('./sqlite-worker.ts', import.meta.url));

/** A store in another process, into which faults can be injected and which can be killed. */
export class RemoteStore {
  readonly pid: number;
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #replies = new Map<number, (reply: Reply) => void>();
  #calls = 0;

  /** @param wrapper a command that replaces itself with the process (exec) */
  static async open(
    path: string,
    options: SqliteOptions = {},
    wrapper: readonly string[] = [],
  ): Promise<RemoteStore> {
    const store = new RemoteStore(JSON.stringify([path, options]), wrapper);
    onTestFinished(() => store.kill());
    await store.#reply(0);
    return store;
  }

  private constructor(argument: string, wrapper: readonly string[]) {
    const [command = '', ...args] = [...wrapper, process.execPath, SCRIPT, argument];
    this.#child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdin.on('error', () => {});
    // Every call that waits for its reply adds a listener.
    this.#child.setMaxListeners(0);
    this.pid = this.#child.pid as number;
    createInterface(this.#child.stdout).on('line', (line) => {
      const [id, reply] = JSON.parse(line) as [number, Reply];
      this.#replies.get(id)?.(reply);
      this.#replies.delete(id);
    });
  }

  async ask(call: RemoteCall, request?: Execution): Promise<Reply> {
    const id = ++this.#calls;
    const { key = '', requestId = '', token = Buffer.alloc(0) } = request ?? {};
    const remote: RemoteRequest = { key, requestId, token: token.toString('hex') };
    this.#child.stdin.write(`${JSON.stringify([id, call, remote])}\n`);
    return await this.#reply(id);
  }

  /** The same for a call that must be answered. */
  async answer(call: RemoteCall, request?: Execution): Promise<unknown> {
    const reply = await this.ask(call, request);
    if ('refused' in reply) throw new Error(reply.refused.message);
    return reply.answer;
  }

  /** Repeats this until the process has ended. */
  async untilKilled(act: () => Promise<unknown>): Promise<void> {
    try {
      for (;;) await act();
    } catch (error) {
      if (!(error instanceof ProcessEnded)) throw error;
    }
  }

  /** SIGKILL. Resolves when the process is gone and all its output has been read. */
  async kill(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    // 'close' comes after the last line of output.
    const closed = once(this.#child, 'close');
    this.#child.kill('SIGKILL');
    await closed;
  }

  async #reply(id: number): Promise<Reply> {
    return await new Promise((resolve, reject) => {
      const ended = (code: number | null, signal: string | null) =>
        reject(new ProcessEnded(`the process ended (${signal ?? code})`));
      this.#child.once('close', ended);
      this.#replies.set(id, (reply) => {
        this.#child.off('close', ended);
        resolve(reply);
      });
    });
  }
}

/** Requests that are sent to stores in other processes until those are killed, and what was answered. */
export class RemoteLoad {
  readonly started: Execution[] = [];
  readonly completed: Execution[] = [];
  readonly #ended: Promise<unknown>;

  /** @param lanes of each store. The same lane of another store has the same keys */
  constructor(stores: readonly RemoteStore[], lanes: number) {
    const all = stores.flatMap((store) => Array.from({ length: lanes }, (_, lane) => this.#run(store, lane)));
    this.#ended = Promise.all(all);
  }

  /** Starts and completes one key after the other, and leaves every third key executing. */
  async #run(store: RemoteStore, lane: number): Promise<void> {
    let number = 0;
    await store.untilKilled(async () => {
      const key = `${lane}-${number++}`;
      const request = newRequest({ key, requestId: key });
      const kind = await store.answer('start', request);
      expect(['started', 'in_flight', 'completed']).toContain(kind);
      if (kind !== 'started') return;
      this.started.push(request);
      if (number % 3 === 0) return;
      expect(await store.answer('complete', request)).toBe('ok');
      this.completed.push(request);
    });
  }

  /** When the processes are killed: no key was started twice, and every answer is kept. */
  async expectKept(path: string): Promise<void> {
    await this.#ended;
    expectIntact(path);
    expect(new Set(this.started.map(({ key }) => key)).size).toBe(this.started.length);
    const store = await openSqlite(path);
    for (const { recordId } of this.started) expect(await store.get(recordId)).toBeDefined();
    for (const { key, ...request } of this.completed) {
      const answer = await store.start(duplicateOf({ key, ...request }));
      expect(answer).toEqual({ kind: 'completed', response: paid(key).response, requestId: key });
    }
  }
}
