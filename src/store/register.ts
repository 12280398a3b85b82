import type { RecordId, Token } from '../lib/brands.ts';
import type { AuditRecord, ResolutionCount, ResolutionSource } from './doubts.ts';
import {
  type IdentityInUse,
  type KeyRecord,
  type Mode,
  type Revision,
  type StoreHealth,
  type StoreIdentity,
  StoreUnavailable,
  type StoreUsage,
} from './types.ts';

/** What a register holds, and what belongs to it at that moment. */
export interface Held {
  record: KeyRecord;
  /** How long the record still lives, in milliseconds. The age of an open record follows from it. */
  expiresInMs: number;
  /** An owner holds the lease. It is taken by the first renewal; until then the record's age shows that the owner is alive. */
  isLeased: boolean;
}

/** What a read finds. `isLeased` is unknown if lock nodes hold the leases, because a read does not ask them. */
export type Seen = Omit<Held, 'isLeased'> & { isLeased: boolean | undefined };

/** Nothing → an open record. */
export interface Create {
  kind: 'create';
  record: KeyRecord;
  expiresInMs: number;
}

/** The record with this revision, or nothing → another record, or nothing. */
export interface Replace {
  kind: 'replace';
  revision: Revision | undefined;
  record: KeyRecord | undefined;
  /** The operation of the record that is replaced, or of the new one: its name in the index of open records. */
  operation: string;
  expiresInMs: number | 'unchanged';
  /** Refused also while the record is leased. A register with lock nodes ignores this, because the ledger has asked them. */
  unlessLeased?: boolean;
  /** Refused also if the store is closed to starts: a second execution, or an operator's change. */
  unlessClosed?: boolean;
  /** A failover may lose this write, because the owner soon counts as dead, which means the same. */
  mayBeLost?: boolean;
  /** Ends the lease of this owner, even if the write is refused. */
  endLeaseOf?: Token;
  /** No create with this token succeeds within {@link VOID_TOKEN_MS}, even if the write is refused. */
  voidToken?: Token;
  audit?: AuditRecord;
  counted?: { as: 'completed' | 'released'; by: ResolutionSource };
}

export type Write = Create | Replace;

/** `done`: the write is durable, or this very write was there already. Otherwise nothing was written, and `held` is there. */
export type Reply = { done: true } | { done: false; held: Seen | undefined };

/** A record without its completion, as it is listed. */
export type Listed =
  | {
      id: RecordId;
      head: KeyRecord;
      expiresInMs: number;
      isLeased: boolean | undefined;
      unreadable?: undefined;
    }
  | { id: RecordId; unreadable: string };

export interface Page {
  records: Listed[];
  /** Where the next page begins, if there is one. */
  cursor?: string;
}

/** The index of open records, added up. */
export interface OpenCount {
  /** How many records of each operation are in doubt, and the `createdAtMs` of the oldest. */
  inDoubt: Map<string, { number: number; oldestMs: number }>;
  /** Executing records that were created before `executingSinceMs`. Their owners may be dead. */
  old: RecordId[];
  resolutions: ResolutionCount[];
}

/** Whether the register takes writes. `starts`: it refuses creates and what says `unlessClosed`. `all`: it refuses every write. */
export type Closed = 'no' | 'starts' | 'all';

/**
 * Holds one record per record id. It compares revisions and knows no states; ledger/rules.ts says what a record means. A record is
 * open until it is completed, and the register keeps an index of open records, because operators ask for them.
 *
 * **Durable**: a write is answered as soon as it survives a crash, and not before.
 *
 * **Errors**: a method that cannot answer throws `StoreUnavailable`. If its `maybeWritten` is true, the write may have
 * happened, or may still happen later; repeating it is safe. A value that is not a record of this format is never treated as
 * absent: the method throws `UnreadableRecord`, unless it is a `replace` that expects the revision of that value.
 */
export interface Register {
  /** Writes wait for replicas. A read whose answer must survive a failover says so with `mustLast`. */
  readonly replicates: boolean;
  readonly usage?: StoreUsage | undefined;
  /** Why creates are refused now, as far as the register knows without a command. */
  readonly refusing?: string | undefined;
  /**
   * An object for the connection to the server that holds this record, another one for each new connection. Without an id: the connection
   * to the server that holds the store's identity. It changes before anything can be sent on the new connection. Only for a register on servers.
   */
  connectionOf?(id?: RecordId): unknown;
  /** One entry for each of its servers: the connection, or a placeholder while that server is away. Default: the one of {@link connectionOf} */
  readonly connections?: readonly unknown[];
  /** Calls `act` each time when a new connection can be used. */
  onConnected?(act: () => void): void;
  /**
   * Nothing → record. Refused, and nothing written, if the token is void or the store is closed.
   *
   * @throws {StoreUnavailable} not written: the token is void, the store is closed ({@link StoreClosed}), or the record is about
   *   to be written ({@link KeyLocked})
   */
  create(id: RecordId, write: Create): Promise<Reply>;
  /**
   * One atomic step: the record, the index of open records, the audit trail and the count of resolutions.
   *
   * @throws {StoreClosed} not written
   */
  replace(id: RecordId, write: Replace): Promise<Reply>;
  /** @param mustLast what is answered from this read must survive a failover */
  read(id: RecordId, mustLast?: boolean): Promise<Seen | undefined>;
  /** Extends the lease (`kept`), or takes it if it is free (`taken`). `lost`: another token has it. Never touches the record. */
  renew(id: RecordId, token: Token, leaseMs: number): Promise<'kept' | 'taken' | 'lost'>;
  endLease(id: RecordId, token: Token): Promise<void>;
  /** Whether a majority of the lock nodes has the lease. One that does not answer counts as having it. Only with lock nodes. */
  isLeased?(id: RecordId): Promise<boolean>;
  /**
   * One page of records, in no particular order.
   *
   * @param query `open`: from the index of open records. Otherwise: all records
   * @throws {UnknownCursor}
   */
  list(query: { open: boolean; limit: number; cursor?: string | undefined }): Promise<Page>;
  /**
   * The ids that begin with some hexadecimal digits, of records and of audit trails, each once.
   *
   * @param digits 4 to 48. With 16 or more, one id is enough: no other has so many in common with it
   */
  idsOf(digits: string): Promise<RecordId[]>;
  /** Reads in small steps, and never blocks a write. `signal` ends it: then the promise rejects. */
  countOpen(options: { executingSinceMs: number; signal?: AbortSignal | undefined }): Promise<OpenCount>;
  /** The resolutions of a record, oldest first. Each is kept for at least {@link AUDIT_RETENTION_MS}. */
  audit(id: RecordId): Promise<AuditRecord[]>;
  /**
   * Rebuilds the index of open records from all records, in small steps. Only for a register whose index can be lost.
   *
   * @param report called now and then with the number of records that were read
   */
  repairIndex?(report: (records: number) => void): Promise<void>;
  /** Only a register whose records can be in the database of the application. */
  readonly transactions?: Transactions;
  /**
   * One transaction on the application's own connection: `claim`, what `work` does, and the write over it that `work` returns, if any. If
   * something is there, `work` is not called. `work` is synchronous, so that no statement of another request gets into the transaction.
   * Only for a register on such a connection.
   *
   * @throws what `work` throws: nothing was written, unless `work` has itself committed the claim
   * @throws {StoreUnavailable}
   */
  commit?(id: RecordId, claim: Create, work: (client: unknown) => Replace | undefined): Promise<Reply>;
  readIdentity(mode: Mode): Promise<IdentityInUse | undefined>;
  visit(mode: Mode, replacing?: string): Promise<IdentityInUse>;
  /** Whether it takes a start now, replicas included: it writes a probe. Never rejects. */
  health(): Promise<StoreHealth>;
  close(): Promise<void>;
}

/** Runs statements in a transaction: a client of `pg`, or an adapter of a few lines for another library. */
export interface SqlClient {
  /**
   * Runs one statement.
   *
   * @param values of `$1`, `$2` and so on
   * @returns the rows as objects, or an object with `rows`
   */
  query(text: string, values: string[]): Promise<unknown>;
}

/** How far a transaction of PostgreSQL sees others. */
export type Isolation = 'read committed' | 'repeatable read' | 'serializable';

export interface TransactionOptions {
  isolation: Isolation;
  /** How long it may be open without a statement. Then the server ends it, also when its host is gone. */
  idleMs: number;
}

/** A transaction of the application. */
export interface Transaction {
  readonly client: SqlClient;
  /**
   * Resolves when it is durable.
   *
   * @throws {StoreUnavailable} it may be committed. Every other error: it is surely not
   */
  commit(): Promise<void>;
  /** Does not throw: without a commit nothing is written. */
  rollback(): Promise<void>;
}

/**
 * Transactions of the application that write the record of a key together with what they execute. The record must be written by the
 * transaction itself, and not in a savepoint.
 */
export interface Transactions {
  /** @throws {StoreUnavailable} not written */
  begin(options: TransactionOptions): Promise<Transaction>;
  /**
   * Nothing → an executing record. Others see it only if the transaction commits before it was completed.
   *
   * @returns false if a record is there
   * @throws {KeyLocked} another transaction has written the record and has not ended; this one is aborted
   * @throws {StoreClosed} not written
   * @throws {TypeError} in a savepoint
   */
  claim(client: SqlClient, id: RecordId, write: Create): Promise<boolean>;
  /**
   * The record that this transaction has claimed with the revision `expected` → completed.
   *
   * @throws {TypeError} the transaction has not claimed it, or in a savepoint
   */
  complete(client: SqlClient, id: RecordId, expected: Revision, write: Replace): Promise<void>;
}

/** Another transaction is writing the record of the key. Nothing was written. */
export class KeyLocked extends StoreUnavailable {
  constructor() {
    super('another transaction is writing the record', { maybeWritten: false });
  }
}

/**
 * What a store is in a copy of all records to another store.
 *
 * - closing: the source, whose running executions end.
 * - sealed: the source, which is copied.
 * - moved: the source, whose records may be served by the destination.
 * - receiving: the destination, which is not served yet.
 * - opened: the destination, which is served. It is a store as any other.
 * - undone: the source of a copy that was given up. It is a store as any other.
 */
export type CopyState = 'closing' | 'sealed' | 'moved' | 'receiving' | 'opened' | 'undone';

export const CLOSED_IN: Readonly<Record<CopyState, Closed>> = {
  ...{ closing: 'starts', sealed: 'all', moved: 'all' },
  ...{ receiving: 'starts', opened: 'no', undone: 'no' },
};

/** How far a copy has come, as each store notes it. Once a store has such a note, it keeps one. */
export interface CopyProgress {
  /** Grows by one with each change, from 1. A run of the copy that was paused cannot put its older note in place of a later one. */
  epoch: number;
  state: CopyState;
  /** Source and destination of a copy have the same one. */
  copyId: string;
  /** Names the run of the command that has written it. */
  runId: string;
  /** The identity of the source when the copy began. */
  source: StoreIdentity;
}

/** `isWhole` false: a run was killed while it changed the progress, or a part of the store was emptied. */
export type FoundProgress = CopyProgress & { isWhole: boolean };

/** The text that a store keeps: `CLOSED EPOCH JSON`. Each write of the register reads the first letter. */
export function encodeCopyProgress({
  epoch,
  state,
  copyId,
  runId,
  source: { id, count },
}: CopyProgress): string {
  return `${CLOSED_IN[state]} ${epoch} ${JSON.stringify({ state, copyId, runId, source: { id, count } })}`;
}

/** @throws {StoreUnavailable} if another version has written it */
export function decodeCopyProgress(text: string): CopyProgress {
  const [, closed, epoch, json] = /^(no|starts|all) ([1-9]\d*) (\{.*\})$/.exec(text) ?? [];
  const progress = json && { epoch: Number(epoch), ...(JSON.parse(json) as Omit<CopyProgress, 'epoch'>) };
  if (!progress || CLOSED_IN[progress.state] !== closed)
    throw new StoreUnavailable(`the progress of a copy is that of another version: ${text}`, {
      maybeWritten: false,
    });
  return progress;
}

/** A name that a scan has found: that of a record, or of the audit trail of a record that may be gone. */
export interface Scanned {
  id: RecordId;
  kind: 'record' | 'audit';
}

/**
 * A register as the source or the destination of a copy. Records are read and written by the register itself: a store that is
 * `receiving` accepts `replace`, but refuses starts and operators' changes.
 *
 * Every method throws `StoreUnavailable` if the store does not answer.
 */
export interface CopyRegister {
  readonly register: Register;
  readCopyProgress(): Promise<FoundProgress | undefined>;
  /**
   * Durable, on replicas too. When it has answered, every write of every gateway obeys it.
   *
   * @returns false, and nothing is changed, unless the epoch there is the one before. True if this very progress is there
   */
  changeCopyProgress(to: CopyProgress): Promise<boolean>;
  /** Names the processes that hold the records, and who holds which. A scan during which it changes may have missed records. */
  servers(): Promise<string>;
  /** All names, in pages. A name may appear twice. */
  scan(): AsyncIterable<Scanned[]>;
  /** Writes the trail for {@link AUDIT_RETENTION_MS} from now, unless there is one. */
  putAudit(id: RecordId, audit: readonly AuditRecord[]): Promise<void>;
  close(): Promise<void>;
}
