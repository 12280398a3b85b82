import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { freePort } from '../../test/support/free-port.ts';
import { NODE_FLAGS } from '../node-flags.ts';
import type { SoakOptions } from './options.ts';

const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
const READY_WITHIN_MS = 15_000;

/** The merchants of the sandbox; their secrets are public samples. */
export const SECRETS = ['sk_sandbox_alpha', 'sk_sandbox_bravo', 'sk_sandbox_charlie'];

export interface GatewayProcess {
  pid: number;
  url: string;
  adminUrl: string;
}

/** Sandbox, store and gateway, each in a separate process, with one folder that is removed afterwards. */
export class Processes {
  readonly #folder = mkdtempSync(join(tmpdir(), 'oncegate-soak-'));
  readonly #children: ChildProcess[] = [];
  #ending = false;
  sandbox = { url: '' };
  gateway: GatewayProcess = { pid: 0, url: '', adminUrl: '' };

  static async start(options: SoakOptions): Promise<Processes> {
    const processes = new Processes();
    process.once('exit', () => processes.#killAll());
    try {
      await processes.#startAll(options);
      return processes;
    } catch (error) {
      await processes.end();
      throw error;
    }
  }

  async #startAll(options: SoakOptions): Promise<void> {
    const [sandboxPort, port, adminPort] = [await freePort(), await freePort(), await freePort()];
    const ledger = join(this.#folder, 'ledger.sqlite');
    this.#spawn(process.execPath, [MAIN, 'sandbox', '--port', `${sandboxPort}`, '--db', ledger]);
    await listening(sandboxPort);
    this.sandbox = { url: `http://127.0.0.1:${sandboxPort}` };
    const config = {
      listen: { host: '127.0.0.1', port },
      admin: { port: adminPort },
      upstream: this.sandbox,
      // The disk may be slow while the maximum is measured, and on a machine that other programs use.
      store: { ...(await this.#store(options.store)), timeoutMs: 5000 },
      auth: { keys: { source: 'file', path: this.#keys() } },
      idempotency: { retentionMs: options.retentionMs },
      shutdown: { delayMs: 0 },
    };
    const file = join(this.#folder, 'gateway.yaml');
    writeFileSync(file, stringify(config));
    const child = this.#spawn(process.execPath, [...NODE_FLAGS, MAIN, 'serve', '--config', file]);
    await listening(port);
    const adminUrl = `http://127.0.0.1:${adminPort}`;
    this.gateway = { pid: child.pid as number, url: `http://127.0.0.1:${port}`, adminUrl };
  }

  async #store(kind: SoakOptions['store']): Promise<object> {
    if (kind === 'sqlite') return { kind, path: join(this.#folder, 'data') };
    const port = await freePort();
    const persistence = ['--save', '', '--appendonly', 'yes', '--appendfsync', 'always'];
    const place = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', this.#folder];
    this.#spawn('redis-server', [...place, ...persistence]);
    await listening(port);
    return { kind, url: `redis://127.0.0.1:${port}` };
  }

  #keys(): string {
    const merchants = SECRETS.map((secret) => ({
      code: `M-${secret.slice('sk_sandbox_'.length).toUpperCase()}`,
      keys: [{ id: secret.slice(3), dangerouslyPlainSecret: secret }],
    }));
    const path = join(this.#folder, 'keys.yaml');
    writeFileSync(path, stringify({ merchants }));
    return path;
  }

  /** Discards standard output, which is the log, and shows standard error. */
  #spawn(command: string, args: string[]): ChildProcess {
    // In a separate process group, so that Ctrl-C stops the load only.
    const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'inherit'], detached: true });
    this.#children.push(child);
    const complain = (what: string) => process.stderr.write(`soak: ${command} ${args[1] ?? ''}: ${what}\n`);
    child.once('error', ({ message }) => complain(message));
    child.once('exit', (code, signal) => this.#ending || complain(`exited with ${signal ?? code}`));
    return child;
  }

  /** Sends SIGTERM. Returns the exit code, or the signal that killed the process. */
  async endGateway(): Promise<number | string | null> {
    this.#ending = true;
    const child = this.#children.find(({ pid }) => pid === this.gateway.pid);
    return child ? await ended(child) : null;
  }

  async end(): Promise<void> {
    this.#ending = true;
    await Promise.all(this.#children.splice(0).reverse().map(ended));
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #killAll(): void {
    for (const child of this.#children) child.kill('SIGKILL');
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function ended(child: ChildProcess): Promise<number | string | null> {
  if (child.pid === undefined) return null;
  if (child.exitCode === null && child.signalCode === null) {
    child.kill('SIGTERM');
    await once(child, 'exit');
  }
  return child.exitCode ?? child.signalCode;
}

async function listening(port: number): Promise<void> {
  const endMs = performance.now() + READY_WITHIN_MS;
  while (!(await connects(port))) {
    if (performance.now() > endMs) throw new Error(`no process listens on port ${port}`);
    await sleep(50);
  }
}

function connects(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(true));
    socket.once('error', () => resolve(false)).once('connect', () => socket.destroy());
  });
}
