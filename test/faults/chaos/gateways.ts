import { type ChildProcess, execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { stringify } from 'yaml';
import { NODE_FLAGS } from '../../../scripts/node-flags.ts';
import type { ConfigInput } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { isStopped } from '../../support/process-life.ts';
import { until } from '../../support/until.ts';
import type { Arm, CrashPoint, GatewayNote } from './crash-point.ts';
import type { History } from './history.ts';
import { controlIo, preloaded } from './preloads.ts';
import { end, goneOf, isGone, startNode } from './processes.ts';

const MAIN = fileURLToPath(new URL('../../../src/main.ts', import.meta.url));
const CRASH_POINTS = fileURLToPath(new URL('./crash-points.ts', import.meta.url));
/** Another fault may make the store unavailable meanwhile, and a gateway does not start without its store. */
const REVIVE_WITHIN_MS = 40_000;

type Paused = Extract<GatewayNote, { note: 'paused' }>;

const runCommand = promisify(execFile);

/** One gateway's process, which is started again on the same port whenever it has died. */
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
  #clockHours = 0;
  #process: ChildProcess | undefined;
  /** The point at which the process has been ordered to die. */
  #diesAt: CrashPoint | undefined;
  /** Whether the process has been asked to exit. */
  #isAsked = false;
  #onPaused: ((paused: Paused) => void) | undefined;
  readonly #onDisarmed = new Map<number, () => void>();
  #orders = 0;
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

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** How long it keeps completed records. */
  get retentionMs(): number {
    return this.#config.idempotency?.retentionMs ?? Number.POSITIVE_INFINITY;
  }

  async start(): Promise<void> {
    this.port ||= await freePort();
    this.adminPort ||= await freePort();
    const listen = { host: '127.0.0.1', port: this.port };
    const admin = { ...this.#config.admin, host: '127.0.0.1', port: this.adminPort };
    writeFileSync(this.configFile, stringify({ ...this.#config, listen, admin }), { mode: 0o600 });
    const logFile = join(this.#folder, `gateway-${this.number}.log`);
    // The file must be there when the process starts.
    this.shiftClock(this.#clockHours);
    const life = this.life + 1;
    const args = [...NODE_FLAGS, '--import', CRASH_POINTS, MAIN, 'serve', '--config', this.configFile];
    const child = await startNode(args, {
      isReady: () => isHealthy(this.adminPort),
      logFile,
      env: preloaded({
        clockFile: this.#clockFile,
        failIoBy: this.#config.store?.kind === 'sqlite' ? this.#fiuPrefix : undefined,
      }),
      onNote: (line) => this.#noted(JSON.parse(line), life),
    });
    this.life = life;
    this.#process = child;
    this.#isAsked = false;
    child.once('exit', (code, signal) => {
      const [atMs, gateway] = [this.#history.nowMs(), this.number];
      const at = signal === 'SIGKILL' && this.#diesAt ? { at: this.#diesAt } : {};
      this.#diesAt = undefined;
      const death = {
        event: 'gateway_died',
        atMs,
        gateway,
        life,
        how: String(signal ?? code),
        ...at,
      } as const;
      this.#history.add(this.#isAsked ? death : { ...death, unasked: true });
    });
  }

  /** Sends SIGKILL. */
  async kill(): Promise<void> {
    if (this.#process) await end(this.#process, 'SIGKILL');
  }

  /** Sends SIGTERM; resolves to the exit code when the process is gone. */
  async shutDown(): Promise<number | string | null> {
    this.#isAsked = true;
    return this.#process ? await end(this.#process, 'SIGTERM') : null;
  }

  pause(): void {
    this.#process?.kill('SIGSTOP');
  }

  resume(): void {
    this.#process?.kill('SIGCONT');
  }

  /** Makes the process die when it next reaches this point. False: it did not reach it in time, and keeps running. */
  async crashAt(point: CrashPoint, withinMs: number): Promise<boolean> {
    const child = this.#living();
    if (!child) return false;
    this.#diesAt = point;
    arm(child, { at: point, act: 'die' });
    await this.#unlessDisarmed(child, withinMs);
    if (isGone(child)) return true;
    this.#diesAt = undefined;
    return false;
  }

  /**
   * Makes the process stop itself when it next reaches this point, and resolves to the stopped execution. Undefined: it did
   * not reach it in time, and keeps running.
   *
   * @param of only in the execution of this merchant and key
   */
  async pauseAt(point: CrashPoint, withinMs: number, of?: string): Promise<Paused | undefined> {
    const child = this.#living();
    if (!child) return undefined;
    const paused = new Promise<Paused>((resolve) => {
      this.#onPaused = resolve;
    });
    arm(child, { at: point, act: 'pause', of });
    const where = await this.#unlessDisarmed(child, withinMs, paused);
    // A SIGCONT before it has stopped itself would be lost.
    if (where) await until(() => isStopped(child.pid as number));
    return where;
  }

  /**
   * Waits until the process is gone, or until another effect of an order. If that takes too long, the order is taken back, and the
   * process confirms that: until then it may still reach the point. It may also be dying there already, because a loaded machine
   * needs a while to end it.
   */
  async #unlessDisarmed<T>(child: ChildProcess, withinMs: number, ...effect: Promise<T>[]) {
    const effects = [...effect, goneOf(child).then(() => undefined)];
    const inTime = await Promise.race([...effects, sleep(withinMs, undefined)]);
    if (inTime !== undefined || isGone(child)) return inTime;
    const order = this.#orders++;
    const disarmed = new Promise<undefined>((resolve) => {
      this.#onDisarmed.set(order, () => resolve(undefined));
    });
    arm(child, { at: 'nowhere', order });
    return await Promise.race([...effects, disarmed]);
  }

  /** Makes its writes to files fail as on a full disk, or succeed again. */
  async limitFiles(on: boolean): Promise<void> {
    const child = this.#living();
    if (!child) return;
    const limit = on ? '--fsize=1:unlimited' : '--fsize=unlimited:unlimited';
    await runCommand('prlimit', ['--pid', `${child.pid}`, limit]);
  }

  /** Makes these system calls fail with a probability; 0 ends that. The names are libfiu's. */
  async failIo(points: readonly string[], probability: number): Promise<void> {
    const child = this.#living();
    if (!child) return;
    for (;;) {
      try {
        await controlIo(this.#fiuPrefix, child.pid, points, probability);
        return;
      } catch (error) {
        // A process that another fault has stopped does not answer, and a dead process has nothing to heal.
        if (probability > 0) throw error;
        if (this.#living() !== child) return;
      }
    }
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
    this.resume();
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

  #noted(note: GatewayNote, life: number): void {
    if (note.note === 'disarmed') {
      this.#onDisarmed.get(note.order)?.();
      return;
    }
    const scope = `${note.merchant} ${note.key}`;
    const [atMs, gateway] = [this.#history.nowMs(), this.number];
    if (note.note === 'sends') this.#history.add({ event: 'sent', atMs, scope, gateway, life });
    else this.#onPaused?.(note);
  }

  get #fiuPrefix(): string {
    return join(this.#folder, `fiu-${this.number}`);
  }
}

const arm = (child: ChildProcess, how: Arm): void => void child.send(how, () => {});

async function isHealthy(adminPort: number): Promise<boolean> {
  try {
    return (await fetch(`http://127.0.0.1:${adminPort}/healthz`)).ok;
  } catch {
    return false;
  }
}
