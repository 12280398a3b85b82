import { Cluster, type Redis } from 'ioredis';
import type { Clock } from '../../../kernel/clock.ts';
import type { StoreHealth } from '../../store.ts';
import type { RedisClient } from './connect.ts';

interface HealthOptions {
  prefix: string;
  gatewayId: string;
  clock: Clock;
  onClockStep?: (stepMs: number) => void;
}

/** Redis' wall clock less our monotonic clock, known to lie between these two; and when that was. */
interface Offset {
  leastMs: number;
  mostMs: number;
  atMs: number;
}

const PROBE_MS = 1000;
const STEP_MS = 1000;
/** How much a clock may be slewed, per millisecond that has passed: twice what Linux allows. */
const SLEW = 0.001;
const STEP_IS_REPORTED_FOR_MS = 3_600_000;
/** In a cluster: attempts to find a key of a master's own. A master without slots has none. */
const PROBE_NAMES = 100;

/** Writes a probe key on every master, and watches the clocks of their hosts: by those, Redis expires records. */
export class Health {
  /** Warnings about Redis' settings, found when the store was opened. */
  settings: readonly string[] = [];
  readonly #client: RedisClient;
  readonly #options: HealthOptions;
  /** By master. */
  readonly #offsets = new Map<string, Offset>();
  /** By master: the number in the name of its probe key. */
  readonly #probes = new Map<string, number>();
  #timeIsForbidden = false;
  #step: { stepMs: number; atMs: number } | undefined;

  constructor(client: RedisClient, options: HealthOptions) {
    this.#client = client;
    this.#options = options;
  }

  async look(): Promise<StoreHealth> {
    try {
      await this.#client.set(this.#probeName, '1', 'PX', PROBE_MS);
      if (this.#client instanceof Cluster) {
        const masters = this.#client.nodes('master');
        await Promise.all(masters.map((master) => this.#probe(master)));
        await Promise.all(masters.map((master) => this.#compareClocks(master, addressOf(master))));
      } else {
        await this.#compareClocks(this.#client, '');
      }
      return { ok: true, detail: 'redis', warnings: this.#warnings() };
    } catch (error) {
      return { ok: false, detail: `redis: ${(error as Error).message}`, warnings: this.#warnings() };
    }
  }

  get #probeName(): string {
    return `${this.#options.prefix}:v2:probe:${this.#options.gatewayId}`;
  }

  /** A master refuses keys of other masters' slots with MOVED, so names are tried until one is its own. */
  async #probe(master: Redis): Promise<void> {
    const address = addressOf(master);
    const known = this.#probes.get(address) ?? 0;
    for (let attempt = 0; attempt < PROBE_NAMES; attempt++) {
      const number = (known + attempt) % PROBE_NAMES;
      try {
        await master.set(`${this.#probeName}:{${number}}`, '1', 'PX', PROBE_MS);
        this.#probes.set(address, number);
        return;
      } catch (error) {
        if (!/^(?:MOVED|ASK|TRYAGAIN) /.test((error as Error).message)) throw error;
      }
    }
  }

  async #compareClocks(node: Redis, name: string): Promise<void> {
    const { clock, onClockStep } = this.#options;
    const beforeMs = clock.monotonicMs();
    const time = await node.time().catch(ignoreForbidden);
    this.#timeIsForbidden = time === undefined;
    if (!time) return;
    const [seconds, micros] = time;
    const atMs = clock.monotonicMs();
    const timeMs = Number(seconds) * 1000 + Number(micros) / 1000;
    const now = { leastMs: timeMs - atMs, mostMs: timeMs - beforeMs, atMs };
    const last = this.#offsets.get(name);
    this.#offsets.set(name, now);
    if (!last) return;
    const slewMs = SLEW * (atMs - last.atMs);
    // The smallest step that explains both readings.
    const stepMs =
      now.leastMs > last.mostMs ? now.leastMs - last.mostMs : Math.min(0, now.mostMs - last.leastMs);
    if (Math.abs(stepMs) <= STEP_MS + slewMs) return;
    this.#step = { stepMs: Math.round(stepMs), atMs };
    onClockStep?.(Math.round(stepMs));
  }

  #warnings(): string[] {
    const warnings = [...this.settings];
    if (this.#timeIsForbidden)
      warnings.push('redis does not let us read TIME: a step of its clock is not noticed');
    if (this.#step && this.#options.clock.monotonicMs() - this.#step.atMs < STEP_IS_REPORTED_FOR_MS) {
      const { stepMs } = this.#step;
      const when = stepMs > 0 ? 'early' : 'late';
      warnings.push(`the clock of redis' host was stepped by ${stepMs} ms: records expire ${when}`);
    }
    return warnings;
  }
}

/** A user that may not read TIME can still store records. */
function ignoreForbidden(error: Error): undefined {
  if (!error.message.startsWith('NOPERM')) throw error;
}

const addressOf = ({ options }: Redis): string => `${options.host}:${options.port}`;
