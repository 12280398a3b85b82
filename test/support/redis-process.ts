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
 * A shell supervises redis-server: when the pipe on the shell's standard input closes, it kills the server. The kernel
 * closes that pipe however the test's process ends, so that no server keeps running.
 */
const SUPERVISED = 'redis-server "$@" & echo "pid $!"; cat >/dev/null; kill -9 $!; wait';
const START_WITHIN_MS = 10_000;

export interface RedisServerOptions {
  /** Default true: every write is on the disk before it is answered. False: no persistence. */
  appendonly?: boolean;
  /** More arguments of redis-server; later ones win. */
  args?: string[];
  /** Options of redis-server for TLS. The server then also speaks TLS, on {@link RedisServer.tlsPort}. */
  tls?: Record<string, string>;
  /** Starts a sentinel instead, with these configuration lines. */
  sentinel?: string[];
}

type Process = ChildProcessByStdio<Writable, Readable, null>;

/** A server on a free port. The caller stops it. */
export async function launchRedis(options: RedisServerOptions = {}): Promise<RedisServer> {
  for (;;) {
    // Both ports anew for each try: it does not say which of them was taken.
    const server = new RedisServer(await freePort(), options, await freePort());
    if (await server.start()) return server;
    await server.stop();
  }
}

/** A real redis-server process with its own folder. */
export class RedisServer {
  readonly port: number;
  /** Used only with `tls`. */
  readonly tlsPort: number;
  readonly url: string;
  readonly dir = mkdtempSync(join(tmpdir(), 'redis-'));
  readonly #args: string[];
  #process: Process | undefined;
  #pid = 0;
  #admin: Redis | undefined;

  constructor(
    port: number,
    { appendonly = true, args = [], tls, sentinel }: RedisServerOptions,
    tlsPort: number,
  ) {
    this.port = port;
    this.tlsPort = tlsPort;
    const tlsOptions = Object.entries(tls ? { 'tls-port': `${tlsPort}`, ...tls } : {});
    this.url = `redis://127.0.0.1:${port}`;
    if (sentinel) {
      const file = join(this.dir, 'sentinel.conf');
      const tlsLines = tlsOptions.map(([name, value]) => `${name} ${value}`);
      const lines = [`port ${port}`, 'bind 127.0.0.1', `dir ${this.dir}`, ...tlsLines, ...sentinel, ''];
      writeFileSync(file, lines.join('\n'));
      this.#args = [file, '--sentinel'];
      return;
    }
    const persistence = appendonly
      ? ['--appendonly', 'yes', '--appendfsync', 'always']
      : ['--appendonly', 'no'];
    const place = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', this.dir, '--save', ''];
    const tlsArguments = tlsOptions.flatMap(([name, value]) => [`--${name}`, value]);
    this.#args = [...place, ...persistence, ...tlsArguments, ...args];
  }

  get pid(): number {
    return this.#pid;
  }

  /**
   * Resolves when it accepts connections. False: another process has its port.
   *
   * @param more arguments for this start only
   */
  async start(more: string[] = []): Promise<boolean> {
    const child = spawn('sh', ['-c', SUPERVISED, 'sh', ...this.#args, ...more], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.#process = child;
    // The shell may have exited already.
    child.stdin.on('error', () => {});
    const log: string[] = [];
    this.#pid = 0;
    let isReady = false;
    const timer = setTimeout(() => child.stdin.end(), START_WITHIN_MS);
    try {
      for await (const line of createInterface(child.stdout)) {
        log.push(line);
        if (line.startsWith('pid ')) this.#pid = Number(line.slice(4));
        if (line.includes('Address already in use')) return false;
        if (/Ready to accept connections|Sentinel ID is/.test(line)) isReady = true;
        // On a busy machine the server may write first, and the shell after it.
        if (isReady && this.#pid !== 0) return true;
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

  /** Starts it again with the same port and folder; kills it first if it still runs. */
  async restart(more: string[] = []): Promise<void> {
    await this.kill();
    if (!(await this.start(more))) throw new Error(`port ${this.port} was taken in the meantime`);
  }

  /** Stops the process (SIGSTOP): it neither answers nor refuses anything. */
  freeze(): void {
    // Process 0 is the whole group of the caller.
    if (this.#pid === 0) throw new Error('the server does not run');
    process.kill(this.#pid, 'SIGSTOP');
  }

  thaw(): void {
    process.kill(this.#pid, 'SIGCONT');
  }

  /** A client of the test with a direct connection, without the proxy between store and server. */
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
