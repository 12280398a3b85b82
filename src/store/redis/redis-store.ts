import type { Scope, Token } from '../../lib/brands.ts';
import type { ClientTls } from '../../lib/client-tls.ts';
import type { Clock } from '../../lib/clock.ts';
import type { Completion } from '../../lib/exchange.ts';
import {
  type AuditRecord,
  type CountedNote,
  type Execution,
  type ExistingAnswer,
  type Fenced,
  type IdempotencyRecord,
  type ListFilter,
  type Listing,
  type Mode,
  type Owner,
  type PeekAnswer,
  type Resolution,
  type Resolved,
  type StartAnswer,
  type Store,
  type StoreHealth,
  type StoreOptions,
  StoreUnavailable,
  UnreadableRecord,
  type UsedMark,
  VOID_TOKEN_MS,
} from '../contract.ts';
import type { CountOptions, DoubtCount } from '../doubt-count.ts';
import { ResponseCipher, type StoredCompletion } from '../response-cipher.ts';
import { connect, createClient, type Location, type RedisClient } from './client.ts';
import {
  decodeRecord,
  encodeCompletion,
  encodeRecord,
  encodeTime,
  isThisFormat,
  layout,
  lifetimesIn,
} from './codec.ts';
import {
  Commands,
  copyMarkKeyOf,
  leaseOf,
  MARK,
  notReplicated,
  type Reply,
  recordKeyOf,
  scripts,
  wordOf,
} from './commands.ts';
import { DoubtCounter } from './doubt-counter.ts';
import { Health, inspect, whileUnanswered } from './health.ts';
import { Leases, leaseValueOf } from './lease.ts';
import { OpenIndex } from './open-index.ts';
import { listRecords, readAudit, resolveRecord } from './operators.ts';
import type { Argument } from './script-command.ts';
import { requireFormat } from './store-format.ts';
import { RedisStoreMark } from './store-mark.ts';

export interface RedisStoreOptions extends StoreOptions {
  location: Location;
  /** The first part of every key name. */
  prefix: string;
  /**
   * URLs of independent Redis nodes that hold the leases. Use an odd number, so that there is always a majority. Empty: the
   * store's own Redis holds them.
   */
  lockNodes: readonly string[];
  /** For connections that use TLS. Default: servers must have a certificate of a well-known authority. `close` closes it. */
  tls?: ClientTls | undefined;
  /** How many replicas must acknowledge a write. 0: the store does not wait for replicas. */
  replicas: number;
  /** Whether Redis may have more replicas than that. Default false: no key is started then, because a failover may lose it. */
  mayLoseOnFailover?: boolean;
  /** Called when too few replicas acknowledged a completed result in time. The merchant still gets it. */
  onUnreplicated?: () => void;
  /** Called when the clock of Redis' host was stepped. Positive: forwards, records expire early. Negative: late. */
  onClockStep?: (stepMs: number) => void;
  /** After this time a command fails with StoreUnavailable, though Redis may still execute it. */
  timeoutMs: number;
  /** How long `open` tries to reach Redis. */
  connectTimeoutMs: number;
  clock: Clock;
  /** Default: responses are not encrypted. */
  cipher?: ResponseCipher;
}

/**
 * The store that several machines can share. Each scope is one Redis string, and each change of it is one Lua script that
 * compares the token and writes. The string's TTL is the record's lifetime. A replay is one command, a first execution is
 * two: start and complete.
 */
export class RedisStore implements Store {
  readonly #options: RedisStoreOptions;
  readonly #client: RedisClient;
  readonly #lockClients: RedisClient[];
  readonly #commands: Commands;
  readonly #leases: Leases;
  readonly #health: Health;
  readonly #cipher: ResponseCipher;
  readonly #openIndex: OpenIndex;
  readonly #doubtCounter: DoubtCounter;
  readonly #mark: RedisStoreMark;
  /** The key of the mark that a copy of the records sets. Empty in a cluster: a script may use the keys of one slot only. */
  readonly #copyMarkKeys: readonly string[];

  /** @throws {StoreUnavailable} if Redis cannot be reached, is too old, evicts records, or has records of another format */
  static async open(options: RedisStoreOptions): Promise<RedisStore> {
    const store = new RedisStore(options);
    await store.#connect();
    return store;
  }

  private constructor(options: RedisStoreOptions) {
    const { location, timeoutMs, lockNodes, replicas, clock, lifetimes, tls } = options;
    this.#options = options;
    this.#client = createClient(location, timeoutMs, tls);
    this.#lockClients = lockNodes.map((url) => createClient({ url }, timeoutMs, tls));
    this.#cipher = options.cipher ?? new ResponseCipher();
    this.#commands = new Commands(this.#client, replicas, timeoutMs);
    this.#leases = new Leases(this.#client, this.#lockClients, {
      leaseMs: lifetimes.leaseMs,
      clock,
      nameOf: (scope) => leaseOf(this.#keyOf(scope)),
    });
    const isCluster = 'cluster' in location;
    this.#copyMarkKeys = isCluster ? [] : [copyMarkKeyOf(options.prefix)];
    this.#openIndex = new OpenIndex(options.prefix, isCluster);
    this.#mark = new RedisStoreMark(this.#commands, this.#keyOf(MARK));
    this.#doubtCounter = new DoubtCounter(this.#commands, this.#leases, this.#openIndex, {
      ...options,
      isCluster,
    });
    this.#health = new Health(this.#client, options);
  }

  async #connect(): Promise<void> {
    const { clock, connectTimeoutMs, prefix } = this.#options;
    const untilMs = clock.monotonicMs() + connectTimeoutMs;
    try {
      // The store works while a minority of the lock nodes is down, so it does not wait for them here.
      for (const client of this.#lockClients) connect(client, connectTimeoutMs).catch(() => {});
      await connect(this.#client, connectTimeoutMs);
      this.#health.inspected(await inspect(this.#client, this.#options, clock, untilMs));
      await whileUnanswered(() => requireFormat(this.#client, prefix), clock, untilMs);
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  get refusing(): string | undefined {
    return this.#client.status === 'ready' ? this.#health.refusal : 'redis: not connected';
  }

  get connection(): unknown {
    return this.#commands.connection;
  }

  onConnected(act: () => void): void {
    for (const event of ['ready', '+node']) this.#client.on(event, act);
  }

  #refuseNew(): void {
    const { refusal } = this.#health;
    if (refusal) throw new StoreUnavailable(refusal, { maybeWritten: false });
  }

  async start(execution: Execution): Promise<StartAnswer> {
    this.#refuseNew();
    const { scope, token } = execution;
    const { inDoubtRetentionMs } = this.#options.lifetimes;
    const key = this.#keyOf(scope);
    const keys = [key, leaseOf(key), voidKeyOf(key, token), ...this.#copyMarkKeys];
    const args: Argument[] = [
      this.#encode(execution),
      inDoubtRetentionMs,
      leaseValueOf(execution),
      this.#leases.scriptMs,
      this.#commands.waits ? 1 : 0,
    ];
    const openIndex = this.#openIndex.nameOf(scope);
    const { connection } = this;
    let dead: Token | '' = '';
    for (;;) {
      const refusal = this.#commands.refusalOnOther(connection);
      if (refusal) throw refusal;
      const written = this.#commands.write(scripts.start, keys, [...args, dead, openIndex]);
      const reply = await written.reply;
      if (reply === null) {
        if (written.replicated && !(await written.replicated)) throw notReplicated('start');
        this.#leases.take(execution);
        return { kind: 'started' };
      }
      // Of the other answers only a replay waits for replicas. The rest lead to no execution and no result, so a failover
      // that loses the record does no harm.
      const { answer, executing } = this.#existingAnswer(reply, execution);
      if (answer.kind === 'completed' || answer.kind === 'tombstone') {
        if (written.replicated && !(await written.replicated)) throw notReplicated('replayed record');
      }
      // `executing`: the record is older than its lease, and only the lock nodes know whether the owner is alive.
      if (!executing || (await this.#leases.isHeld(scope))) return answer;
      dead = executing.token;
    }
  }

  async peek({ scope, fingerprint }: Pick<Execution, 'scope' | 'fingerprint'>): Promise<PeekAnswer> {
    const key = this.#keyOf(scope);
    for (;;) {
      const leasesHere = this.#leases.scriptMs > 0;
      const reply = await this.#commands.run(
        scripts.peek,
        [key, leaseOf(key)],
        [fingerprint, leasesHere ? 1 : 0],
      );
      if (reply === null) return { kind: 'absent' };
      const { answer, executing } = this.#existingAnswer(reply, { scope, fingerprint });
      if (executing && (leasesHere || !(await this.#leases.isHeld(scope)))) return inDoubt(executing);
      if (!this.#commands.waits || (answer.kind !== 'completed' && answer.kind !== 'tombstone'))
        return answer;
      const seen = (reply as Buffer).subarray(0, layout.flags);
      const written = this.#commands.write(scripts.confirm, [key], [seen]);
      if (wordOf(await written.reply) !== 'ok') continue;
      if (written.replicated && !(await written.replicated)) throw notReplicated('replayed record');
      return answer;
    }
  }

  async restart(execution: Execution): Promise<'ok' | 'changed'> {
    this.#refuseNew();
    const { token, fingerprint, scope } = execution;
    const key = this.#keyOf(scope);
    const encoded = this.#encode(execution);
    const { gatewayId, lifetimes } = this.#options;
    const written = this.#commands.write(
      scripts.restart,
      [key, leaseOf(key), voidKeyOf(key, token), ...this.#copyMarkKeys],
      [
        token,
        fingerprint,
        lifetimesIn(encoded),
        this.#now(),
        Buffer.from(`${String.fromCharCode(gatewayId.length)}${gatewayId}`, 'latin1'),
        lifetimes.inDoubtRetentionMs,
        leaseValueOf(execution),
        this.#leases.scriptMs,
      ],
    );
    if (wordOf(await written.reply) !== 'ok') return 'changed';
    if (written.replicated && !(await written.replicated)) throw notReplicated('restart');
    this.#leases.take(execution);
    return 'ok';
  }

  async renew(owner: Owner): Promise<Fenced | 'lost'> {
    const renewed = this.#leases.renew(owner);
    const start = await this.#commands.call(() =>
      this.#client.getrangeBuffer(this.#keyOf(owner.scope), 0, layout.flags - 1),
    );
    if (start.length > 0 && !isThisFormat(start)) throw new UnreadableRecord('the record has another format');
    if (!start.subarray(layout.token).equals(owner.token)) {
      this.#leases.giveBack(owner);
      return 'stale';
    }
    if (await renewed) return 'ok';
    await this.#commands.run(scripts.markLapsed, [this.#keyOf(owner.scope)], [owner.token]);
    this.#leases.lapseMarked(owner);
    return 'lost';
  }

  async complete(execution: Execution, completion: Completion): Promise<Fenced> {
    const stored = this.#cipher.seal(execution.scope, completion);
    const { code, bytes } = encodeCompletion(stored);
    const onLockNodes = this.#leases.onLockNodes(execution);
    const key = this.#keyOf(execution.scope);
    const keys = [key, leaseOf(key)];
    const args: Argument[] = [
      execution.token,
      leaseValueOf(execution),
      code,
      this.#now(),
      bytes,
      onLockNodes === undefined ? '' : onLockNodes ? 1 : 0,
    ];
    const { inDoubtRetentionMs } = this.#options.lifetimes;
    const openIndex = this.#openIndex.nameOf(execution.scope);
    let written = this.#commands.write(scripts.complete, keys, [...args, '', 0, openIndex]);
    let answer = wordOf(await written.reply);
    if (answer === 'absent') {
      const whole = this.#encode(execution, stored);
      written = this.#commands.write(
        scripts.complete,
        [...keys, ...this.#copyMarkKeys],
        [...args, whole, inDoubtRetentionMs, openIndex],
      );
      answer = wordOf(await written.reply);
    }
    this.#leases.giveBack(execution);
    if (written.replicated && !(await written.replicated)) {
      // The result is stored, but a failover could lose it. The caller repeats the write until the replicas have it too.
      this.#options.onUnreplicated?.();
      throw notReplicated('completion');
    }
    return answer as Fenced;
  }

  async release(owner: Owner, { voidToken = false }: { voidToken?: boolean } = {}): Promise<Fenced> {
    const key = this.#keyOf(owner.scope);
    const written = this.#commands.write(
      scripts.release,
      [key, leaseOf(key), voidKeyOf(key, owner.token)],
      [owner.token, leaseValueOf(owner), voidToken ? VOID_TOKEN_MS : 0, this.#openIndex.nameOf(owner.scope)],
    );
    const answer = wordOf(await written.reply);
    this.#leases.giveBack(owner);
    // Waits even if stale: an earlier attempt may have removed the record without reaching the replicas.
    if (written.replicated && !(await written.replicated)) throw notReplicated('release');
    return answer as Fenced;
  }

  /** Does not wait for replicas: if a failover loses the mark, the owner soon counts as dead, and the key is in doubt too. */
  takeBack = (owner: Owner) => this.release(owner, { voidToken: true });
  isOwner = async () => true;

  async markInDoubt(owner: Owner, _cause = '', { voidToken = false } = {}): Promise<Fenced> {
    const key = this.#keyOf(owner.scope);
    const reply = await this.#commands.run(
      scripts.markInDoubt,
      [key, leaseOf(key), voidKeyOf(key, owner.token)],
      [owner.token, leaseValueOf(owner), voidToken ? VOID_TOKEN_MS : 0, this.#now()],
    );
    this.#leases.giveBack(owner);
    return wordOf(reply) as Fenced;
  }

  async get(scope: Scope): Promise<IdempotencyRecord | undefined> {
    const bytes = await this.#commands.call(() => this.#client.getBuffer(this.#keyOf(scope)));
    return bytes ? this.#cipher.open(scope, decodeRecord(bytes)) : undefined;
  }

  async expiresInMs(scope: Scope): Promise<number | undefined> {
    const ttlMs = await this.#commands.call(() => this.#client.pttl(this.#keyOf(scope)));
    return ttlMs < 0 ? undefined : ttlMs;
  }

  async list(filter: ListFilter): Promise<Listing> {
    const access = {
      commands: this.#commands,
      leases: this.#leases,
      cipher: this.#cipher,
      openIndex: this.#openIndex,
      keyOf: (scope: string) => this.#keyOf(scope),
    };
    return await this.#commands.call(() => listRecords(access, filter));
  }

  async resolve(scope: Scope, seen: Token, resolution: Resolution, note: CountedNote): Promise<Resolved> {
    const decision = { scope, seen, resolution, note, clock: this.#options.clock, cipher: this.#cipher };
    return await resolveRecord(
      this.#commands,
      this.#leases,
      { key: this.#keyOf(scope), copyMarkKeys: this.#copyMarkKeys, openIndex: this.#openIndex.nameOf(scope) },
      this.#doubtCounter,
      decision,
    );
  }

  async countDoubts(options: CountOptions & { everyMs?: number } = {}): Promise<DoubtCount> {
    return await this.#doubtCounter.count(options);
  }

  async audit(scope: Scope): Promise<AuditRecord[]> {
    return await readAudit(this.#commands, this.#keyOf(scope));
  }

  readMark(mode: Mode): Promise<UsedMark | undefined> {
    return this.#mark.read(mode);
  }

  mark(mode: Mode): Promise<UsedMark> {
    return this.#mark.write(mode);
  }

  async health(): Promise<StoreHealth> {
    return await this.#health.check();
  }

  async close(): Promise<void> {
    this.#health.close();
    for (const client of [this.#client, ...this.#lockClients]) client.disconnect();
    this.#options.tls?.certificate.close();
  }

  #keyOf(scope: string): string {
    return recordKeyOf(this.#options.prefix, scope);
  }

  /** The record of an execution: executing, or with a completion the record that a late `complete` creates. */
  #encode(execution: Execution, completion?: StoredCompletion): Buffer {
    const { gatewayId, lifetimes, clock } = this.#options;
    const nowMs = clock.wallMs();
    return encodeRecord({
      state: completion ? 'completed' : 'executing',
      token: execution.token,
      fingerprint: execution.fingerprint,
      merchant: execution.merchant,
      operation: execution.operation,
      key: execution.key,
      requestId: execution.requestId,
      gatewayId,
      lifetimes,
      wasInDoubt: completion !== undefined,
      createdAtMs: nowMs,
      changedAtMs: nowMs,
      ...(completion && { completion }),
    });
  }

  #now(): Buffer {
    return encodeTime(this.#options.clock.wallMs());
  }

  /** What a script's reply means for a request. `executing` is set if the record is executing and its owner may be dead. */
  #existingAnswer(
    reply: Reply,
    { scope, fingerprint }: Pick<Execution, 'scope' | 'fingerprint'>,
  ): { answer: ExistingAnswer; executing?: IdempotencyRecord } {
    // The scripts reply 1 for an owner that is alive.
    if (!(reply instanceof Buffer)) return { answer: { kind: 'in_flight' } };
    const record = this.#cipher.open(scope, decodeRecord(reply));
    if (!record.fingerprint.equals(fingerprint)) return { answer: { kind: 'mismatch' } };
    const { completion, requestId } = record;
    if (completion?.kind === 'response')
      return { answer: { kind: 'completed', response: completion.response, requestId } };
    if (completion) return { answer: { kind: 'tombstone', requestId } };
    if (record.state === 'in_doubt') return { answer: inDoubt(record) };
    return { answer: { kind: 'in_flight' }, executing: record };
  }
}

const voidKeyOf = (key: string, token: Token): string => `${key}:void:${token.toString('hex')}`;

const inDoubt = ({ changedAtMs, operation, requestId }: IdempotencyRecord): ExistingAnswer => ({
  kind: 'in_doubt',
  sinceMs: changedAtMs,
  operation,
  requestId,
});
