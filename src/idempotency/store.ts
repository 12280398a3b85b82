import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';
import type { BackendResponse, Completion } from '../kernel/exchange.ts';

/** Written into each record, so that a gateway with another configuration does not misread its age. Milliseconds. */
export interface Lifetimes {
  /** An owner that has shown no life for this long counts as dead. */
  leaseMs: number;
  /** A record that was completed without ever having been in doubt expires this long after its start. */
  retentionMs: number;
  /**
   * An executing or in-doubt record expires this long after its start (after its restart, if it was restarted). A record
   * that was in doubt expires this long after it was completed or resolved.
   */
  inDoubtRetentionMs: number;
}

export interface RecordHead {
  state: 'executing' | 'completed' | 'in_doubt';
  token: Token;
  fingerprint: Fingerprint;
  merchant: string;
  operation: string;
  /** The idempotency key as the merchant sent it. */
  key: string;
  /** Request id of the request that started the record. */
  requestId: string;
  /** The gateway that started the record, or restarted it. */
  gatewayId: string;
  lifetimes: Lifetimes;
  /** Whether the record has ever been in doubt. */
  wasInDoubt: boolean;
  /** Wall clock at the start, Unix milliseconds. For people only: no decision depends on it. */
  createdAtMs: number;
  /** Wall clock at the last change of state, Unix milliseconds. For people only. */
  changedAtMs: number;
}

/** What the store holds for a scope. `completion` is set exactly when the state is `completed`. */
export type IdempotencyRecord = RecordHead & { completion?: Completion };

/** The token names one execution. Every write after `start` carries it and is refused if another token is there. */
export interface Owner {
  readonly scope: Scope;
  readonly token: Token;
}

/** One attempt to execute a request. Texts hold at most 255 latin1 characters. */
export interface Execution extends Owner {
  readonly fingerprint: Fingerprint;
  readonly merchant: string;
  readonly operation: string;
  /** The idempotency key, 1 to 255 printable ASCII characters. */
  readonly key: string;
  readonly requestId: string;
}

/** What a record means for a request with the same key. `requestId`: that of the request that started the record. */
export type Standing =
  /** Its owner is alive. */
  | { kind: 'in_flight' }
  | { kind: 'completed'; response: BackendResponse; requestId: string }
  | { kind: 'tombstone'; requestId: string }
  /** The record belongs to a request with another fingerprint. */
  | { kind: 'mismatch' }
  /** In doubt, or executing without a living owner. `operation`: the record's own. */
  | { kind: 'in_doubt'; sinceMs: number; operation: string; requestId: string };

/** `started`: the caller owns the scope, durably. */
export type StartAnswer = { kind: 'started' } | Standing;

export type PeekAnswer = { kind: 'absent' } | Standing;

/** `stale`: the scope is not held under this token, and nothing was written. */
export type Fenced = 'ok' | 'stale';

export interface UnansweredOptions {
  /**
   * Also voids the token for {@link VOID_TOKEN_MS}: a `start` or `restart` under it that arrives later changes nothing.
   * For a `start` or `restart` whose reply was lost. Default false.
   */
  voidToken?: boolean;
}

export const VOID_TOKEN_MS = 3_600_000;

/** What becomes of a scope in doubt: the request was executed with this result, or it was surely not executed. */
export type Resolution = { as: 'completed'; completion: Completion } | { as: 'released' };

/** Who resolved a scope, and why. Kept in the audit trail and logged: no secret, no body. */
export interface ResolutionNote {
  by: string;
  reason: string;
}

/**
 * `changed`: the record has another token or is completed, or there is no record. `alive`: its owner may still be
 * working on it. Nothing was written in both cases.
 */
export type Resolved = 'ok' | 'changed' | 'alive';

/** One resolution as the audit trail keeps it: no token, no header, no body. */
export interface AuditRecord extends ResolutionNote {
  /** Wall clock, Unix milliseconds. */
  atMs: number;
  from: Pick<
    RecordHead,
    'state' | 'merchant' | 'operation' | 'key' | 'requestId' | 'createdAtMs' | 'changedAtMs'
  >;
  to: { as: 'released' } | { as: 'completed'; kind: Completion['kind']; status: number };
}

/** Far longer than a record lives: a dispute or a yearly audit asks about payouts of long ago. */
export const AUDIT_RETENTION_MS = 400 * 86_400_000;

export function auditRecord(
  { state, merchant, operation, key, requestId, createdAtMs, changedAtMs }: RecordHead,
  resolution: Resolution,
  { by, reason }: ResolutionNote,
  atMs: number,
): AuditRecord {
  const from = { state, merchant, operation, key, requestId, createdAtMs, changedAtMs };
  if (resolution.as === 'released') return { atMs, by, reason, from, to: { as: 'released' } };
  const { completion } = resolution;
  const status = completion.kind === 'response' ? completion.response.status : completion.status;
  return { atMs, by, reason, from, to: { as: 'completed', kind: completion.kind, status } };
}

export interface ListFilter {
  /** Only records that an operator should look at: in doubt, executing without an owner, unreadable. */
  inDoubt: boolean;
  /** Records on a page, at most. */
  limit: number;
  /** Where the last page ended. */
  cursor?: string | undefined;
}

/** A record without its completion, because a page of bodies would have no bound. */
export type ListedRecord =
  /** `ownerGone`: executing, and the owner has shown no life for a lease; no retry has asked for it since. */
  | (RecordHead & { scope: Scope; ownerGone: boolean; unreadable?: undefined })
  /** The store holds something under this scope that is not a record. `unreadable` says why. */
  | { scope: Scope; unreadable: string };

/** A page may be short or even empty and still have a cursor: then there is more. */
export interface Listing {
  records: ListedRecord[];
  cursor?: string;
}

/** Does the record belong on a page? */
export function isListed(record: ListedRecord, { inDoubt }: Pick<ListFilter, 'inDoubt'>): boolean {
  if (!inDoubt || record.unreadable !== undefined) return true;
  return record.state === 'in_doubt' || record.ownerGone;
}

/** The cursor is not one that this store gave, or it has become invalid. */
export class UnknownCursor extends Error {
  override readonly name = 'UnknownCursor';
  constructor() {
    super('the cursor is not known here: start the listing again');
  }
}

export interface StoreHealth {
  ok: boolean;
  /** One line for the operator. */
  detail: string;
  /** Settings under which the store cannot keep the promise, each one line. */
  warnings: string[];
}

export interface StoreOptions {
  /** Stamped into the records that this gateway starts. At most 255 latin1 characters. */
  gatewayId: string;
  lifetimes: Lifetimes;
}

/**
 * Holds one record per scope.
 *
 * Every method either answers or throws {@link StoreUnavailable}. After a throw the write may or may not have happened, or
 * may still happen later. Repeating it under the same token does no harm.
 */
export interface Store {
  /** Why nothing new can be started at the moment, as far as the store knows without asking. */
  readonly refusing?: string | undefined;
  /**
   * Creates the record as executing and takes the lease, in one atomic step. `started` is durable: only then may a byte
   * be sent. Any other answer says what the existing record means. If that record's owner is dead, it is marked in doubt.
   */
  start(execution: Execution): Promise<StartAnswer>;
  /** Says what the record means for this request. A read: it changes nothing, not even a dead owner's record. */
  peek(request: Pick<Execution, 'scope' | 'fingerprint'>): Promise<PeekAnswer>;
  /**
   * In doubt with the same fingerprint → executing under this token, with this gateway's id and lifetimes; durable like
   * `start`, and takes the lease. The first request's id stays. `changed`: the record is not in doubt with this fingerprint, or there is none.
   */
  restart(execution: Execution): Promise<'ok' | 'changed'>;
  /**
   * Extends the lease. `lost`: it had lapsed, and was taken again; the record gets `wasInDoubt`, because others may have
   * read it as in doubt meanwhile.
   */
  renew(owner: Owner): Promise<Fenced | 'lost'>;
  /**
   * Executing or in doubt → completed; durable, and gives the lease back. Completing again under the same token is `ok`
   * and changes nothing. If there is no record, it is created as completed: the backend has executed. A record that was
   * in doubt, whose lease had lapsed, or that is older than its retention, gets `wasInDoubt`.
   */
  complete(execution: Execution, completion: Completion): Promise<Fenced>;
  /** Executing or in doubt → absent: the backend surely did not execute. Gives the lease back. */
  release(owner: Owner, options?: UnansweredOptions): Promise<Fenced>;
  /** Executing → in doubt, by the owner itself, who gives its lease back. In doubt stays in doubt: `ok`. */
  markInDoubt(owner: Owner, options?: UnansweredOptions): Promise<Fenced>;
  /** The record of a scope, or undefined. An unreadable record throws. */
  get(scope: Scope): Promise<IdempotencyRecord | undefined>;
  /**
   * A page of records, in no particular order. Records that change meanwhile may be missed, or listed twice.
   *
   * @throws {UnknownCursor}
   */
  list(filter: ListFilter): Promise<Listing>;
  /**
   * In doubt, or executing without a living owner, under the token that was seen → completed under a new token (so that
   * a late `complete` of the old owner is refused), or absent. Writes an audit record in the same atomic step; durable.
   */
  resolve(scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote): Promise<Resolved>;
  /** Resolutions of a scope, oldest first; kept for {@link AUDIT_RETENTION_MS}. */
  audit(scope: Scope): Promise<AuditRecord[]>;
  /** Writes a probe record: a store that answers reads only is not ready. */
  health(): Promise<StoreHealth>;
  close(): Promise<void>;
}

/** The store did not answer within its time limit, or its answer cannot be trusted. */
export class StoreUnavailable extends Error {
  override readonly name = 'StoreUnavailable';
  /** False: the command surely had no effect and will have none, so there is nothing to take back. Default true. */
  readonly maybeWritten: boolean;
  constructor(message: string, options: ErrorOptions & { maybeWritten?: boolean } = {}) {
    super(message, options);
    this.maybeWritten = options.maybeWritten ?? true;
  }
}

/** The store holds something under the scope that is not a record. It is never treated as absent. */
export class UnreadableRecord extends StoreUnavailable {
  constructor(why: string) {
    super(`the record cannot be read: ${why}`, { maybeWritten: false });
  }
}
