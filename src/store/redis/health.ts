import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import type { Clock } from '../../lib/clock.ts';
import { ServerClocks } from '../server-clock.ts';
import { OtherFormat, STORE_FORMAT, StoreClosed, type StoreHealth, StoreUnavailable } from '../types.ts';
import { addressOf, mastersOf, type RedisClient, type RedisOptions, replicasOfSentinels } from './client.ts';
import { type Commands, NotReplicated } from './commands.ts';

type Failure = NodeJS.ErrnoException & { lastNodeError?: NodeJS.ErrnoException };

const PROBE_MS = 1000;
/** How often the settings of Redis are read again. Each new connection and each health check read them too. */
const INSPECT_EVERY_MS = 10_000;
const RETRY_AFTER_MS = 100;

/**
 * Looks at the settings of Redis, writes probe keys as a start writes, and watches the clocks of Redis' hosts, because Redis
 * expires records by them.
 */
export class RedisHealth {
  /** Why starts are refused although Redis would take them. */
  refusal: string | undefined;
  /** What can lose a record, one line each. */
  #dangers: readonly string[] = [];
  readonly #timer: NodeJS.Timeout;
  readonly #commands: Commands;
  readonly #client: RedisClient;
  readonly #starts: readonly string[];
  readonly #options: RedisOptions;
  /** Behind sentinels all masters have one address, so the clocks before and after a failover are compared. */
  readonly #clocks: ServerClocks;
  #timeIsForbidden = false;
  /** How many replicas the sentinels knew when one of them answered last. */
  #ofSentinels = 0;
  /** Why the client cannot connect, or why its connection broke. */
  #lastError: string | undefined;

  /** @param starts what the names of some partitions begin with, of at least one on each master */
  constructor(commands: Commands, starts: readonly string[], options: RedisOptions) {
    const { client } = commands;
    this.#commands = commands;
    this.#client = client;
    this.#starts = starts;
    this.#options = options;
    this.#clocks = new ServerClocks(options.clock, options.emit);
    // A cluster's client says only that it failed everywhere; a name with several addresses fails without a message.
    client.on('error', (error: Failure) => {
      const { message, code } = error.lastNodeError ?? error;
      this.#lastError = message || String(code);
    });
    client.on('ready', () => {
      this.#lastError = undefined;
      void this.#inspectAgain();
    });
    this.#timer = setInterval(() => {
      void this.#inspectAgain();
      void this.#leaveReplica();
    }, INSPECT_EVERY_MS).unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }

  /**
   * Checks the settings of Redis, in a cluster those of every master.
   *
   * A write that WAIT has counted is on some of the replicas, and a failover may promote another one. So all
   * replicas must acknowledge it, those that are away included: a replica that comes back can be promoted too.
   *
   * @throws {StoreUnavailable} if Redis is older than 7.0 (which has no script flags), evicts, or is a replica that takes writes
   */
  async inspect(): Promise<void> {
    const { location, replicas = 0, mayLoseOnFailover, timeoutMs, tls } = this.#options;
    const masters = mastersOf(this.#client);
    if (masters.length === 0) throw new Error('the masters of the cluster are not known yet');
    const [known, ...found] = await Promise.all([
      replicasOfSentinels(location, timeoutMs, tls),
      ...masters.map(inspectNode),
    ]);
    const dangers = new Set(found.flatMap((node) => node.dangers));
    this.refusal = undefined;
    // While no sentinel answers, a replica that is away still counts.
    this.#ofSentinels = known ?? this.#ofSentinels;
    const all = Math.max(this.#ofSentinels, ...found.map((node) => node.replicas));
    if (all > replicas) {
      const excess = `redis has ${all} ${all === 1 ? 'replica' : 'replicas'} and durability.replicas is ${replicas}: a failover loses records that the promoted replica does not have yet`;
      const equal = location.cluster ? '' : `durability.replicas to ${all}, or `;
      const name = location.sentinels?.name;
      const gone = name
        ? `; if some are gone for good, SENTINEL RESET ${name} on each sentinel forgets them`
        : '';
      if (mayLoseOnFailover) dangers.add(excess);
      else
        this.refusal = `${excess}. Set ${equal}durability.mayLoseOnFailover to true, and keys may be paid twice${gone}`;
    }
    this.#dangers = [...dangers];
  }

  /** Redis may have been restarted or replaced, or its settings changed. A gateway that runs goes on with what needs no start. */
  async #inspectAgain(): Promise<void> {
    try {
      await this.inspect();
    } catch (error) {
      if (error instanceof StoreUnavailable) this.refusal = error.message;
    }
  }

  /** Whether the one server is a replica, such as a former master. In a cluster a replica redirects. */
  async isReplica(): Promise<boolean> {
    return this.#client instanceof Redis && (await this.#client.info('replication')).includes('role:slave');
  }

  /** After a failover the host name may lead to the new master, and the former one, which refuses writes, may keep its connections open. */
  async #leaveReplica(): Promise<void> {
    if (await this.isReplica().catch(() => false)) (this.#client as Redis).disconnect(/* reconnect */ true);
  }

  async check(): Promise<StoreHealth> {
    const client = this.#client;
    const { gatewayId, prefix } = this.#options;
    try {
      const probes = this.#starts.map((start) =>
        this.#commands.probe(`${start}probe:${gatewayId}`, PROBE_MS),
      );
      const written = await Promise.all(probes);
      await this.#inspectAgain();
      // A later version may have migrated the store since it was opened.
      await requireFormat(client, prefix);
      await Promise.all(
        mastersOf(client).map((master) =>
          this.#clocks.compare(addressOf(master), () => this.#timeOf(master)),
        ),
      );
      // As create.lua reads it.
      const closed = await client.get(`${this.#starts[0]}closed`);
      if (closed !== null && !closed.startsWith('n')) throw new StoreClosed();
      for (const { replicated } of written) if (!(await replicated)) throw new NotReplicated(true);
      const { refusal } = this;
      return { ok: refusal === undefined, detail: refusal ?? 'redis', warnings: this.#warnings() };
    } catch (error) {
      const isClosed = error instanceof OtherFormat || error instanceof StoreClosed;
      const detail = isClosed ? error.message : `redis: ${this.inWords(error as Error)}`;
      return { ok: false, ...(isClosed && { isClosed }), detail, warnings: this.#warnings() };
    }
  }

  /** Says what an error means, without `redis: `. The messages of ioredis about its own state and options tell an operator nothing. */
  inWords({ message }: Error): string {
    const { status } = this.#client;
    if (status === 'connect') return 'connected, but not ready: it may still be loading its file';
    if (status !== 'ready') return ['not connected', this.#lastError ?? []].flat().join(': ');
    return message === 'Command timed out'
      ? `no answer within ${this.#options.timeoutMs} ms`
      : message.replace(/^redis: /, '');
  }

  async #timeOf(node: Redis): Promise<number | undefined> {
    // A Redis user without permission for TIME can still store records.
    const time = await node.time().catch((error: Error) => {
      if (!error.message.startsWith('NOPERM')) throw error;
    });
    this.#timeIsForbidden = time === undefined;
    return time ? Number(time[0]) * 1000 + Number(time[1]) / 1000 : undefined;
  }

  #warnings(): string[] {
    const warnings = [...this.#dangers, ...(this.refusal ? [this.refusal] : [])];
    if (this.#timeIsForbidden)
      warnings.push('redis does not allow TIME: the gateway cannot notice a step of its clock');
    return [...warnings, ...this.#clocks.warnings()];
  }
}

/**
 * Repeats what has failed: the client of a cluster is ready before all masters are, and a Redis may be loading its file, failing over
 * or running a long script.
 *
 * @param untilMs on the monotonic clock. No new attempt begins after it, and the last error is thrown
 * @throws {StoreUnavailable} at once: this Redis must not be used
 */
export async function whileUnanswered<T>(ask: () => Promise<T>, clock: Clock, untilMs: number): Promise<T> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (error instanceof StoreUnavailable || clock.monotonicMs() >= untilMs) throw error;
      await sleep(RETRY_AFTER_MS);
    }
  }
}

async function inspectNode(node: Redis): Promise<{ dangers: string[]; replicas: number }> {
  const info = await node.info();
  const field = (name: string) => new RegExp(`^${name}:(.*)\r$`, 'm').exec(info)?.[1];
  // CONFIG is not allowed on many hosted servers.
  const setting = async (name: string) => ((await node.config('GET', name).catch(() => [])) as string[])[1];
  const version = field('redis_version') ?? '0';
  // Redis Enterprise does not say it in INFO, and its default, volatile-lru, evicts.
  const policy = field('maxmemory_policy') ?? (await setting('maxmemory-policy'));
  if (Number.parseInt(version, 10) < 7)
    throw new StoreUnavailable(`redis ${version} is too old: 7.0 or newer is needed`);
  if (policy !== undefined && policy !== 'noeviction')
    throw new StoreUnavailable(
      `redis has maxmemory-policy ${policy}, which evicts records: it must be noeviction`,
    );
  // A master's INFO does not have this field.
  if (field('slave_read_only') === '0')
    throw new StoreUnavailable(
      'redis is a replica that takes writes, which its master overwrites: it must be the master',
    );
  const fsync = (await setting('appendfsync')) ?? 'always';
  const pausesSync = (await setting('no-appendfsync-on-rewrite')) === 'yes';
  const evicted = Number(field('evicted_keys') ?? 0);
  const dangers = [
    policy === undefined &&
      'redis does not say its maxmemory-policy: unless it is noeviction, records are evicted and a payout may run again',
    field('aof_enabled') !== '1'
      ? 'redis runs without appendonly: if redis is killed, records are lost and a payout may run again'
      : fsync !== 'always' &&
        `redis has appendfsync ${fsync}: if its machine fails, the most recent records are lost`,
    // It overrides `appendfsync always`.
    field('aof_enabled') === '1' &&
      pausesSync &&
      'redis has no-appendfsync-on-rewrite yes: if its machine fails while it saves or rewrites its file, the most recent records are lost',
    // Also after its policy was set right.
    evicted > 0 &&
      `redis has evicted ${evicted} keys since it was started: if there were records among them, their payouts can run again`,
  ].filter((danger) => typeof danger === 'string');
  // A backup by `redis-cli --rdb` is listed as a replica without a port that is not online. It cannot be promoted, and WAIT does not count it.
  const backups = info.match(/^slave\d+:ip=[^,]*,port=0,state=(?!online)/gm) ?? [];
  return { dangers, replicas: Number(field('connected_slaves') ?? 0) - backups.length };
}

/**
 * Refuses a prefix whose records have another format: this version would not see them, and would pay their keys again. Notes
 * the format, in decimal digits, if there is none yet. Every version of oncegate looks there.
 *
 * @throws {OtherFormat}
 */
export async function requireFormat(client: RedisClient, prefix: string): Promise<void> {
  const key = `${prefix}:format`;
  let found = await client.get(key);
  // A gateway of another format may start at the same moment. A Redis that is full, or a replica, refuses writes; then the format is
  // noted later.
  found ??= await client.set(key, STORE_FORMAT, 'NX', 'GET').catch(() => client.get(key));
  if (found === null || found === String(STORE_FORMAT)) return;
  const format = /^\d{1,9}$/.test(found) ? `format ${found}` : 'an unknown format';
  throw new OtherFormat(
    `redis has records of ${format} under the prefix ${prefix}, and this gateway knows format ${STORE_FORMAT}: use a gateway version that knows it, or configure another store.prefix, but then the keys of those records can be paid again`,
  );
}
