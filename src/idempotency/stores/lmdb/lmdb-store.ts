import { accessSync, constants } from 'node:fs';
import type { Fingerprint, Scope, Token } from '../../../kernel/brands.ts';
import type { ListFilter, Listing } from '../../listing.ts';
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
import { answering, messageOf, unavailable } from './answering.ts';
import { AuditTrail } from './audit-trail.ts';
import type { Absent, Change, Entry } from './entry.ts';
import { type Environment, openEnvironment } from './environment.ts';
import { listRecords } from './list-records.ts';
import type { LmdbStoreOptions } from './lmdb-store-options.ts';
import { Records } from './records.ts';
import { Resolver } from './resolver.ts';
import { Room } from './room.ts';
import { Ages, currentBoot, type Stamp } from './stamp.ts';
import { Sweep } from './sweep.ts';

/**
 * The embedded store: one LMDB environment, shared by all processes of a machine.
 *
 * Every write is conditional on the version that was read, which LMDB checks at the commit, across processes; a write
 * resolves when it is on the disk (`overlappingSync: false` puts the sync before the answer).
 */
export class LmdbStore implements Store {
  readonly #environment: Environment;
  readonly #records: Records;
  readonly #options: LmdbStoreOptions;
  readonly #ages: Ages;
  readonly #trail: AuditTrail;
  readonly #resolver: Resolver;
  readonly #sweep: Sweep;
  readonly #room: Room;
  #closed = false;

  /** @throws {StoreUnavailable} with a message for the operator where the folder cannot be used */
  static async open(options: LmdbStoreOptions): Promise<LmdbStore> {
    return new LmdbStore(options, await openEnvironment(options.path, options.onFailure));
  }

  private constructor(options: LmdbStoreOptions, environment: Environment) {
    this.#options = options;
    this.#environment = environment;
    this.#ages = new Ages(currentBoot(), options.clock);
    this.#records = new Records(environment, this.#ages, options.retentionMs);
    this.#trail = new AuditTrail(environment.records, this.#ages);
    this.#resolver = new Resolver(this.#records, this.#trail, this.#ages, options, (scope) =>
      this.#read(scope),
    );
    this.#room = new Room(options.path, options.keepFreeBytes);
    this.#sweep = new Sweep(
      { ...environment, ages: this.#ages },
      options.retentionMs,
      () => this.#room.shortage === undefined,
    );
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    const settled = this.#settled(request);
    if (settled) return settled;
    return await this.#answering(async () => {
      const wallMs = this.#options.clock.wallMs();
      const claimed = { ...request, state: 'claimed' as const, createdAtMs: wallMs, changedAtMs: wallMs };
      for (;;) {
        const entry = this.#read(request.scope);
        if (!('record' in entry)) {
          this.#room.need();
          const next = { stamp: this.#ages.now(), record: claimed };
          if (await this.#records.add(request.scope, entry.expired, next)) return taken(false);
          continue;
        }
        const stands = standing(entry.record, request.fingerprint);
        if (stands.kind !== 'owned') return stands;
        if (this.#ages.sinceAliveMs(entry.stamp) < this.#options.leaseMs) return { kind: 'in_flight' };
        this.#room.need();
        const { executing, next } = this.#withoutOwner(entry, request);
        if (!(await this.#records.replace(request.scope, entry, next))) continue;
        return executing ? { kind: 'in_doubt', sinceMs: next.record.changedAtMs } : taken(true);
      }
    });
  }

  async begin(owner: Owner): Promise<Fenced> {
    return await this.#fenced(owner, ({ record, stamp }) =>
      record.state === 'claimed' ? this.#changed(record, stamp, 'executing') : 'refuse',
    );
  }

  async takeOver(heir: Owner, fingerprint: Fingerprint): Promise<'ok' | 'changed'> {
    return await this.#answering(async () => {
      for (;;) {
        const entry = this.#read(heir.scope);
        if (!('record' in entry)) return 'changed';
        const { record, stamp } = entry;
        // By a write whose answer was lost.
        if (record.state === 'executing' && record.token.equals(heir.token)) return 'ok';
        if (record.state !== 'in_doubt' || !record.fingerprint.equals(fingerprint)) return 'changed';
        this.#room.need();
        const next = this.#changed({ ...record, token: heir.token }, stamp, 'executing');
        if (await this.#records.replace(heir.scope, entry, next)) return 'ok';
      }
    });
  }

  async renew(owner: Owner): Promise<Fenced | 'lost'> {
    let lost = false;
    const renewed = await this.#fenced(owner, ({ record, stamp }) => {
      // Settled by this owner a moment ago: there is nothing to keep alive any more.
      if (record.state === 'settled') return 'keep';
      lost = this.#ages.sinceAliveMs(stamp) >= this.#options.leaseMs;
      return { record, stamp: this.#ages.alive(stamp) };
    });
    return renewed === 'ok' && lost ? 'lost' : renewed;
  }

  async settle(owner: Owner, settlement: Settlement): Promise<Fenced> {
    return await this.#fenced(owner, ({ record, stamp }) => {
      if (record.state === 'claimed') return 'refuse';
      // By a write whose answer was lost: what stands is the same result.
      if (record.state === 'settled') return 'keep';
      const changed = this.#changed(record, stamp, 'settled');
      return { ...changed, record: { ...changed.record, settlement } };
    });
  }

  async release(owner: Owner): Promise<Fenced> {
    return await this.#fenced(owner, ({ record }) => (record.state === 'settled' ? 'refuse' : 'remove'));
  }

  async markInDoubt(owner: Owner): Promise<Fenced> {
    return await this.#fenced(owner, ({ record, stamp }) => {
      if (record.state !== 'executing' && record.state !== 'in_doubt') return 'refuse';
      // In doubt already, for it was taken for gone: it may have woken up and shown life since.
      const changed =
        record.state === 'in_doubt' ? { record, stamp } : this.#changed(record, stamp, 'in_doubt');
      return { ...changed, stamp: this.#ages.gone(changed.stamp) };
    });
  }

  async get(scope: Scope): Promise<IdempotencyRecord | undefined> {
    return await this.#answering(async () => {
      const entry = this.#read(scope);
      return 'record' in entry ? entry.record : undefined;
    });
  }

  async list(filter: ListFilter): Promise<Listing> {
    this.#refuseClosed();
    const look = { ages: this.#ages, ...this.#options, refuseClosed: () => this.#refuseClosed() };
    return await listRecords(this.#environment.records, look, filter);
  }

  async resolve(scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote): Promise<Resolved> {
    return await this.#answering(() => this.#resolver.resolve(scope, seen, resolution, note));
  }

  async audit(scope: Scope): Promise<AuditRecord[]> {
    return await this.#answering(async () => {
      this.#refuseClosed();
      return this.#trail.read(scope);
    });
  }

  async health(): Promise<StoreHealth> {
    try {
      accessSync(this.#options.path, constants.W_OK);
      this.#refuseClosed();
      this.#environment.records.getStats();
      // Merchants are answered 503 then, and an operator sees nothing else of it.
      this.#environment.commits.refuseStalled(this.#options.timeoutMs);
      const { shortage } = this.#room;
      return { ok: true, detail: 'lmdb', warnings: shortage ? [shortage] : [] };
    } catch (error) {
      return { ok: false, detail: `lmdb: ${messageOf(error)}`, warnings: [] };
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#sweep.stop();
    this.#room.close();
    await this.#environment.close();
  }

  /** What a retry mostly finds. A read does not wait for anything, and needs no time limit. */
  #settled({ scope, fingerprint }: ClaimRequest): Claim | undefined {
    try {
      const entry = this.#read(scope);
      if (!('record' in entry) || entry.record.state !== 'settled') return undefined;
      const stands = standing(entry.record, fingerprint);
      return stands.kind === 'owned' ? undefined : stands;
    } catch (error) {
      throw unavailable(error);
    }
  }

  /** Compare and set: `change` sees what stands under the owner's token, and its result replaces exactly that. */
  async #fenced(owner: Owner, change: (entry: Entry) => Change): Promise<Fenced> {
    return await this.#answering(async () => {
      for (;;) {
        const entry = this.#read(owner.scope);
        if (!('record' in entry) || !entry.record.token.equals(owner.token)) return 'stale';
        const next = change(entry);
        if (next === 'refuse') return 'stale';
        if (next === 'keep') return 'ok';
        const written =
          next === 'remove' ? this.#records.remove(entry) : this.#records.replace(owner.scope, entry, next);
        if (await written) return 'ok';
      }
    });
  }

  /** An owner who is gone: a claim that never began passes to the caller, an execution is left in doubt. */
  #withoutOwner({ record, stamp }: Entry, request: ClaimRequest) {
    const executing = record.state === 'executing';
    if (!executing)
      return { executing, next: this.#changed({ ...record, token: request.token }, stamp, 'claimed') };
    const changed = this.#changed(record, stamp, 'in_doubt');
    // No sign of life of its owner: should that one wake up and renew, it shows.
    return { executing, next: { ...changed, stamp: this.#ages.gone(changed.stamp) } };
  }

  #changed(record: IdempotencyRecord, stamp: Stamp, state: IdempotencyRecord['state']) {
    const changedAtMs = this.#options.clock.wallMs();
    return { record: { ...record, state, changedAtMs }, stamp: this.#ages.alive(stamp) };
  }

  /** What stands at this moment. Throws for bytes that are no record. */
  #read(scope: Scope): Entry | Absent {
    this.#refuseClosed();
    return this.#records.read(scope);
  }

  /** A read while LMDB closes would end the process, by an exception in a timer of the library. */
  #refuseClosed(): void {
    if (this.#closed) throw new StoreUnavailable('lmdb is closed', { maybeWritten: false });
  }

  async #answering<T>(work: () => Promise<T>): Promise<T> {
    this.#refuseClosed();
    return await answering(work, this.#options.timeoutMs);
  }
}

const taken = (tookOver: boolean): Claim => ({ kind: 'claimed', tookOver });
