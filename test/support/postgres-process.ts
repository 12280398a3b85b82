import { type ChildProcessByStdio, execFile, execFileSync, spawn } from 'node:child_process';
import { hash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import {
  appendFileSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { schemaSql } from '../../src/store/postgres/schema.ts';
import { freePort } from './free-port.ts';
import { limitFiles } from './limit-files.ts';
import { until } from './until.ts';

/** Debian keeps the programs of each version in a folder of its own. */
const BIN = ['/usr/lib/postgresql']
  .filter(existsSync)
  .flatMap((folder) => readdirSync(folder).map((version) => join(folder, version, 'bin')))
  .findLast((folder) => existsSync(join(folder, 'initdb')));

/** PostgreSQL refuses to run as root. Debian's package makes this user. */
const OWNER =
  process.getuid?.() === 0 && BIN
    ? { uid: idOf('-u'), gid: idOf('-g') }
    : { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 };

function idOf(flag: string): number {
  return Number(execFileSync('id', [flag, 'postgres'], { encoding: 'utf8' }));
}

function program(name: string): string {
  if (BIN) return join(BIN, name);
  throw new Error('the tests need postgresql, 13 or newer: npm test -- --install installs it from Debian');
}

/** Options of `initdb`: the files of the log are so short that it goes on under the limit {@link TABLES_FULL}. */
export const SHORT_LOG_FILES = ['--wal-segsize=1'];
/** A limit for files. It is no multiple of a page, so that a page is written in part, as on a full disk. */
export const TABLES_FULL = 1024 ** 2 + 4096;

const execute = promisify(execFile);

/**
 * As for Redis: when the pipe on the shell's standard input closes, the shell kills the server. The shell itself closes its
 * standard error, so that the pipe of the log ends when the server ends.
 */
const SUPERVISED = '"$@" & echo "pid $!"; exec 2>/dev/null; cat >/dev/null; kill -9 $!; wait';
const USER = 'oncegate';

type Process = ChildProcessByStdio<Writable, Readable, Readable>;

/** A standby of a server, which follows it. The caller stops it. */
export async function launchStandby(
  primary: PostgresServer,
  settings: Record<string, string> = {},
): Promise<PostgresServer> {
  const standby = new PostgresServer(await freePort(), settings);
  const options = ['-D', standby.data, '-R', '-c', 'fast', '-X', 'stream'];
  return await launched(standby, async () => {
    await standby.run('pg_basebackup', '-d', primary.url, ...options);
    await standby.start();
  });
}

/** A server on a free port, with its schema prepared. The caller stops it. @param more options of `initdb` */
export async function launchPostgres(
  settings: Record<string, string> = {},
  more: readonly string[] = [],
): Promise<PostgresServer> {
  const server = new PostgresServer(await freePort(), settings);
  return await launched(server, async () => {
    await initialise(server, more);
    await server.start();
    await server.admin.query(schemaSql('oncegate'));
  });
}

/** Stops the server and removes its folder if `start` fails: the caller has no server to stop then. */
async function launched(server: PostgresServer, start: () => Promise<void>): Promise<PostgresServer> {
  try {
    await start();
    return server;
  } catch (error) {
    await server.stop();
    throw error;
  }
}

/** Whether a process still runs. A zombie has ended, and holds no memory any more. */
function isRunning(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return false;
  }
}

const CACHE = fileURLToPath(new URL('../../node_modules/.cache/', import.meta.url));

/** `initdb`, which takes more time than a start of the server. What it made once is copied. */
async function initialise(server: PostgresServer, more: readonly string[]): Promise<void> {
  const options = ['-U', USER, '-E', 'UTF8', '--locale=C', '-N', '--auth=trust', ...more];
  const made = join(CACHE, `postgres-${hash('sha256', [program('initdb'), ...options].join(' '))}`);
  const copy = (from: string, to: string) => execute('cp', ['--archive', from, to]);
  if (existsSync(made)) {
    await copy(made, server.data);
    return;
  }
  await server.run('initdb', '-D', server.data, ...options);
  const draft = `${made}.${randomUUID()}`;
  mkdirSync(CACHE, { recursive: true });
  await copy(server.data, draft);
  try {
    renameSync(draft, made);
  } catch {
    // Another process was first.
    rmSync(draft, { recursive: true });
  }
}

/** A real server with its own folder. */
export class PostgresServer {
  readonly port: number;
  readonly url: string;
  readonly dir: string;
  readonly #settings: Record<string, string>;
  #process: Process | undefined;
  #admin: pg.Pool | undefined;
  pid = 0;

  constructor(port: number, settings: Record<string, string>) {
    this.port = port;
    this.url = `postgres://${USER}@127.0.0.1:${port}/postgres`;
    this.#settings = settings;
    this.dir = mkdtempSync(join(tmpdir(), 'postgres-'));
    chownSync(this.dir, OWNER.uid, OWNER.gid);
  }

  get data(): string {
    return join(this.dir, 'data');
  }

  /** The path of one of PostgreSQL's programs. */
  program = program;

  /** Runs one of PostgreSQL's programs as its user. */
  async run(name: string, ...args: string[]): Promise<void> {
    await execute(program(name), args, { ...OWNER, cwd: this.dir });
  }

  /** A pool of the test with direct connections. */
  get admin(): pg.Pool {
    if (!this.#admin) {
      this.#admin = new pg.Pool({ connectionString: this.url, max: 4 });
      this.#admin.on('error', () => {});
    }
    return this.#admin;
  }

  /**
   * Resolves when it accepts connections.
   *
   * @param more options of the command `postgres`
   * @throws the server has ended; the message has its log
   */
  async start(...more: string[]): Promise<void> {
    const settings = {
      ...{ port: `${this.port}`, listen_addresses: '127.0.0.1', unix_socket_directories: this.dir },
      ...{ shared_buffers: '16MB', log_min_messages: 'warning', max_wal_size: '256MB' },
      ...this.#settings,
    };
    const options = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
    const args = ['-c', SUPERVISED, 'sh', program('postgres'), '-D', this.data, ...more, ...options];
    const child = spawn('sh', args, { ...OWNER, stdio: ['pipe', 'pipe', 'pipe'], cwd: this.dir });
    this.#process = child;
    child.stdin.on('error', () => {});
    const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
    this.pid = Number(line.slice('pid '.length));
    const log: string[] = [];
    let hasEnded = false;
    createInterface(child.stderr)
      .on('line', (text) => log.push(text))
      .once('close', () => {
        hasEnded = true;
      });
    for (;;) {
      const client = new pg.Client({ connectionString: this.url });
      client.on('error', () => {});
      try {
        await client.connect();
        await client.end();
        return;
      } catch (error) {
        await client.end().catch(() => {});
        if (hasEnded) throw new Error(`postgres did not start:\n${log.join('\n')}`, { cause: error });
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    }
  }

  /** Changes settings in postgresql.conf and reads it again. */
  async set(settings: Record<string, string>): Promise<void> {
    for (const [name, value] of Object.entries(settings))
      appendFileSync(join(this.data, 'postgresql.auto.conf'), `${name} = '${value}'\n`);
    await this.admin.query('SELECT pg_reload_conf()');
  }

  /** Its backends and the server itself, which is stopped first, so that it makes no further ones. */
  #stopped(): number[] {
    process.kill(this.pid, 'SIGSTOP');
    const children = readFileSync(`/proc/${this.pid}/task/${this.pid}/children`, 'utf8');
    return [...children.trim().split(' ').filter(Boolean).map(Number), this.pid];
  }

  /** @returns its processes */
  #signal(signal: 'SIGSTOP' | 'SIGCONT' | 'SIGKILL'): number[] {
    const pids = this.#stopped();
    for (const pid of pids)
      try {
        process.kill(pid, signal);
      } catch (error) {
        // It has ended meanwhile.
        if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
      }
    return pids;
  }

  /** Makes writes behind this place of any file fail, as on a full disk, or succeed again. Until it is started again. */
  limitFiles(bytes: number | 'unlimited'): void {
    for (const pid of this.#stopped())
      try {
        limitFiles(pid, bytes, OWNER);
      } catch (error) {
        // A backend has ended meanwhile.
        if (existsSync(`/proc/${pid}`)) throw error;
      }
    process.kill(this.pid, 'SIGCONT');
  }

  /** Stops all its processes, until it is thawed. The kernel still accepts connections for it. */
  freeze(): void {
    this.#signal('SIGSTOP');
  }

  thaw(): void {
    this.#signal('SIGCONT');
  }

  /** SIGKILL to the server and all its backends. Resolves when they are gone: one that is left keeps the next server from starting. */
  async kill(): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (!child || child.exitCode !== null) return;
    let pids: number[] = [];
    try {
      if (existsSync(`/proc/${this.pid}`)) pids = this.#signal('SIGKILL');
    } catch (error) {
      // It may end by itself at any moment, and then has neither a list of children nor a process to stop.
      if (isRunning(this.pid)) throw error;
    }
    const exited = once(child, 'exit');
    child.stdin.end();
    await exited;
    await until(() => !pids.some(isRunning));
  }

  /**
   * Makes a standby the primary. It asks again and again, because a statement that waits for the end may be in the way of what the
   * standby has to apply before.
   */
  async promote(): Promise<void> {
    await this.admin.query('SELECT pg_promote(false)');
    const inRecovery = 'SELECT pg_is_in_recovery() AS found';
    await until(async () => !(await this.admin.query(inRecovery)).rows[0].found);
  }

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  async stop(): Promise<void> {
    await this.#admin?.end().catch(() => {});
    this.#admin = undefined;
    await this.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }
}
