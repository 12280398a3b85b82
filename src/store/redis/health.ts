import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, type Redis } from 'ioredis';
import type { ClientTls } from '../../lib/client-tls.ts';
import type { Clock } from '../../lib/clock.ts';
import { OtherFormat, type StoreHealth, StoreUnavailable } from '../contract.ts';
import { meaningOf } from '../copy-mark.ts';
import { type Location, type RedisClient, replicasOfSentinels } from './client.ts';
import { copyMarkKeyOf } from './commands.ts';
import { formatKeyOf, refuseOtherFormat } from './store-format.ts';

/** Part of RedisStoreOptions. */
interface InspectOptions {
  location: Location;
  tls?: ClientTls | undefined;
  /** How many replicas must acknowledge a write. */
  replicas: number;
  /** Whether more replicas than that are a warning. Default: they refuse starts. */
  mayLoseOnFailover?: boolean;
  /** A command that takes longer is rejected. */
  timeoutMs: number;
}

/** Part of RedisStoreOptions. */
interface HealthOptions extends InspectOptions {
  prefix: string;
  gatewayId: string;
  clock: Clock;
  onClockStep?: (stepMs: number) => void;
}

/** What the settings of Redis, and the number of its replicas, mean for starts. */
export interface Inspection {
  /** What can lose a record, one line each. */
  warnings: readonly string[];
  /** Why no key may be started. Undefined: keys may be started. */
  refusal?: string;
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
/** A reading of the clock that took longer could hide a step, so it is not compared with. */
const READING_MS = 500;
/** A clock may be slewed by this share of the time that has passed. Linux slews by at most half as much. */
const SLEW = 0.001;
const STEP_IS_REPORTED_FOR_MS = 3_600_000;
/** How often the settings of Redis are looked at again. So they are after each new connection, and with each health check. */
const INSPECT_EVERY_MS = 10_000;
/** What ioredis says of a command that took longer than its time limit. */
const TIMED_OUT = 'Command timed out';
/** How many key names are tried per master of a cluster. A master without slots accepts none. */
const PROBE_NAMES = 100;

/** Writes a probe key on every master, and watches the clocks of their hosts, because Redis expires records by them. */
export class Health {
  /** As {@link inspect} last found it. */
  #inspection: Inspection = { warnings: [] };
  readonly #timer: NodeJS.Timeout;
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
      void this.#inspectAgain();
    });
    this.#timer = setInterval(() => void this.#inspectAgain(), INSPECT_EVERY_MS).unref();
  }

  /** Why starts are refused, although Redis would take them. Undefined: they are not. */
  get refusal(): string | undefined {
    return this.#inspection.refusal;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  /** @param inspection what {@link inspect} has found just now */
  inspected(inspection: Inspection): void {
    this.#inspection = inspection;
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
        if (warning) return { ...this.#found(), warnings: [...this.#warnings(), warning] };
      }
      return this.#found();
    } catch (error) {
      if (error instanceof OtherFormat)
        return { ok: false, isClosed: true, detail: error.message, warnings: this.#warnings() };
      return { ok: false, detail: `redis: ${this.#inWords(error as Error)}`, warnings: this.#warnings() };
    }
  }

  #found(): StoreHealth {
    const { refusal } = this;
    return { ok: refusal === undefined, detail: refusal ?? 'redis', warnings: this.#warnings() };
  }

  /** ioredis speaks of its own state and options, which tell an operator nothing. */
  #inWords({ message }: Error): string {
    const { status } = this.#client;
    if (status === 'connect') return 'connected, but not ready: it may still be loading its file';
    if (status !== 'ready') return ['not connected', this.#lastError ?? []].flat().join(': ');
    return message === TIMED_OUT ? `no answer within ${this.#options.timeoutMs} ms` : message;
  }

  /** Redis may have been restarted or replaced, or its settings changed. A gateway that runs goes on with what needs no start. */
  async #inspectAgain(): Promise<void> {
    try {
      this.inspected(await inspectNodes(this.#client, this.#options));
    } catch (error) {
      if (error instanceof StoreUnavailable) this.inspected({ ...this.#inspection, refusal: error.message });
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
    if (now.mostMs - now.leastMs <= READING_MS) this.#offsets.set(name, now);
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
    const warnings = [...this.#inspection.warnings, ...(this.refusal ? [this.refusal] : [])];
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
 * @param untilMs on the monotonic clock. No new attempt begins after it
 * @throws {StoreUnavailable} if Redis is older than 7.0 (which has no script flags), evicts records, or does not answer
 */
export async function inspect(
  client: RedisClient,
  options: InspectOptions,
  clock: Clock,
  untilMs: number,
): Promise<Inspection> {
  return await whileUnanswered(() => inspectNodes(client, options), clock, untilMs);
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

/**
 * A write that WAIT has counted is on some of the replicas, and a failover may promote another one. So the number of replicas that
 * must acknowledge it is that of all, those that are away included: one that comes back can be promoted too.
 */
async function inspectNodes(client: RedisClient, options: InspectOptions): Promise<Inspection> {
  const { location, replicas, mayLoseOnFailover, timeoutMs, tls } = options;
  const nodes = client instanceof Cluster ? client.nodes('master') : [client];
  const [known, ...found] = await Promise.all([
    replicasOfSentinels(location, timeoutMs, tls),
    ...nodes.map((node) => inspectNode(node)),
  ]);
  const warnings = [...new Set(found.flatMap((node) => node.warnings))];
  const all = Math.max(known, ...found.map((node) => node.replicas));
  if (all <= replicas) return { warnings };
  const excess = `redis has ${all} ${all === 1 ? 'replica' : 'replicas'} and durability.replicas is ${replicas}: a failover loses records that the promoted replica does not have yet`;
  if (mayLoseOnFailover) return { warnings: [...warnings, excess] };
  const equal = 'cluster' in location ? '' : `durability.replicas to ${all}, or `;
  const gone =
    'sentinels' in location
      ? `; if some are gone for good, SENTINEL RESET ${location.sentinels.name} on each sentinel forgets them`
      : '';
  return {
    warnings,
    refusal: `${excess}. Set ${equal}durability.mayLoseOnFailover to true, and keys may be paid twice${gone}`,
  };
}

async function inspectNode(node: Redis): Promise<{ warnings: string[]; replicas: number }> {
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
  // Also after its policy was set right.
  const evicted = Number(server.get('evicted_keys') ?? 0);
  if (evicted > 0)
    warnings.push(
      `redis has evicted ${evicted} keys since it was started: if there were records among them, their payouts can run again`,
    );
  return { warnings, replicas: Number(server.get('connected_slaves') ?? 0) };
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
