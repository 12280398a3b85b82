import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, type Redis } from 'ioredis';
import type { Clock } from '../../../kernel/clock.ts';
import { type StoreHealth, StoreUnavailable } from '../../store.ts';
import type { RedisClient } from './client.ts';

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

/** `INFO` as a map of field to value. */
async function info(node: Redis): Promise<Map<string, string>> {
  const lines = (await node.info()).split('\r\n');
  return new Map(
    lines.filter((line) => line.includes(':')).map((line) => line.split(/:(.*)/s) as [string, string]),
  );
}

/** Undefined if CONFIG is not allowed, as with many hosted servers. */
async function setting(node: Redis, name: string): Promise<string | undefined> {
  try {
    const [, value] = (await node.config('GET', name)) as string[];
    return value;
  } catch {
    return undefined;
  }
}

const AGAIN_AFTER_MS = 100;

/**
 * Checks the settings of Redis; of a cluster, those of every master. If a connection breaks or does not answer, it tries
 * again, because a cluster's client is ready before all of its masters are.
 *
 * @param replicas how many replicas a write waits for
 * @param untilMs on the monotonic clock: no new attempt after it
 * @returns settings under which a record can be lost, each one line
 * @throws {StoreUnavailable} if it is older than 7.0 (scripts with flags), evicts records, or does not answer in time
 */
export async function inspect(
  client: RedisClient,
  replicas: number,
  clock: Clock,
  untilMs: number,
): Promise<string[]> {
  for (;;) {
    try {
      return await inspectNodes(client, replicas);
    } catch (error) {
      const { name, message } = error as Error;
      // An error that Redis itself answered would be the same next time.
      if (error instanceof StoreUnavailable || name === 'ReplyError') throw error;
      if (clock.monotonicMs() >= untilMs)
        throw new StoreUnavailable(`redis cannot be reached: ${message}`, { cause: error });
      await sleep(AGAIN_AFTER_MS);
    }
  }
}

async function inspectNodes(client: RedisClient, replicas: number): Promise<string[]> {
  const nodes = client instanceof Cluster ? client.nodes('master') : [client];
  const warnings = await Promise.all(nodes.map((node) => inspectNode(node, replicas)));
  return [...new Set(warnings.flat())];
}

async function inspectNode(node: Redis, replicas: number): Promise<string[]> {
  const server = await info(node);
  refuseUnusable(server);
  const warnings: string[] = [];
  const fsync = await setting(node, 'appendfsync');
  if (server.get('aof_enabled') !== '1') {
    warnings.push(
      'redis runs without appendonly: a record is lost, and a payout may run again, when redis is killed',
    );
  } else if (fsync !== undefined && fsync !== 'always') {
    warnings.push(
      `redis has appendfsync ${fsync}: the last moment's records are lost when its machine fails`,
    );
  }
  const promotable = Number(server.get('connected_slaves') ?? 0);
  if (promotable > replicas) {
    warnings.push(
      `redis has ${promotable} ${promotable === 1 ? 'replica' : 'replicas'} and durability.replicas is ${replicas}: a failover loses records that had not reached the promoted one`,
    );
  }
  return warnings;
}

function refuseUnusable(server: Map<string, string>): void {
  const version = server.get('redis_version') ?? '0';
  if (Number.parseInt(version, 10) < 7) {
    throw new StoreUnavailable(`redis ${version} is too old: 7.0 or newer is needed`);
  }
  const policy = server.get('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction') {
    throw new StoreUnavailable(
      `redis has maxmemory-policy ${policy}, which evicts records: it must be noeviction`,
    );
  }
}
