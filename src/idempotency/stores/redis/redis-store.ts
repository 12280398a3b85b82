import type { Fingerprint, Scope, Token } from '../../../kernel/brands.ts';
import { decodeRecord, encodeRecord, encodeSettlement, encodeTime } from '../../codec.ts';
import { type ListFilter, type Listing, UnknownCursor } from '../../listing.ts';
import type { IdempotencyRecord, Settlement } from '../../record.ts';
import type { AuditRecord, Resolution, ResolutionNote, Resolved } from '../../resolution.ts';
import { standing } from '../../standing.ts';
import {
  type Claim,
  type ClaimRequest,
  type Fenced,
  type Owner,
  type Store,
  type StoreHealth,
  StoreUnavailable,
} from '../../store.ts';
import { defineCommands } from './commands.ts';
import { connect, createClient, type RedisClient } from './connect.ts';
import { inspect } from './inspect.ts';
import { Leases } from './lease.ts';
import { listRecords } from './list-records.ts';
import type { RedisStoreOptions } from './redis-store-options.ts';
import { Resolver } from './resolver.ts';
import { Writes, type Written } from './writes.ts';

/**
 * The store for more than one machine. One string a scope, changed by compare-and-set scripts; Redis' own time to live
 * is its age. A replay is one round trip; a first execution two before the request goes upstream and one after.
 */
export class RedisStore implements Store {
  readonly #client: RedisClient;
  readonly #lockClients: RedisClient[];
  readonly #options: RedisStoreOptions;
  readonly #leases: Leases;
  readonly #writes: Writes;
  readonly #resolver: Resolver;
  #warnings: string[] = [];

  private constructor(options: RedisStoreOptions) {
    this.#options = options;
    this.#client = createClient(options.location, options.timeoutMs);
    defineCommands(this.#client);
    this.#writes = new Writes(this.#client, options.replicas, options.timeoutMs);
    this.#lockClients = options.lockNodes.map((url) => createClient({ url }, options.timeoutMs));
    this.#leases = new Leases(this.#client, this.#lockClients, options.leaseMs, (scope) =>
      leaseOf(this.#keyOf(scope)),
    );
    this.#resolver = new Resolver(this.#client, this.#writes, this.#leases, options, (scope) =>
      this.#keyOf(scope),
    );
  }

  /** @throws {StoreUnavailable} when Redis cannot be reached, or is one that cannot keep records */
  static async open(options: RedisStoreOptions): Promise<RedisStore> {
    const store = new RedisStore(options);
    const { clock, connectTimeoutMs, replicas } = options;
    const untilMs = clock.monotonicMs() + connectTimeoutMs;
    try {
      // A minority of the lock nodes may be down, now as later.
      for (const client of store.#lockClients) connect(client, connectTimeoutMs).catch(() => {});
      await connect(store.#client, connectTimeoutMs);
      store.#warnings = await inspect(store.#client, replicas, clock, untilMs);
      return store;
    } catch (error) {
      await store.close();
      throw error;
    }
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    const { retentionMs, clock } = this.#options;
    const wallMs = clock.wallMs();
    const head = { ...request, state: 'claimed' as const, createdAtMs: wallMs, changedAtMs: wallMs };
    const claimed = encodeRecord(head, retentionMs);
    const key = this.#keyOf(request.scope);
    for (;;) {
      const { reply: stands, replicated } = await this.#answering(async () => {
        const { reply, replicated } = await this.#writes.write<Buffer | null>((to) =>
          to.setBuffer(key, claimed, 'PX', retentionMs, 'NX', 'GET'),
        );
        return { reply: reply && decodeRecord(reply), replicated };
      });
      // Our own token: the command was delivered twice.
      if (!stands || stands.token.equals(request.token)) {
        if (!replicated) throw new StoreUnavailable('redis: the claim did not reach its replicas');
        return { kind: 'claimed', tookOver: false };
      }
      const claim = standing(stands, request.fingerprint);
      if (claim.kind !== 'owned') return claim;
      const decided = await this.#withoutOwner(request, stands);
      if (decided) return decided;
    }
  }

  async begin(owner: Owner): Promise<Fenced> {
    return await this.#first('begin', owner, (key, lease, value) =>
      this.#writes.write<Fenced>((to) =>
        to.begin(key, lease, owner.token, this.#now(), value, this.#leases.scriptMs),
      ),
    );
  }

  async takeOver(heir: Owner, fingerprint: Fingerprint): Promise<'ok' | 'changed'> {
    return await this.#first('takeover', heir, (key, lease, value) =>
      this.#writes.write<'ok' | 'changed'>((to) =>
        to.takeOver(key, lease, heir.token, fingerprint, this.#now(), value, this.#leases.scriptMs),
      ),
    );
  }

  async renew(owner: Owner): Promise<Fenced | 'lost'> {
    const renewed = this.#leases.renew(owner);
    const owned = await this.#answering(() => this.#client.stillOwned(this.#keyOf(owner.scope), owner.token));
    if (owned === 'stale') {
      void this.#leases.giveBack(owner);
      return owned;
    }
    return (await renewed) ? 'ok' : 'lost';
  }

  async settle(owner: Owner, settlement: Settlement): Promise<Fenced> {
    const { code, bytes } = encodeSettlement(settlement);
    return await this.#last('settlement', owner, async (key, lease, value) => {
      const written = await this.#writes.write<Fenced>((to) =>
        to.settle(key, lease, owner.token, value, code, this.#now(), bytes),
      );
      if (!written.replicated) this.#options.onUnreplicated?.();
      return written;
    });
  }

  async release(owner: Owner): Promise<Fenced> {
    return await this.#last('release', owner, (key, lease, value) =>
      this.#writes.write<Fenced>((to) => to.release(key, lease, owner.token, value)),
    );
  }

  async markInDoubt(owner: Owner): Promise<Fenced> {
    return await this.#last('doubt', owner, async (key, lease, value) => {
      const reply = await this.#client.markInDoubt(key, lease, owner.token, value, this.#now());
      // Lost in a failover it is executing without an owner, which reads as in doubt as well.
      return { reply, replicated: true };
    });
  }

  async get(scope: Scope): Promise<IdempotencyRecord | undefined> {
    return await this.#answering(async () => {
      const bytes = await this.#client.getBuffer(this.#keyOf(scope));
      return bytes ? decodeRecord(bytes) : undefined;
    });
  }

  async list(filter: ListFilter): Promise<Listing> {
    const look = {
      client: this.#client,
      leaseMs: this.#options.leaseMs,
      keyOf: (scope: string) => this.#keyOf(scope),
      isHeld: (scope: Scope) => this.#leases.isHeld(scope),
    };
    return await this.#answering(() => listRecords(look, filter));
  }

  async resolve(scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote): Promise<Resolved> {
    return await this.#answering(() => this.#resolver.resolve(scope, seen, resolution, note));
  }

  async audit(scope: Scope): Promise<AuditRecord[]> {
    return await this.#answering(() => this.#resolver.audit(scope));
  }

  async health(): Promise<StoreHealth> {
    try {
      await this.#client.ping();
      return { ok: true, detail: 'redis', warnings: this.#warnings };
    } catch (error) {
      return { ok: false, detail: `redis: ${(error as Error).message}`, warnings: this.#warnings };
    }
  }

  async close(): Promise<void> {
    for (const client of [this.#client, ...this.#lockClients]) client.disconnect();
  }

  /** The write by which an owner may send. It takes the lease, which is given back where the owner may not. */
  async #first<Reply extends string>(
    what: string,
    owner: Owner,
    write: (key: string, lease: string, leaseValue: string) => Promise<Written<Reply>>,
  ): Promise<Reply> {
    // In one go with the write, or on the wire to nodes of its own before it: one round trip.
    this.#leases.take(owner);
    const key = this.#keyOf(owner.scope);
    const value = this.#leases.valueOf(owner);
    const { reply, replicated } = await this.#answering(() => write(key, leaseOf(key), value));
    if (reply !== 'ok') void this.#leases.giveBack(owner);
    else if (!replicated) throw new StoreUnavailable(`redis: the ${what} did not reach its replicas`);
    return reply;
  }

  /** An owner's last write, which gives the lease back: one round trip. Unsent, the lease is kept. */
  async #last(
    what: string,
    owner: Owner,
    write: (key: string, lease: string, leaseValue: string) => Promise<Written<Fenced>>,
  ): Promise<Fenced> {
    const key = this.#keyOf(owner.scope);
    const value = this.#leases.valueOf(owner);
    const { reply, replicated } = await this.#answering(() => write(key, leaseOf(key), value));
    void this.#leases.giveBack(owner);
    // Stored, and yet a failover could undo it: to be written again until the replicas have it too.
    if (!replicated) throw new StoreUnavailable(`redis: the ${what} did not reach its replicas`);
    return reply;
  }

  /** What stands is claimed or executing. Undefined: something else stands by now, look again. */
  async #withoutOwner(request: ClaimRequest, stands: IdempotencyRecord): Promise<Claim | undefined> {
    if (await this.#leases.isHeld(request.scope)) return { kind: 'in_flight' };
    const code = stands.state === 'claimed' ? 'c' : 'e';
    const [key, { leaseMs }] = [this.#keyOf(request.scope), this.#options];
    const sinceMs = this.#options.clock.wallMs();
    const { reply: verdict, replicated } = await this.#answering(() =>
      this.#writes.write<'alive' | 'taken' | 'in_doubt' | 'changed'>((to) =>
        to.withoutOwner(key, stands.token, code, leaseMs, request.token, encodeTime(sinceMs)),
      ),
    );
    if (verdict === 'taken' && !replicated)
      throw new StoreUnavailable('redis: the claim did not reach its replicas');
    if (verdict === 'alive') return { kind: 'in_flight' };
    if (verdict === 'taken') return { kind: 'claimed', tookOver: true };
    return verdict === 'in_doubt' ? { kind: 'in_doubt', sinceMs } : undefined;
  }

  /** The braces make a hash tag: all keys of a scope live on one node of a cluster. */
  #keyOf(scope: string): string {
    return `${this.#options.prefix}:{${scope}}`;
  }

  #now(): Buffer {
    return encodeTime(this.#options.clock.wallMs());
  }

  /** Gives every failure one name. */
  async #answering<T>(command: () => Promise<T>): Promise<T> {
    if (this.#client.status !== 'ready') {
      throw new StoreUnavailable('redis: not connected', { maybeWritten: false });
    }
    try {
      return await command();
    } catch (error) {
      if (error instanceof UnknownCursor) throw error;
      throw new StoreUnavailable(`redis: ${(error as Error).message}`, { cause: error });
    }
  }
}

const leaseOf = (key: string): string => `${key}:lease`;
