import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, type Redis } from 'ioredis';
import type { Clock } from '../../../kernel/clock.ts';
import { meaningOf } from '../../copy/mark.ts';
import { OtherFormat, type StoreHealth, StoreUnavailable } from '../../store.ts';
import type { RedisClient } from './client.ts';
import { copyMarkKeyOf } from './commands.ts';
import { formatKeyOf, refuseOtherFormat } from './store-format.ts';

/** Part of RedisStoreOptions. */
interface HealthOptions {
  prefix: string;
  gatewayId: string;
  /** How many replicas must acknowledge a write. */
  replicas: number;
  /** A command that takes longer is rejected. */
  timeoutMs: number;
  clock: Clock;
  onClockStep?: (stepMs: number) => void;
}

/** Redis' wall clock minus our monotonic clock. It was between these two values at `atMs` on the monotonic clock. */
interface Offset {
  leastMs: number;
  mostMs: number;
  atMs: number;
}

const PROBE_MS = 1000;
/** A smaller change of the offset does not count as a step. */
const STEP_MS = 1000;
/** A clock may be slewed by this share of the time that has passed. Linux slews by at most half as much. */
const SLEW = 0.001;
const STEP_IS_REPORTED_FOR_MS = 3_600_000;
/** How often the settings of Redis are looked at again. They are also looked at after each new connection. */
const INSPECT_EVERY_MS = 30_000;
/** What ioredis says of a command that took longer than its time limit. */
const TIMED_OUT = 'Command timed out';
/** How many key names are tried per master of a cluster. A master without slots accepts none. */
const PROBE_NAMES = 100;

/** Writes a probe key on every master, and watches the clocks of their hosts, because Redis expires records by them. */
export class Health {
  /** Warnings about Redis' settings, as {@link inspect} last found them. */
  #settings: readonly string[] = [];
  /** On the monotonic clock. */
  #inspectedAtMs = Number.NEGATIVE_INFINITY;
  readonly #client: RedisClient;
  readonly #options: HealthOptions;
  /** By address of the master. */
  readonly #offsets = new Map<string, Offset>();
  /** By address of the master: the number in the name of a probe key that it accepts. */
  readonly #probes = new Map<string, number>();
  #timeIsForbidden = false;
  /** Why the client cannot connect, or why its connection broke. */
  #lastError: string | undefined;
  #step: { stepMs: number; atMs: number } | undefined;

  constructor(client: RedisClient, options: HealthOptions) {
    this.#client = client;
    this.#options = options;
    client.on('error', (error: Error) => {
      this.#lastError = reasonOf(error);
    });
    client.on('ready', () => {
      this.#lastError = undefined;
      this.#inspectedAtMs = Number.NEGATIVE_INFINITY;
    });
  }

  /** @param settings warnings that {@link inspect} has found just now */
  inspected(settings: readonly string[]): void {
    this.#settings = settings;
    this.#inspectedAtMs = this.#options.clock.monotonicMs();
  }

  async check(): Promise<StoreHealth> {
    try {
      await this.#client.set(this.#probeName, '1', 'PX', PROBE_MS);
      await this.#inspectAgain();
      // A later version may have migrated the store since it was opened.
      const format = await this.#client.get(formatKeyOf(this.#options.prefix));
      if (format !== null) refuseOtherFormat(this.#options.prefix, format);
      if (this.#client instanceof Cluster) {
        const masters = this.#client.nodes('master');
        await Promise.all(masters.map((master) => this.#probe(master)));
        await Promise.all(masters.map((master) => this.#compareClocks(master, addressOf(master))));
      } else {
        await this.#compareClocks(this.#client, '');
        const mark = await this.#client.get(copyMarkKeyOf(this.#options.prefix));
        const { closed, warning } = meaningOf(mark ?? undefined);
        if (closed)
          return { ok: false, isClosed: true, detail: `redis: ${closed}`, warnings: this.#warnings() };
        if (warning) return { ok: true, detail: 'redis', warnings: [...this.#warnings(), warning] };
      }
      return { ok: true, detail: 'redis', warnings: this.#warnings() };
    } catch (error) {
      if (error instanceof OtherFormat)
        return { ok: false, isClosed: true, detail: error.message, warnings: this.#warnings() };
      return { ok: false, detail: `redis: ${this.#inWords(error as Error)}`, warnings: this.#warnings() };
    }
  }

  /** ioredis speaks of its own state and options, which tell an operator nothing. */
  #inWords({ message }: Error): string {
    const { status } = this.#client;
    if (status === 'connect') return 'connected, but not ready: it may still be loading its file';
    if (status !== 'ready') return ['not connected', this.#lastError ?? []].flat().join(': ');
    return message === TIMED_OUT ? `no answer within ${this.#options.timeoutMs} ms` : message;
  }

  /** Redis may have been restarted or replaced, or its settings changed. What refuses a start is a warning to a gateway that runs. */
  async #inspectAgain(): Promise<void> {
    const { clock, replicas } = this.#options;
    if (clock.monotonicMs() - this.#inspectedAtMs < INSPECT_EVERY_MS) return;
    try {
      this.inspected(await inspectNodes(this.#client, replicas));
    } catch (error) {
      if (error instanceof StoreUnavailable) this.inspected([error.message]);
    }
  }

  get #probeName(): string {
    return `${this.#options.prefix}:v2:probe:${this.#options.gatewayId}`;
  }

  /** A master refuses keys in the slots of other masters with MOVED, so this tries names until the master accepts one. */
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
    // The smallest step that explains both offsets.
    const stepMs =
      now.leastMs > last.mostMs ? now.leastMs - last.mostMs : Math.min(0, now.mostMs - last.leastMs);
    if (Math.abs(stepMs) <= STEP_MS + slewMs) return;
    this.#step = { stepMs: Math.round(stepMs), atMs };
    onClockStep?.(Math.round(stepMs));
  }

  #warnings(): string[] {
    const warnings = [...this.#settings];
    if (this.#timeIsForbidden)
      warnings.push('redis does not allow TIME: the gateway cannot notice a step of its clock');
    if (this.#step && this.#options.clock.monotonicMs() - this.#step.atMs < STEP_IS_REPORTED_FOR_MS) {
      const { stepMs } = this.#step;
      const when = stepMs > 0 ? 'early' : 'late';
      warnings.push(`the clock of redis' host was stepped by ${stepMs} ms: records expire ${when}`);
    }
    return warnings;
  }
}

/** A cluster's client says only that it failed everywhere; a name with several addresses fails without a message. */
function reasonOf(error: NodeJS.ErrnoException & { lastNodeError?: NodeJS.ErrnoException }): string {
  const { message, code } = error.lastNodeError ?? error;
  return message || String(code);
}

/** A Redis user without permission for TIME can still store records. */
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

/** Undefined: CONFIG is not allowed, as on many hosted servers. */
async function setting(node: Redis, name: string): Promise<string | undefined> {
  try {
    const [, value] = (await node.config('GET', name)) as string[];
    return value;
  } catch {
    return undefined;
  }
}

const RETRY_AFTER_MS = 100;
/** Errors of a Redis that is loading its file, failing over or running a long script. */
const PASSES = /^(?:CLUSTERDOWN|TRYAGAIN|MASTERDOWN|LOADING|BUSY) /;

/**
 * Checks the settings of Redis, in a cluster those of every master. Tries again if a connection breaks or does not answer,
 * because the client of a cluster is ready before all masters are.
 *
 * @param replicas how many replicas must acknowledge a write
 * @param untilMs on the monotonic clock. No new attempt begins after it
 * @returns warnings about settings that can lose a record, one line each
 * @throws {StoreUnavailable} if Redis is older than 7.0 (which has no script flags), evicts records, or does not answer
 */
export async function inspect(
  client: RedisClient,
  replicas: number,
  clock: Clock,
  untilMs: number,
): Promise<string[]> {
  return await whileUnanswered(() => inspectNodes(client, replicas), clock, untilMs);
}

/**
 * Repeats what a connection that breaks, or does not answer, has prevented.
 *
 * @param untilMs on the monotonic clock. No new attempt begins after it
 * @throws {StoreUnavailable} after that time. An error that Redis answers is thrown at once, unless it will pass
 */
export async function whileUnanswered<T>(ask: () => Promise<T>, clock: Clock, untilMs: number): Promise<T> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      const { name, message } = error as Error;
      // Redis itself answered with an error, and would do so again.
      const isLasting = name === 'ReplyError' && !PASSES.test(message);
      if (error instanceof StoreUnavailable || isLasting) throw error;
      if (clock.monotonicMs() >= untilMs)
        throw new StoreUnavailable(`redis cannot be reached: ${message}`, { cause: error });
      await sleep(RETRY_AFTER_MS);
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
      'redis runs without appendonly: if redis is killed, records are lost and a payout may run again',
    );
  } else if (fsync !== undefined && fsync !== 'always') {
    warnings.push(`redis has appendfsync ${fsync}: if its machine fails, the most recent records are lost`);
  }
  const promotable = Number(server.get('connected_slaves') ?? 0);
  if (promotable > replicas) {
    warnings.push(
      `redis has ${promotable} ${promotable === 1 ? 'replica' : 'replicas'} and durability.replicas is ${replicas}: a failover loses records that the promoted replica does not have yet`,
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
