import Redlock, { type Lock } from 'redlock';
import type { RecordId, Token } from '../../lib/brands.ts';
import { systemRandom } from '../../lib/random.ts';
import { decodeRecord, encodeRecord } from '../codec.ts';
import { AUDIT_RETENTION_MS, type AuditRecord } from '../doubts.ts';
import type { Create, OpenCount, Page, Register, Replace, Reply, Seen } from '../register.ts';
import {
  type IdentityInUse,
  type Mode,
  type StoreHealth,
  StoreUnavailable,
  VISIT_LASTS_MS,
  VOID_TOKEN_MS,
} from '../types.ts';
import { decodeAudit, encodeAudit } from './audit.ts';
import { connect, createClient, mastersOf, type RedisClient, type RedisOptions } from './client.ts';
import {
  auditName,
  Commands,
  identityIn,
  leaseName,
  Names,
  NotReplicated,
  PARTITIONS,
  type ScriptReply,
  scripts,
  shortOf,
  type ToReplicate,
} from './commands.ts';
import { RedisHealth, requireFormat, whileUnanswered } from './health.ts';
import {
  countOpen,
  entryOf,
  idsOf,
  listRecords,
  repairIndex,
  resolutionField,
  scoreOf,
} from './operators.ts';
import type { Argument } from './script-command.ts';

/** Enough partitions for each master of a cluster to have one of them. (With ten masters, one cluster in 1,000 has a master without any.) */
const WATCHED_OF_CLUSTER = 64;

/**
 * The store that several machines can share. A record is one Redis string, whose TTL is the record's lifetime, and a change is
 * one Lua script that compares the revision and writes. A first execution is two commands, create and replace; a replay is
 * one refused create.
 */
export class RedisRegister implements Register {
  readonly replicates: boolean;
  /** Only with lock nodes: a script cannot ask them. */
  readonly isLeased?: (id: RecordId) => Promise<boolean>;
  readonly #options: RedisOptions;
  readonly #client: RedisClient;
  readonly #lockClients: RedisClient[];
  readonly #isCluster: boolean;
  readonly commands: Commands;
  readonly names: Names;
  /** The partitions that have identities and get probes. The first one has the store's identity. */
  readonly #watched: readonly number[];
  readonly #health: RedisHealth;
  readonly #redlock: Redlock;
  /** The leases of the executions that were renewed, by token. `lock` is missing while the lease is being taken. */
  readonly #leases = new Map<string, { lock?: Lock | undefined }>();

  /** Reads the results of create.lua, replace.lua and read.lua. */
  readonly #answer = (reply: ScriptReply): Reply =>
    reply === null ? DONE : { done: false, held: reply === 0 ? undefined : this.#seenIn(reply) };

  /** @throws {StoreUnavailable} if Redis cannot be reached, is too old, evicts records, or has records of another format */
  static async open(options: RedisOptions): Promise<RedisRegister> {
    const register = new RedisRegister(options);
    const { clock, connectTimeoutMs, prefix } = options;
    const untilMs = clock.monotonicMs() + connectTimeoutMs;
    try {
      // The store works while a minority of the lock nodes is down, so it does not wait for them here.
      for (const client of register.#lockClients) void connect(client, 0);
      await connect(register.#client, connectTimeoutMs);
      await whileUnanswered(() => register.#health.inspect(), clock, untilMs);
      await whileUnanswered(() => requireFormat(register.#client, prefix), clock, untilMs);
      return register;
    } catch (error) {
      const why = register.#health.inWords(error as Error);
      await register.close();
      if (error instanceof StoreUnavailable) throw error;
      const what = (error as Error).name === 'ReplyError' ? 'redis' : 'redis cannot be reached';
      throw new StoreUnavailable(`${what}: ${why}`, { cause: error });
    }
  }

  private constructor(options: RedisOptions) {
    const { location, timeoutMs, lockNodes, replicas = 0, tls, prefix } = options;
    this.#options = options;
    this.#client = createClient(location, timeoutMs, tls);
    this.#lockClients = lockNodes.map((url) => createClient({ url }, timeoutMs, tls));
    this.#isCluster = location.cluster !== undefined;
    this.names = new Names(prefix);
    const every = PARTITIONS / (this.#isCluster ? WATCHED_OF_CLUSTER : 1);
    this.#watched = [...this.names.partitions.keys()].filter((number) => number % every === 0);
    this.commands = new Commands(this.#client, replicas, timeoutMs, this.names.partitions);
    this.replicates = this.commands.waits;
    const starts = this.#watched.map((partition) => this.names.partitions[partition] as string);
    this.#health = new RedisHealth(this.commands, starts, options);
    // No retries by redlock: they can return a lock that has expired already.
    this.#redlock = new Redlock(lockNodes.length > 0 ? this.#lockClients : [this.#client], { retryCount: 0 });
    if (lockNodes.length > 0) this.isLeased = (id) => this.#isLeasedOnNodes(id);
  }

  get refusing(): string | undefined {
    return this.#client.status === 'ready' ? this.#health.refusal : 'redis: not connected';
  }

  connectionOf(id = ''): unknown {
    return this.commands.connectionOf(this.#isCluster ? this.names.partitionOf(id) : 0);
  }

  /** In a cluster these are all masters, also those that hold no watched partition. */
  get connections(): readonly unknown[] {
    const watched = this.#watched.map((partition) => this.commands.connectionOf(partition));
    return [...new Set(this.#isCluster ? [...watched, ...mastersOf(this.#client)] : watched)];
  }

  onConnected(act: () => void): void {
    for (const event of ['ready', '+node']) this.#client.on(event, act);
  }

  create(id: RecordId, { record, expiresInMs }: Create): Promise<Reply> {
    const { refusal } = this.#health;
    if (refusal) return Promise.reject(new StoreUnavailable(refusal, NOT_WRITTEN));
    const start = this.names.startOf(id);
    const short = shortOf(id);
    const key = start + short;
    const keys = [key, `${start}open`, leaseName(key), `${start}closed`, voidOf(start, record.token)];
    const entry = entryOf(short, record.operation);
    const args: Argument[] = [encodeRecord(record), lifetimeOf(expiresInMs), entry, scoreOf(record)];
    if (this.replicates) args.push(1);
    const answer = this.commands.write(scripts.create, keys, args, this.#answer, toReplicate);
    if (!this.#isCluster) return answer;
    return answer.catch(async (error) => ({ done: false, held: await this.#whileMoving(key, error) }));
  }

  replace(id: RecordId, write: Replace): Promise<Reply> {
    const { revision, record, operation, expiresInMs, endLeaseOf, unlessLeased, unlessClosed } = write;
    const { voidToken, audit, counted, mayBeLost } = write;
    const waits = this.replicates && !mayBeLost;
    // This is a restart, which sends the request again. It is refused as a start is.
    const refusal = unlessClosed && record?.state === 'executing' ? this.#health.refusal : undefined;
    if (refusal) return Promise.reject(new StoreUnavailable(refusal, NOT_WRITTEN));
    const start = this.names.startOf(id);
    const short = shortOf(id);
    const key = start + short;
    const keys = [key, `${start}open`, leaseName(key), `${start}closed`];
    const args: Argument[] = [
      revision ?? '',
      record ? encodeRecord(record) : '',
      expiresInMs === 'unchanged' ? '' : lifetimeOf(expiresInMs),
      entryOf(short, operation),
      !record || record.state === 'completed' ? '' : scoreOf(record),
      waits ? 1 : '',
      endLeaseOf ? this.#leaseValueToEnd(endLeaseOf) : '',
    ];
    if (unlessLeased || unlessClosed || voidToken || audit) {
      keys.push(voidToken ? voidOf(start, voidToken) : `${start}void`, auditName(key), `${start}resolutions`);
      args.push(
        unlessLeased && !this.isLeased ? 1 : '',
        unlessClosed ? 1 : '',
        voidToken ? VOID_TOKEN_MS : '',
        audit ? encodeAudit(audit) : '',
        audit ? AUDIT_RETENTION_MS : '',
        counted ? resolutionField(counted) : '',
      );
    }
    // Redis pays for each argument, also for an empty one.
    while (args.at(-1) === '') args.pop();
    if (mayBeLost) return this.commands.run(scripts.replace, keys, args, this.#answer);
    const answer = this.commands.write(scripts.replace, keys, args, this.#answer, allToReplicate);
    if (waits && record?.completion)
      answer.catch((error) => {
        // The merchant still gets the result.
        if (error instanceof NotReplicated) this.#options.emit?.('unreplicated', {});
      });
    return answer;
  }

  read(id: RecordId, mustLast = false): Promise<Seen | undefined> {
    const key = this.names.recordOf(id);
    const keys = [key, leaseName(key)];
    const answer =
      mustLast && this.replicates
        ? this.commands.write(scripts.readAndTouch, keys, [1], this.#answer, toReplicate)
        : this.commands.run(scripts.read, keys, [], this.#answer);
    const seen = answer.then((found) => (found.done ? undefined : found.held));
    return this.#isCluster ? seen.catch((error) => this.#whileMoving(key, error)) : seen;
  }

  async renew(id: RecordId, token: Token, leaseMs: number): Promise<'kept' | 'taken' | 'lost'> {
    const owner = token.toString('latin1');
    const lease = this.#leases.get(owner) ?? {};
    this.#leases.set(owner, lease);
    // Only Redis knows when the lock expires, and redlock does not try to extend one that it takes for expired.
    if (lease.lock) lease.lock.expiration = Number.POSITIVE_INFINITY;
    const extended = await lease.lock?.extend(leaseMs).catch(() => undefined);
    const name = leaseName(this.names.recordOf(id));
    lease.lock = extended ?? (await this.#redlock.acquire([name], leaseMs).catch(() => undefined));
    // The owner has ended meanwhile, so a lock that was taken now would stay without an owner.
    if (this.#leases.get(owner) !== lease) void lease.lock?.release().catch(() => {});
    return extended ? 'kept' : lease.lock ? 'taken' : 'lost';
  }

  /** If Redis does not answer, the lease lapses after its time. */
  async endLease(_id: RecordId, token: Token): Promise<void> {
    const owner = token.toString('latin1');
    const lease = this.#leases.get(owner);
    this.#leases.delete(owner);
    await lease?.lock?.release().catch(() => {});
  }

  /** A node that does not answer counts as having the lease, so that no living owner is taken for dead. */
  async #isLeasedOnNodes(id: RecordId): Promise<boolean> {
    const name = leaseName(this.names.recordOf(id));
    const answers = await Promise.all(this.#lockClients.map((node) => node.exists(name).catch(() => 1)));
    return answers.filter((answer) => answer > 0).length > answers.length / 2;
  }

  /** The value of the lease that the script removes. On lock nodes, redlock releases the lock instead. */
  #leaseValueToEnd(token: Token): string {
    if (this.#leases.size === 0) return '';
    const lock = this.#leases.get(token.toString('latin1'))?.lock;
    if (this.isLeased) void this.endLease('' as RecordId, token);
    else this.#leases.delete(token.toString('latin1'));
    return this.isLeased ? '' : (lock?.value ?? '');
  }

  list(query: { open: boolean; limit: number; cursor?: string | undefined }): Promise<Page> {
    return this.commands.call(() => listRecords(this, query));
  }

  idsOf(digits: string): Promise<RecordId[]> {
    return this.commands.call(() => idsOf(this, digits));
  }

  countOpen(options: { executingSinceMs: number; signal?: AbortSignal | undefined }): Promise<OpenCount> {
    return this.commands.call(() => countOpen(this, options));
  }

  repairIndex(report: (keys: number) => void): Promise<void> {
    return this.commands.call(() => repairIndex(this, report));
  }

  async audit(id: RecordId): Promise<AuditRecord[]> {
    const key = auditName(this.names.recordOf(id));
    return (await this.commands.call(() => this.#client.lrange(key, 0, -1))).map(decodeAudit);
  }

  /** In a cluster there is no identity if any master has lost its copy. `unread` has the connections whose copy could not be read. */
  async readIdentity(mode: Mode): Promise<IdentityInUse | undefined> {
    const [main, , other] = this.#identityKeys(mode);
    const unread = new Set<unknown>();
    const readCopy = async (partition: number) => {
      const connection = this.commands.connectionOf(partition);
      const id = await this.#client.get(this.#identityIn(partition)).catch(() => undefined);
      if (id === undefined || this.commands.connectionOf(partition) !== connection) unread.add(connection);
      return id;
    };
    const [text, isUsed, isReplica, ...ids] = await this.commands.call(() =>
      Promise.all([
        this.#client.get(main),
        this.#client.exists(other),
        this.#health.isReplica(),
        ...this.#watched.slice(1).map(readCopy),
      ]),
    );
    // It may lack what its master has.
    if (isReplica) throw new StoreUnavailable('redis is a replica', NOT_WRITTEN);
    const identity = text === null ? undefined : identityIn(`${text} ${isUsed}`);
    if (!identity || ids.some((id) => id !== undefined && id !== identity.id)) return undefined;
    return unread.size > 0 ? { ...identity, unread: [...unread] } : identity;
  }

  async visit(mode: Mode, replacing = ''): Promise<IdentityInUse> {
    const asked = new Set(this.connections);
    const args = [systemRandom.token().toString('hex'), VISIT_LASTS_MS, replacing];
    const identity = await this.commands.write(scripts.visit, this.#identityKeys(mode), args, identityIn);
    // A master that was connected again meanwhile may have been emptied. Writing its copy of the identity would hide that.
    const isOther = this.connections.some((each) => !asked.has(each));
    if (isOther) throw new StoreUnavailable('redis: connected again');
    const others = this.#watched.slice(1).map((partition) => this.#identityIn(partition));
    await Promise.all(others.map((key) => this.commands.call(() => this.#client.set(key, identity.id))));
    return identity;
  }

  #identityKeys(mode: Mode): [identity: string, own: string, other: string] {
    const main = this.#identityIn(0);
    return [main, `${main}:${mode}`, `${main}:${mode === 'protect' ? 'observe' : 'protect'}`];
  }

  /** In the first partition, the key of the store's identity. In the other watched partitions of a cluster, that of a copy of its id. */
  #identityIn(partition: number): string {
    return `${this.names.partitions[partition]}mark`;
  }

  health(): Promise<StoreHealth> {
    return this.#health.check();
  }

  async close(): Promise<void> {
    this.#health.close();
    for (const client of [this.#client, ...this.#lockClients]) client.disconnect();
    this.#options.tls?.certificate.close();
  }

  /**
   * While a slot of a cluster moves to another master, Redis refuses scripts, but not commands with one key: so a result can
   * be replayed.
   */
  async #whileMoving(key: string, error: unknown): Promise<Seen> {
    if (!isMoving(error)) throw error;
    const bytes = await this.commands.call(() => this.#client.getBuffer(key));
    const record = bytes === null ? undefined : decodeRecord(bytes);
    if (!record?.completion) throw error;
    return { record, expiresInMs: 0, isLeased: false };
  }

  /** Reads a list of a record, its TTL, and whether its lease exists, or a completed record alone. */
  #seenIn(reply: ScriptReply): Seen {
    if (reply instanceof Buffer) return { record: decodeRecord(reply), expiresInMs: 0, isLeased: false };
    const [bytes, expiresInMs, leases] = reply as [Buffer, number, number];
    return { record: decodeRecord(bytes), expiresInMs, isLeased: this.isLeased ? undefined : leases > 0 };
  }
}

/** A refused replace may repeat one that was done and that replicas lack, so its answer waits for them, whatever is there now. */
const allToReplicate = ({ done }: Reply): ToReplicate => (done ? 'write' : 'record');

/** An answer that shows an executing record leads to no execution and no result, so a failover that loses the record does no harm. */
function toReplicate(answer: Reply): ToReplicate {
  if (answer.done) return 'write';
  return answer.held?.record.state === 'executing' ? 'nothing' : 'record';
}

const NOT_WRITTEN = { maybeWritten: false };

const DONE: Reply = { done: true };

const lifetimeOf = (ms: number): number => Math.max(1, Math.ceil(ms));

const voidOf = (start: string, token: Token): string => `${start}void:${token.toString('latin1')}`;

const isMoving = (error: unknown): boolean => /TRYAGAIN/.test((error as Error).message);
