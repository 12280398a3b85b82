import type { Scope, Token } from '../../../kernel/brands.ts';
import type { Clock } from '../../../kernel/clock.ts';
import { newToken } from '../../fingerprint.ts';
import {
  AUDIT_RETENTION_MS,
  type AuditRecord,
  auditRecord,
  type IdempotencyRecord,
  type ListFilter,
  type Listing,
  type Resolution,
  type ResolutionNote,
  type Resolved,
  type StoreHealth,
  type StoreOptions,
  StoreUnavailable,
} from '../../store.ts';
import { connect, createClient, type Location, type RedisClient } from './client.ts';
import { decodeRecord, encodeCompletion, encodeTime, layout, ownerGaveUp } from './codec.ts';
import { Commands, type Reply, scripts } from './commands.ts';
import { Health, inspect } from './health.ts';
import { Leases } from './lease.ts';
import { listRecords } from './operators.ts';

export interface RedisStoreOptions extends StoreOptions {
  location: Location;
  /** Before every key name. */
  prefix: string;
  /** Independent Redis nodes for the lease; empty: the store's own. An odd number, so that there is always a majority. */
  lockNodes: readonly string[];
  /** Replicas that must have a write before it counts. 0: none is waited for. */
  replicas: number;
  /** A completed result had not reached the replicas in time; the merchant gets it all the same. */
  onUnreplicated?: () => void;
  /** The clock of Redis' host was stepped by this much: forwards, records expire early; backwards, late. */
  onClockStep?: (stepMs: number) => void;
  /** A command that takes longer counts as lost, though it may still be executed. */
  timeoutMs: number;
  /** How long to wait for Redis at the start. */
  connectTimeoutMs: number;
  clock: Clock;
}

/** The records in Redis, as operators see them: look, list, resolve. redis-store.ts adds what executions need. */
export abstract class RedisRecords {
  protected readonly options: RedisStoreOptions;
  protected readonly client: RedisClient;
  protected readonly commands: Commands;
  protected readonly leases: Leases;
  readonly #lockClients: RedisClient[];
  readonly #health: Health;

  constructor(options: RedisStoreOptions) {
    const { location, timeoutMs, lockNodes, replicas, clock, lifetimes } = options;
    this.options = options;
    this.client = createClient(location, timeoutMs);
    this.#lockClients = lockNodes.map((url) => createClient({ url }, timeoutMs));
    this.commands = new Commands(this.client, replicas, timeoutMs);
    this.leases = new Leases(this.client, this.#lockClients, {
      leaseMs: lifetimes.leaseMs,
      clock,
      nameOf: (scope) => leaseOf(this.keyOf(scope)),
    });
    this.#health = new Health(this.client, options);
  }

  /** @throws {StoreUnavailable} if Redis cannot be reached, or cannot keep records */
  protected async connect(): Promise<void> {
    const { clock, connectTimeoutMs, replicas } = this.options;
    const untilMs = clock.monotonicMs() + connectTimeoutMs;
    try {
      // A minority of the lock nodes may be down, now as later.
      for (const client of this.#lockClients) connect(client, connectTimeoutMs).catch(() => {});
      await connect(this.client, connectTimeoutMs);
      this.#health.settings = await inspect(this.client, replicas, clock, untilMs);
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  get refusing(): string | undefined {
    return this.client.status === 'ready' ? undefined : 'redis: not connected';
  }

  async get(scope: Scope): Promise<IdempotencyRecord | undefined> {
    const bytes = await this.commands.answering(() => this.client.getBuffer(this.keyOf(scope)));
    return bytes ? decodeRecord(bytes) : undefined;
  }

  async list(filter: ListFilter): Promise<Listing> {
    const look = {
      commands: this.commands,
      leasesHere: this.leases.scriptMs > 0,
      keyOf: (scope: string) => this.keyOf(scope),
      isHeld: (scope: Scope) => this.leases.isHeld(scope),
    };
    return await this.commands.answering(() => listRecords(look, filter));
  }

  async resolve(scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote): Promise<Resolved> {
    const key = this.keyOf(scope);
    const { code, bytes } =
      resolution.as === 'completed' ? encodeCompletion(resolution.completion) : RELEASED;
    const leasesHere = this.leases.scriptMs > 0;
    for (;;) {
      const encoded = await this.commands.answering(() => this.client.getBuffer(key));
      if (!encoded) return 'changed';
      const record = decodeRecord(encoded);
      if (!record.token.equals(seen) || record.state === 'completed') return 'changed';
      const gaveUp = record.state === 'in_doubt' && ownerGaveUp(encoded);
      // If the leases live here, the script looks itself.
      if (!gaveUp && !leasesHere && (await this.leases.isHeld(scope))) return 'alive';
      const wallMs = this.options.clock.wallMs();
      const audit = Buffer.from(JSON.stringify(auditRecord(record, resolution, note, wallMs)));
      const written = this.commands.write(
        scripts.resolve,
        [key, leaseOf(key), auditOf(key)],
        [
          encoded.subarray(0, layout.leaseMs),
          leasesHere ? 1 : 0,
          code,
          newToken(),
          encodeTime(wallMs),
          bytes,
          audit,
          AUDIT_RETENTION_MS,
        ],
      );
      const resolved = wordOf(await written.reply) as Resolved;
      // Its state under the token that was seen may have changed: look again.
      if (resolved === 'changed') continue;
      // Written, but a failover could bring the record in doubt back.
      if (resolved === 'ok' && written.replicated && !(await written.replicated))
        throw notReplicated('resolution');
      return resolved;
    }
  }

  async audit(scope: Scope): Promise<AuditRecord[]> {
    const key = auditOf(this.keyOf(scope));
    const trail = await this.commands.answering(() => this.client.lrange(key, 0, -1));
    return trail.map((line) => JSON.parse(line) as AuditRecord);
  }

  async health(): Promise<StoreHealth> {
    return await this.#health.look();
  }

  async close(): Promise<void> {
    for (const client of [this.client, ...this.#lockClients]) client.disconnect();
  }

  /** The braces make a hash tag: all keys of a scope live on one node of a cluster. */
  protected keyOf(scope: string): string {
    return `${this.options.prefix}:v2:{${scope}}`;
  }
}

const RELEASED = { code: '', bytes: '' };

export const leaseOf = (key: string): string => `${key}:lease`;

const auditOf = (key: string): string => `${key}:audit`;

export const wordOf = (reply: Reply): string => (reply as Buffer).toString('latin1');

export const notReplicated = (what: string): StoreUnavailable =>
  new StoreUnavailable(`redis: the ${what} did not reach its replicas`);
