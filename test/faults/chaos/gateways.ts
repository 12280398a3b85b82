import { type ChildProcess, execFile } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { stringify } from 'yaml';
import type { ConfigInput } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import type { Arm, CrashPoint } from './crash-point.ts';
import { type History, HUNG } from './history.ts';
import { end, startNode } from './processes.ts';

const MAIN = fileURLToPath(new URL('../../../src/main.ts', import.meta.url));
const CRASH_POINTS = fileURLToPath(new URL('./crash-points.ts', import.meta.url));
const FAKETIME = ['x86_64', 'aarch64']
  .map((machine) => `/usr/lib/${machine}-linux-gnu/faketime/libfaketime.so.1`)
  .find((file) => existsSync(file));

/** One gateway's process, which is started anew on the same port whenever it has died. */
export class GatewayProcess {
  readonly number: number;
  readonly configFile: string;
  /** Counts its processes. */
  life = 0;
  port = 0;
  adminPort = 0;
  readonly #folder: string;
  readonly #history: History;
  readonly #config: ConfigInput;
  readonly #clockFile: string | undefined;
  #process: ChildProcess | undefined;
  #diskFullFromMs: number | undefined;
  #hung = false;
  #reviving: Promise<void> | undefined;
  #ended = false;

  /** @param fakeTime its wall clock can be moved */
  constructor(number: number, folder: string, history: History, config: ConfigInput, fakeTime: boolean) {
    this.number = number;
    this.#folder = folder;
    this.configFile = join(folder, `gateway-${number}.yaml`);
    this.#history = history;
    this.#config = config;
    if (fakeTime) this.#clockFile = join(folder, `clock-${number}`);
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    this.port ||= await freePort();
    this.adminPort ||= await freePort();
    const listen = { host: '127.0.0.1', port: this.port };
    const admin = { ...this.#config.admin, host: '127.0.0.1', port: this.adminPort };
    writeFileSync(this.configFile, stringify({ ...this.#config, listen, admin }), { mode: 0o600 });
    const logFile = join(this.#folder, `gateway-${this.number}.log`);
    const child = await startNode(['--import', CRASH_POINTS, MAIN, 'serve', '--config', this.configFile], {
      isReady: () => isHealthy(this.adminPort),
      logFile,
      env: this.#environment(),
    });
    this.life++;
    this.#process = child;
    this.#diskFullFromMs = undefined;
    this.#hung = false;
    const { life } = this;
    child.once('exit', (code, signal) => {
      const how = this.#hung ? HUNG : String(signal ?? code);
      const diskFullFromMs = this.#diskFullFromMs;
      this.#history.add({
        event: 'gateway_died',
        atMs: this.#history.nowMs(),
        gateway: this.number,
        life,
        how,
        ...(diskFullFromMs === undefined ? {} : { diskFullFromMs }),
      });
    });
  }

  /** SIGKILL. */
  async kill(): Promise<void> {
    if (this.#process) await end(this.#process, 'SIGKILL');
  }

  /** SIGTERM; resolves to the exit code when it has gone. */
  async shutDown(): Promise<number | string | null> {
    return this.#process ? await end(this.#process, 'SIGTERM') : null;
  }

  pause(): void {
    this.#process?.kill('SIGSTOP');
  }

  resume(): void {
    this.#process?.kill('SIGCONT');
  }

  /** Dies when it next comes to this point. False: it did not come by within the time, and lives on. */
  async crashAt(point: CrashPoint, withinMs: number): Promise<boolean> {
    const child = this.#process;
    if (!child) return false;
    const arm = (crashAt: Arm['crashAt']) => child.send({ crashAt } satisfies Arm, () => {});
    const died = diesWithin(child, withinMs);
    arm(point);
    if (await died) return true;
    arm('nowhere');
    return false;
  }

  /** It can write no file any more, and ends when it has to. False: it had not ended within the time, and was killed. */
  async fillDisk(withinMs: number): Promise<boolean> {
    const child = this.#process;
    if (!child) return false;
    const died = diesWithin(child, withinMs);
    this.#diskFullFromMs = this.#history.nowMs();
    await promisify(execFile)('prlimit', ['--pid', `${child.pid}`, '--fsize=1:unlimited']);
    if (await died) return true;
    this.#hung = true;
    await this.kill();
    return false;
  }

  /** Moves its wall clock; its monotonic clock goes on as it was. */
  shiftClock(hours: number): void {
    if (this.#clockFile) writeFileSync(this.#clockFile, `${hours < 0 ? '-' : '+'}${Math.abs(hours)}h\n`);
  }

  /** Starts it where it has died. */
  async revive(): Promise<void> {
    const child = this.#process;
    if (this.#ended || (child && child.exitCode === null && child.signalCode === null)) return;
    this.#reviving ??= this.start().finally(() => {
      this.#reviving = undefined;
    });
    await this.#reviving;
  }

  async stop(): Promise<void> {
    this.#ended = true;
    await this.#reviving?.catch(() => {});
    this.resume();
    await this.kill();
  }

  #environment(): NodeJS.ProcessEnv {
    if (!this.#clockFile) return {};
    if (!FAKETIME) throw new Error('libfaketime is missing (Debian, Ubuntu: apt-get install faketime)');
    this.shiftClock(0);
    return {
      LD_PRELOAD: FAKETIME,
      FAKETIME_TIMESTAMP_FILE: this.#clockFile,
      // How soon it sees a move, in seconds.
      FAKETIME_CACHE_DURATION: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
      FAKETIME_DONT_RESET: '1',
    };
  }
}

async function diesWithin(child: ChildProcess, ms: number): Promise<boolean> {
  const died = new Promise<boolean>((resolve) => child.once('exit', () => resolve(true)));
  return await Promise.race([died, sleep(ms, false)]);
}

async function isHealthy(adminPort: number): Promise<boolean> {
  try {
    return (await fetch(`http://127.0.0.1:${adminPort}/healthz`)).ok;
  } catch {
    return false;
  }
}
