import type { RecordId } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import type { AuditRecord, DoubtCount, OperationDoubts } from '../store/doubts.ts';
import type { Held, Listed, Register, Seen } from '../store/register.ts';
import type { ResponseCipher } from '../store/response-cipher.ts';
import {
  type IdempotencyRecord,
  type IdentityInUse,
  type KeyRecord,
  type ListedRecord,
  type ListFilter,
  type Listing,
  type Mode,
  type Owner,
  type StoreUsage,
  UnreadableRecord,
} from '../store/types.ts';
import * as rules from './rules.ts';

/** Executing records that are younger are not looked at when keys in doubt are counted. */
const YOUNG_MS = 1000;
/** How many records are read at once when keys in doubt are counted. */
const READ_AT_ONCE = 64;
/** More operations than this in one store are counted as `other`, so that damaged names cannot fill the memory. */
const MOST_OPERATIONS = 1000;

/** Reads what a register holds, and what it means. Changes no record. */
export class LedgerReader {
  protected readonly register: Register;
  protected readonly clock: Clock;
  protected readonly cipher: ResponseCipher;

  constructor(register: Register, clock: Clock, cipher: ResponseCipher) {
    this.register = register;
    this.clock = clock;
    this.cipher = cipher;
  }

  get usage(): StoreUsage | undefined {
    return this.register.usage;
  }

  /** See {@link Register.connectionOf}. */
  connectionOf(recordId?: RecordId): unknown {
    return this.register.connectionOf?.(recordId);
  }

  /** See {@link Register.connections}. */
  get connections(): readonly unknown[] {
    return this.register.connections ?? [this.connectionOf()];
  }

  onConnected(act: () => void): void {
    this.register.onConnected?.(act);
  }

  /**
   * For how long, by the store's clock, the record's age still shows other gateways that this owner is alive; 0 or less if not. Asked
   * before dispatch where a machine may release or restart the key.
   */
  async aliveForMs({ recordId, token }: Owner): Promise<number> {
    const seen = await this.register.read(recordId);
    const isOwner = seen?.record.state === 'executing' && seen.record.token.equals(token);
    return isOwner ? rules.youngForMs(seen) : 0;
  }

  async get(recordId: RecordId): Promise<IdempotencyRecord | undefined> {
    const seen = await this.register.read(recordId);
    return seen && this.cipher.decrypt(recordId, seen.record);
  }

  /** Whether the record is executing and its owner is dead. Only reads. */
  async isOwnerGone(recordId: RecordId): Promise<boolean> {
    const seen = await this.register.read(recordId);
    return seen !== undefined && (await this.#isDead(recordId, seen));
  }

  /** Whether the record's owner shows that it is alive and may still complete it. Also of a record that is in doubt. Only reads. */
  async hasLivingOwner(recordId: RecordId): Promise<boolean> {
    const seen = await this.register.read(recordId);
    if (!seen || seen.record.state === 'completed' || seen.record.ownerGaveUp) return false;
    return await this.#isAlive(recordId, seen);
  }

  /**
   * In how many milliseconds the record expires, if there is one and nothing changes it. SQLite counts running time, so there the
   * record can live longer.
   */
  async expiresInMs(recordId: RecordId): Promise<number | undefined> {
    return (await this.register.read(recordId))?.expiresInMs;
  }

  /**
   * One page of records, in no particular order. A record that changes during the listing may be missing, or appear twice.
   *
   * @throws {UnknownCursor}
   */
  async list({ inDoubt, open = inDoubt, limit, cursor }: ListFilter): Promise<Listing> {
    const page = await this.register.list({ open, limit, cursor });
    const records = await Promise.all(page.records.map((listed) => this.#listed(listed)));
    return { ...page, records: records.filter((record) => !inDoubt || needsOperator(record)) };
  }

  /** See {@link Register.idsOf}. */
  idsOf(digits: string): Promise<RecordId[]> {
    return this.register.idsOf(digits);
  }

  /**
   * Counts the keys in doubt of all gateways. Never blocks a write, and reads in small steps.
   *
   * @param signal ends the counting; then the promise rejects
   */
  async countDoubts({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<DoubtCount> {
    const countedAtMs = this.clock.wallMs();
    const executingSinceMs = countedAtMs - YOUNG_MS;
    const { inDoubt, old, resolutions } = await this.register.countOpen({ executingSinceMs, signal });
    const operations = new Map<string, OperationDoubts>();
    let oldestSinceMs: number | undefined;
    const add = (operation: string, number: number, ownerGone: number, sinceMs: number) => {
      const isFull = operations.size >= MOST_OPERATIONS && !operations.has(operation);
      const name = isFull ? 'other' : operation;
      const known = operations.get(name) ?? { inDoubt: 0, ownerGone: 0 };
      operations.set(name, { inDoubt: known.inDoubt + number, ownerGone: known.ownerGone + ownerGone });
      // The time of a damaged record is no number.
      if (Number.isFinite(sinceMs)) oldestSinceMs = Math.min(oldestSinceMs ?? sinceMs, sinceMs);
    };
    for (const [operation, { number, oldestMs }] of inDoubt) add(operation, number, 0, oldestMs);
    for (let at = 0; at < old.length; at += READ_AT_ONCE) {
      signal?.throwIfAborted();
      const ids = old.slice(at, at + READ_AT_ONCE);
      const found = await Promise.all(ids.map((id) => this.#deadExecuting(id)));
      for (const record of found) if (record) add(record.operation, 1, 1, record.createdAtMs);
    }
    return { countedAtMs, operations, oldestSinceMs, resolutions };
  }

  /** The resolutions of a key, oldest first. Each is kept for at least {@link AUDIT_RETENTION_MS}. */
  audit(recordId: RecordId): Promise<AuditRecord[]> {
    return this.register.audit(recordId);
  }

  /** Reads the store's identity, if a gateway has written one. */
  readIdentity(mode: Mode): Promise<IdentityInUse | undefined> {
    return this.register.readIdentity(mode);
  }

  close(): Promise<void> {
    return this.register.close();
  }

  /** Lock nodes are asked only if the answer can depend on the lease. */
  protected async askNodes(id: RecordId, seen: Seen): Promise<Held> {
    const isLeased = rules.needsLease(seen) && ((await this.register.isLeased?.(id)) ?? false);
    return { ...seen, isLeased };
  }

  async #listed(listed: Listed): Promise<ListedRecord> {
    if (listed.unreadable !== undefined) return { recordId: listed.id, unreadable: listed.unreadable };
    const { id, head, expiresInMs, isLeased } = listed;
    const unreadable = this.cipher.whyUnknown(head.encryptionKeyId);
    if (unreadable) return { recordId: id, unreadable };
    return {
      ...head,
      recordId: id,
      ownerGone: await this.#isDead(id, { record: head, expiresInMs, isLeased }),
    };
  }

  async #isDead(id: RecordId, seen: Seen): Promise<boolean> {
    return seen.record.state === 'executing' && !(await this.#isAlive(id, seen));
  }

  async #isAlive(id: RecordId, seen: Seen): Promise<boolean> {
    return rules.isAlive(seen.isLeased === undefined ? await this.askNodes(id, seen) : (seen as Held));
  }

  /** The record if it is executing and its owner is dead. A record that cannot be read is not counted. */
  async #deadExecuting(id: RecordId): Promise<KeyRecord | undefined> {
    const seen = await this.register.read(id).catch(ignoreUnreadable);
    return seen && (await this.#isDead(id, seen)) ? seen.record : undefined;
  }
}

const needsOperator = (record: ListedRecord): boolean =>
  record.unreadable !== undefined || record.state === 'in_doubt' || record.ownerGone;

function ignoreUnreadable(error: unknown): undefined {
  if (!(error instanceof UnreadableRecord)) throw error;
}
