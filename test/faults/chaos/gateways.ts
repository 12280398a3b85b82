import type { ChildProcess } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { NODE_FLAGS } from '../../../scripts/node-flags.ts';
import type { ConfigInput } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { limitFiles } from '../../support/limit-files.ts';
import { isStopped } from '../../support/process-life.ts';
import { until } from '../../support/until.ts';
import { type Arm, type GatewayNote, machineMs } from './crash-point.ts';
import type { History } from './history.ts';
import { controlIo, preloaded } from './preloads.ts';
import { end, isGone, startNode } from './processes.ts';

const MAIN = fileURLToPath(new URL('../../../src/main.ts', import.meta.url));
const CRASH_POINTS = fileURLToPath(new URL('./crash-points.ts', import.meta.url));
/** Another fault may make the store unavailable meanwhile, and a gateway does not start without its store. */
const REVIVE_WITHIN_MS = 40_000;
const REACHED_WITHIN_MS = 3000;
/** A loaded machine needs a while to end or to stop a process. */
const STOPPED_WITHIN_MS = 1500;

/** One gateway's process, which is started again on the same port whenever it has died. */
export class GatewayProcess {
  readonly number: number;
  readonly configFile: string;
  /** Counts its processes, with those that did not start. */
  life = 0;
  port = 0;
  adminPort = 0;
  readonly #folder: string;
  readonly #history: History;
  readonly #config: ConfigInput;
  readonly #clockFile: string | undefined;
  #clockHours = 0;
  #process: ChildProcess | undefined;
  /** Whether the process has been asked to exit. */
  #isAsked = false;
  /** The execution in which it has stopped itself. */
  #stoppedIn: GatewayNote | undefined;
  #reviving: Promise<void> | undefined;
  /** The newest command that makes its system calls fail or succeed again. */
  #ioControlled: Promise<void> = Promise.resolve();
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

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  async start(): Promise<void> {
    this.port ||= await freePort();
    this.adminPort ||= await freePort();
    const listen = { host: '127.0.0.1', port: this.port };
    const admin = { ...this.#config.admin, host: '127.0.0.1', port: this.adminPort };
    writeFileSync(this.configFile, stringify({ ...this.#config, listen, admin }), { mode: 0o600 });
    // The file must be there when the process starts.
    this.shiftClock(this.#clockHours);
    const isSqlite = this.#config.store?.kind === 'sqlite';
    const args = [...NODE_FLAGS, '--import', CRASH_POINTS, MAIN, 'serve', '--config', this.configFile];
    // Counted before it starts: merchants may reach it before it is seen to be healthy.
    const life = ++this.life;
    const child = await startNode(args, {
      isReady: () => isHealthy(this.adminPort),
      logFile: join(this.#folder, `gateway-${this.number}.log`),
      env: preloaded(this.#clockFile, isSqlite ? this.#fiuPrefix : undefined),
      onNote: (line) => this.#noted(JSON.parse(line)),
    });
    this.#process = child;
    this.#isAsked = false;
    child.once('exit', (code, signal) =>
      this.#history.add({
        ...{ event: 'gateway_died', atMs: this.#history.nowMs(), gateway: this.number, life },
        ...{ how: String(signal ?? code), ...(this.#isAsked ? {} : { unasked: true }) },
      }),
    );
  }

  /** Sends SIGKILL. */
  async kill(): Promise<void> {
    if (this.#process) await end(this.#process, 'SIGKILL');
  }

  /** Sends SIGTERM; resolves when the process is gone. */
  async shutDown(): Promise<void> {
    this.#isAsked = true;
    if (this.#process) await end(this.#process, 'SIGTERM');
  }

  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#process?.kill(signal);
  }

  /**
   * Makes the process die, or stop itself, when it next reaches a point. Resolves to the execution in which it has stopped.
   *
   * @throws if it did not reach the point in time. Then it keeps running
   */
  async endAt(at: Arm['at'], act: Arm['act']): Promise<GatewayNote | undefined> {
    const child = this.#living();
    if (!child) throw new Error(`gateway ${this.number} does not run`);
    this.#stoppedIn = undefined;
    const arm: Arm = { at, act, untilMs: machineMs() + REACHED_WITHIN_MS };
    child.send(arm, () => {});
    // A SIGCONT before it has stopped itself would be lost.
    const hasEnded = () => isGone(child) || (this.#stoppedIn && isStopped(child.pid as number));
    await until(hasEnded, REACHED_WITHIN_MS + STOPPED_WITHIN_MS);
    return this.#stoppedIn;
  }

  /** Makes its writes to files fail as on a full disk, or succeed again. */
  limitFiles(on: boolean): void {
    const child = this.#living();
    if (child) limitFiles(child.pid as number, on ? 1 : 'unlimited');
  }

  /** Makes these system calls fail with a probability; 0 ends that. The names are libfiu's. */
  async failIo(points: readonly string[], probability: number): Promise<void> {
    const control = () => {
      // One at a time: two commands on one pair of pipes take each other's answers, and wait for good.
      const command = () => controlIo(this.#fiuPrefix, this.pid, points, probability);
      const answered = this.#ioControlled.then(command, command);
      this.#ioControlled = answered;
      return answered;
    };
    if (probability > 0) return await control();
    // A process that another fault has stopped does not answer, and a dead process has nothing to heal.
    const isHealed = () =>
      control().then(
        () => true,
        () => !this.#living(),
      );
    await until(isHealed);
  }

  /** Moves its wall clock; its monotonic clock is not affected. */
  shiftClock(hours: number): void {
    this.#clockHours = hours;
    if (this.#clockFile) writeFileSync(this.#clockFile, `${hours < 0 ? '-' : '+'}${Math.abs(hours)}h\n`);
  }

  /** Starts it if it has died, and repeats that while its store is unavailable. */
  async revive(): Promise<void> {
    if (this.#ended || this.#living()) return;
    this.#reviving ??= this.#startAgain().finally(() => {
      this.#reviving = undefined;
    });
    await this.#reviving;
  }

  async stop(): Promise<void> {
    this.#ended = true;
    await this.#reviving?.catch(() => {});
    this.signal('SIGCONT');
    await this.kill();
  }

  #living(): ChildProcess | undefined {
    const child = this.#process;
    return child && !isGone(child) ? child : undefined;
  }

  async #startAgain(): Promise<void> {
    const endMs = performance.now() + REVIVE_WITHIN_MS;
    for (;;) {
      try {
        await this.start();
        return;
      } catch (error) {
        if (this.#ended || performance.now() > endMs) throw error;
        const text = `gateway ${this.number} did not start: ${(error as Error).message}`;
        this.#history.add({ event: 'note', atMs: this.#history.nowMs(), text });
        await sleep(300);
      }
    }
  }

  #noted(note: GatewayNote): void {
    const name = `${note.merchant} ${note.key}`;
    if (note.note === 'sends') this.#history.add({ event: 'sent', atMs: this.#history.nowMs(), name });
    else this.#stoppedIn = note;
  }

  get #fiuPrefix(): string {
    return join(this.#folder, `fiu-${this.number}`);
  }
}

async function isHealthy(adminPort: number): Promise<boolean> {
  try {
    return (await fetch(`http://127.0.0.1:${adminPort}/healthz`)).ok;
  } catch {
    return false;
  }
}
