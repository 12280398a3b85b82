import { randomUUID } from 'node:crypto';
import type { RecordId, Token } from '../../src/lib/brands.ts';
import type { AuditRecord, ResolutionCount } from '../../src/store/doubts.ts';
import {
  CLOSED_IN,
  type Closed,
  type CopyProgress,
  type CopyRegister,
  type Create,
  type FoundProgress,
  KeyLocked,
  type Listed,
  type OpenCount,
  type Page,
  type Register,
  type Replace,
  type Reply,
  type Scanned,
  type Seen,
} from '../../src/store/register.ts';
import {
  type IdentityInUse,
  type KeyRecord,
  type Mode,
  type Revision,
  StoreClosed,
  type StoreHealth,
  StoreUnavailable,
  UnknownCursor,
  UnreadableRecord,
  VISIT_LASTS_MS,
  VOID_TOKEN_MS,
} from '../../src/store/types.ts';

interface Claimed {
  by: object;
  record: KeyRecord;
  expiresInMs: number;
}

interface Entry {
  record: KeyRecord;
  expiresAtMs: number;
  isDamaged: boolean;
}

/** The register of tests: nothing in it survives the process. It keeps the records it gets, so do not change them. */
export class MemoryRegister implements Register, CopyRegister {
  readonly replicates = false;
  readonly #nowMs: () => number;
  #id: string;
  readonly #entries = new Map<RecordId, Entry>();
  readonly #leases = new Map<RecordId, { token: Token; untilMs: number }>();
  readonly #voidUntilMs = new Map<string, number>();
  readonly #audits = new Map<RecordId, AuditRecord[]>();
  /** What open transactions have written. Nobody sees it before their commit, and who writes the same key is refused. */
  readonly #claims = new Map<RecordId, Claimed>();
  readonly #resolutions: ResolutionCount[] = [];
  #copyProgress: CopyProgress | undefined;
  #visits = 0;
  readonly #visitedMs = new Map<Mode, number>();

  /** @param id of the store's identity, 32 hexadecimal digits. Default: random */
  constructor(nowMs: () => number, id: string = randomUUID().replaceAll('-', '')) {
    this.#nowMs = nowMs;
    this.#id = id;
  }

  async create(id: RecordId, { record, expiresInMs }: Create): Promise<Reply> {
    if (this.#claims.has(id)) throw new KeyLocked();
    const entry = this.#entry(id);
    if (entry) return isOf(entry, record) ? { done: true } : { done: false, held: this.#seen(id, entry) };
    if (this.#nowMs() < (this.#voidUntilMs.get(hex(record.token)) ?? 0)) throw refused('the token is void');
    if (this.#closed !== 'no') throw new StoreClosed();
    this.#set(id, record, this.#nowMs() + expiresInMs);
    return { done: true };
  }

  async replace(id: RecordId, write: Replace): Promise<Reply> {
    const { record, revision, expiresInMs, unlessLeased, unlessClosed, endLeaseOf, voidToken } = write;
    if (this.#claims.has(id)) throw new KeyLocked();
    if (voidToken) this.#voidUntilMs.set(hex(voidToken), this.#nowMs() + VOID_TOKEN_MS);
    if (endLeaseOf) this.#endLease(id, endLeaseOf);
    const entry = this.#entry(id);
    if (entry && record && isOf(entry, record)) return { done: true };
    const isExpected = entry && revision ? entry.record.revision.equals(revision) : entry === revision;
    if (!isExpected || (unlessLeased && this.#lease(id)))
      return { done: false, held: entry && this.#seen(id, entry) };
    if (this.#closed === 'all' || (unlessClosed && this.#closed === 'starts')) throw new StoreClosed();
    if (!record) this.#entries.delete(id);
    else if (expiresInMs !== 'unchanged') this.#set(id, record, this.#nowMs() + expiresInMs);
    else if (entry) this.#set(id, record, entry.expiresAtMs);
    if (write.audit) this.#audits.set(id, [...(this.#audits.get(id) ?? []), write.audit]);
    if (write.counted) this.#count(write.counted);
    return { done: true };
  }

  async read(id: RecordId): Promise<Seen | undefined> {
    const entry = this.#entry(id);
    return entry && this.#seen(id, entry);
  }

  async renew(id: RecordId, token: Token, leaseMs: number): Promise<'kept' | 'taken' | 'lost'> {
    const lease = this.#lease(id);
    if (lease && !lease.token.equals(token)) return 'lost';
    this.#leases.set(id, { token, untilMs: this.#nowMs() + leaseMs });
    return lease ? 'kept' : 'taken';
  }

  async endLease(id: RecordId, token: Token): Promise<void> {
    this.#endLease(id, token);
  }

  async list(query: { open: boolean; limit: number; cursor?: string | undefined }): Promise<Page> {
    const { open, limit, cursor = '' } = query;
    if (cursor && !/^[0-9a-f]{48}$/.test(cursor)) throw new UnknownCursor();
    const rest = this.#all().filter(([id, entry]) => id > cursor && (!open || isOpen(entry)));
    const page = rest.slice(0, limit);
    const records = page.map(([id, entry]): Listed => {
      if (entry.isDamaged) return { id, unreadable: DAMAGED };
      const { completion, ...head } = entry.record;
      const { expiresInMs, isLeased } = this.#seen(id, entry);
      if (completion?.kind === 'encrypted') head.encryptionKeyId = completion.keyId;
      return { id, head, expiresInMs, isLeased };
    });
    const last = page.at(-1);
    return last && rest.length > limit ? { records, cursor: last[0] } : { records };
  }

  async idsOf(digits: string): Promise<RecordId[]> {
    const ids = [...this.#all().map(([id]) => id), ...this.#audits.keys()];
    return [...new Set(ids)].filter((id) => id.startsWith(digits));
  }

  async countOpen(options: {
    executingSinceMs: number;
    signal?: AbortSignal | undefined;
  }): Promise<OpenCount> {
    const { executingSinceMs, signal } = options;
    signal?.throwIfAborted();
    const count: OpenCount = { inDoubt: new Map(), old: [], resolutions: structuredClone(this.#resolutions) };
    for (const [id, entry] of this.#all()) {
      const { state, operation, createdAtMs } = entry.record;
      if (state === 'executing' && createdAtMs < executingSinceMs) count.old.push(id);
      if (state !== 'in_doubt') continue;
      const { number, oldestMs } = count.inDoubt.get(operation) ?? { number: 0, oldestMs: createdAtMs };
      count.inDoubt.set(operation, { number: number + 1, oldestMs: Math.min(oldestMs, createdAtMs) });
    }
    return count;
  }

  async audit(id: RecordId): Promise<AuditRecord[]> {
    return this.#audits.get(id) ?? [];
  }

  async readIdentity(mode: Mode): Promise<IdentityInUse | undefined> {
    if (this.#visits === 0) return undefined;
    const otherMs =
      this.#visitedMs.get(mode === 'protect' ? 'observe' : 'protect') ?? Number.NEGATIVE_INFINITY;
    return { id: this.#id, count: this.#visits, otherMode: this.#nowMs() - otherMs < VISIT_LASTS_MS };
  }

  async visit(mode: Mode, replacing?: string): Promise<IdentityInUse> {
    if (replacing === this.#id) this.#id = randomUUID().replaceAll('-', '');
    this.#visits++;
    this.#visitedMs.set(mode, this.#nowMs());
    return (await this.readIdentity(mode)) as IdentityInUse;
  }

  async health(): Promise<StoreHealth> {
    const isClosed = this.#closed !== 'no';
    return { ok: !isClosed, isClosed, detail: isClosed ? 'memory, closed' : 'memory', warnings: [] };
  }

  async close(): Promise<void> {}

  get register(): Register {
    return this;
  }

  async readCopyProgress(): Promise<FoundProgress | undefined> {
    return this.#copyProgress && { ...this.#copyProgress, isWhole: true };
  }

  async changeCopyProgress(to: CopyProgress): Promise<boolean> {
    const { epoch = 0, runId } = this.#copyProgress ?? {};
    if (to.epoch === epoch && to.runId === runId) return true;
    if (to.epoch !== epoch + 1) return false;
    if (CLOSED_IN[to.state] !== 'no' && this.#claims.size > 0) throw refused('a transaction is open');
    this.#copyProgress = to;
    return true;
  }

  async servers(): Promise<string> {
    return '';
  }

  async *scan(): AsyncIterable<Scanned[]> {
    for (const [id] of this.#all()) yield [{ id, kind: 'record' }];
    for (const id of this.#audits.keys()) yield [{ id, kind: 'audit' }];
  }

  async putAudit(id: RecordId, audit: readonly AuditRecord[]): Promise<void> {
    if (!this.#audits.has(id)) this.#audits.set(id, [...audit]);
  }

  /** See {@link Transactions.claim}. @param by the transaction */
  claim(by: object, id: RecordId, { record, expiresInMs }: Create): boolean {
    const claimed = this.#claims.get(id);
    if (claimed && claimed.by !== by) throw new KeyLocked();
    if (this.#entry(id)) return false;
    if (this.#closed !== 'no') throw new StoreClosed();
    this.#claims.set(id, { by, record, expiresInMs });
    return true;
  }

  /** See {@link Transactions.complete}. */
  complete(by: object, id: RecordId, expected: Revision, { record, expiresInMs }: Replace): void {
    const claimed = this.#claims.get(id);
    if (claimed?.by !== by || !claimed.record.revision.equals(expected))
      throw new TypeError('the record is not in this transaction');
    if (record) this.#claims.set(id, { by, record, expiresInMs: Number(expiresInMs) });
  }

  /** Ends a transaction. */
  end(by: object, isCommitted: boolean): void {
    for (const [id, claimed] of this.#claims) {
      if (claimed.by !== by) continue;
      this.#claims.delete(id);
      if (isCommitted) this.#set(id, claimed.record, this.#nowMs() + claimed.expiresInMs);
    }
  }

  /** What it holds at this moment, in a register of its own. */
  clone(nowMs: () => number): MemoryRegister {
    const clone = new MemoryRegister(nowMs, this.#id);
    for (const [id, entry] of this.#entries) clone.#entries.set(id, { ...entry });
    for (const [id, lease] of this.#leases) clone.#leases.set(id, lease);
    for (const [token, untilMs] of this.#voidUntilMs) clone.#voidUntilMs.set(token, untilMs);
    for (const [id, audits] of this.#audits) clone.#audits.set(id, audits);
    clone.#resolutions.push(...structuredClone(this.#resolutions));
    clone.#copyProgress = this.#copyProgress;
    clone.#visits = this.#visits;
    return clone;
  }

  /** From now on the value is not a record of this format, but its revision can still be read. */
  damage(id: RecordId): void {
    const entry = this.#entry(id);
    if (entry) entry.isDamaged = true;
  }

  get #closed(): Closed {
    return this.#copyProgress ? CLOSED_IN[this.#copyProgress.state] : 'no';
  }

  #entry(id: RecordId): Entry | undefined {
    const entry = this.#entries.get(id);
    if (!entry || this.#nowMs() < entry.expiresAtMs) return entry;
    this.#entries.delete(id);
    return undefined;
  }

  #set(id: RecordId, record: KeyRecord, expiresAtMs: number): void {
    this.#entries.set(id, { record, expiresAtMs, isDamaged: false });
  }

  /** @throws {UnreadableRecord} */
  #seen(id: RecordId, { record, expiresAtMs, isDamaged }: Entry): Seen {
    if (isDamaged) throw new UnreadableRecord(DAMAGED);
    return { record, expiresInMs: expiresAtMs - this.#nowMs(), isLeased: this.#lease(id) !== undefined };
  }

  #endLease(id: RecordId, token: Token): void {
    if (this.#leases.get(id)?.token.equals(token)) this.#leases.delete(id);
  }

  #lease(id: RecordId): { token: Token; untilMs: number } | undefined {
    const lease = this.#leases.get(id);
    return lease && this.#nowMs() < lease.untilMs ? lease : undefined;
  }

  #all(): [RecordId, Entry][] {
    const ids = [...this.#entries.keys()].sort();
    return ids.flatMap((id): [RecordId, Entry][] => {
      const entry = this.#entry(id);
      return entry ? [[id, entry]] : [];
    });
  }

  #count({ as, by }: NonNullable<Replace['counted']>): void {
    const known = this.#resolutions.find((one) => one.as === as && one.by === by);
    if (known) known.number++;
    else this.#resolutions.push({ as, by, number: 1 });
  }
}

const DAMAGED = 'it was damaged';
const hex = (token: Token): string => token.toString('hex');
const isOf = (entry: Entry, { revision }: KeyRecord): boolean => entry.record.revision.equals(revision);
const isOpen = ({ record }: Entry): boolean => record.state !== 'completed';
const refused = (why: string) => new StoreUnavailable(why, { maybeWritten: false });
