import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { Redis } from 'ioredis';
import { freePort } from './free-port.ts';

/**
 * The shell holds redis-server on a leash: when the pipe on its standard input closes, it kills the server.
 * The kernel closes that pipe however the test's process ends, so that no server is ever left behind.
 */
const LEASH = 'redis-server "$@" & echo "pid $!"; cat >/dev/null; kill -9 $!; wait';
const START_WITHIN_MS = 10_000;

export interface RedisServerOptions {
  /** Default true: every write is on the disk before it is answered. False: nothing is kept. */
  appendonly?: boolean;
  /** More of redis-server's command line; later ones win. */
  args?: string[];
  /** A sentinel instead, with these lines of configuration. */
  sentinel?: string[];
}

type Process = ChildProcessByStdio<Writable, Readable, null>;

/** A server on a free port. The caller stops it. */
export async function launchRedis(options: RedisServerOptions = {}): Promise<RedisServer> {
  for (;;) {
    const server = new RedisServer(await freePort(), options);
    if (await server.start()) return server;
    await server.stop();
  }
}

/** A real redis-server process of ours, in a folder of its own. */
export class RedisServer {
  readonly port: number;
  readonly url: string;
  readonly dir = mkdtempSync(join(tmpdir(), 'redis-'));
  readonly #args: string[];
  #process: Process | undefined;
  #pid = 0;
  #admin: Redis | undefined;

  constructor(port: number, { appendonly = true, args = [], sentinel }: RedisServerOptions) {
    this.port = port;
    this.url = `redis://127.0.0.1:${port}`;
    if (sentinel) {
      const file = join(this.dir, 'sentinel.conf');
      writeFileSync(file, [`port ${port}`, 'bind 127.0.0.1', `dir ${this.dir}`, ...sentinel, ''].join('\n'));
      this.#args = [file, '--sentinel'];
      return;
    }
    const persistence = appendonly
      ? ['--appendonly', 'yes', '--appendfsync', 'always']
      : ['--appendonly', 'no'];
    const place = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', this.dir, '--save', ''];
    this.#args = [...place, ...persistence, ...args];
  }

  get pid(): number {
    return this.#pid;
  }

  /**
   * Resolves when it takes connections. False: its port is somebody else's.
   *
   * @param more of the command line, for this start only
   */
  async start(more: string[] = []): Promise<boolean> {
    const child = spawn('sh', ['-c', LEASH, 'sh', ...this.#args, ...more], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.#process = child;
    // The leash may be gone already when it is let go.
    child.stdin.on('error', () => {});
    const log: string[] = [];
    const timer = setTimeout(() => child.stdin.end(), START_WITHIN_MS);
    try {
      for await (const line of createInterface(child.stdout)) {
        log.push(line);
        if (line.startsWith('pid ')) this.#pid = Number(line.slice(4));
        if (line.includes('Address already in use')) return false;
        if (/Ready to accept connections|Sentinel ID is/.test(line)) return true;
      }
    } finally {
      clearTimeout(timer);
      child.stdout.resume();
    }
    throw new Error(`redis-server did not start:\n${log.join('\n')}`);
  }

  /** SIGKILL. Resolves when it is gone. */
  async kill(): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (!child || child.exitCode !== null) return;
    const exited = once(child, 'exit');
    child.stdin.end();
    await exited;
  }

  /** The same port and the same folder; killed first where it still runs. */
  async restart(more: string[] = []): Promise<void> {
    await this.kill();
    if (!(await this.start(more))) throw new Error(`port ${this.port} was taken in the meantime`);
  }

  /** Nothing is answered any more, and nothing refused either. */
  freeze(): void {
    process.kill(this.#pid, 'SIGSTOP');
  }

  thaw(): void {
    process.kill(this.#pid, 'SIGCONT');
  }

  /** A client of the test's own, past whatever stands between the store and the server. */
  get admin(): Redis {
    this.#admin ??= new Redis(this.url, { retryStrategy: () => 25 }).on('error', () => {});
    return this.#admin;
  }

  /** How often a command was executed, the calls from scripts included: `set`, `evalsha`, … */
  async commandCount(name: string): Promise<number> {
    const stats = await this.admin.info('commandstats');
    return Number(new RegExp(`^cmdstat_${name}:calls=(\\d+)`, 'm').exec(stats)?.[1] ?? 0);
  }

  async stop(): Promise<void> {
    this.#admin?.disconnect();
    this.#admin = undefined;
    await this.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
