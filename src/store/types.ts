import type { Fingerprint, RecordId, Token } from '../lib/brands.ts';
import type { Moment } from '../lib/clock.ts';
import type { BackendResponse, Completion } from '../lib/exchange.ts';

/**
 * How long a record counts as alive and how long it is kept, in milliseconds. Every record stores the lifetimes it was
 * written with, and readers use those, so that a gateway with another configuration does not misjudge its age.
 */
export interface Lifetimes {
  /** An owner counts as dead this long after its last start, restart or renewal. */
  leaseMs: number;
  /** A record that was completed and was never in doubt expires this long after its start. */
  retentionMs: number;
  /**
   * An executing or in-doubt record expires this long after its start, or after its last restart. A record that was in
   * doubt expires this long after it was completed or resolved.
   */
  inDoubtRetentionMs: number;
}

/** A record without its completion. */
export interface RecordHead {
  state: 'executing' | 'completed' | 'in_doubt';
  token: Token;
  fingerprint: Fingerprint;
  merchant: string;
  operation: string;
  /** The idempotency key as the merchant sent it. */
  key: string;
  /** Request id of the request that started the record. A restart keeps it. */
  requestId: string;
  /** The gateway that started the record, or that restarted it last. */
  gatewayId: string;
  /** The encryption key of its response. Absent: nothing in the record is encrypted. */
  encryptionKeyId?: string;
  lifetimes: Lifetimes;
  /** Whether the record has ever been in doubt. */
  wasInDoubt: boolean;
  /** Why the record is in doubt, for people. At most 255 latin1 characters; empty: it never was, or its owner did not say. */
  cause: string;
  /** The request was sent a second time, so nothing shows any more that the first one was not executed. */
  restarted: boolean;
  /** Wall clock at the start, Unix milliseconds. Shown to people; no decision depends on it. */
  createdAtMs: number;
  /** Wall clock at the last change of state, Unix milliseconds. Shown to people; no decision depends on it. */
  changedAtMs: number;
}

/** What the store holds for a record id. `completion` is set exactly when the state is `completed`. */
export type IdempotencyRecord = RecordHead & { completion?: Completion };

/**
 * One execution of a key, named by its random token. Every write after `start` carries the token, and the store refuses
 * the write if the record holds another one.
 */
export interface Owner {
  readonly recordId: RecordId;
  readonly token: Token;
  /** What the ledger remembers of the execution. */
  memory?: OwnerMemory | undefined;
}

/** A response whose headers and body are encrypted. Its status is readable. */
export interface EncryptedResponse {
  kind: 'encrypted';
  status: number;
  /** The id of the encryption key, which the record holds. */
  keyId: string;
  /** Nonce, authentication tag, ciphertext. */
  bytes: Buffer;
}

/** A completion in the form in which stores keep it. */
export type StoredCompletion = Completion | EncryptedResponse;

/** A response in the form in which stores keep it. */
export type ResponseAsStored = Exclude<StoredCompletion, { kind: 'tombstone' }>;

/** 16 random bytes, new with every write of a record. */
export type Revision = Buffer;

/** What a register holds under a record id. `completion` is set exactly when the state is `completed`. */
export interface KeyRecord extends RecordHead {
  revision: Revision;
  /** The owner itself left the record in doubt, so its lease says nothing. */
  ownerGaveUp: boolean;
  /** Fields of a later version of the format, carried along unread. */
  extension?: Buffer | undefined;
  completion?: StoredCompletion;
}

/** What an owner wrote last, and since when it may count as dead. Moments are those before the command was sent. */
export interface OwnerMemory {
  /** The start or restart. */
  sent: Moment;
  /** The start, restart or renewal that shows last that the owner is alive. */
  alive: Moment;
  hasRenewed: boolean;
  /** Other gateways may have found this owner dead. */
  mayHaveLapsed: boolean;
  record?: KeyRecord | undefined;
  /** What was in doubt before this owner restarted it. */
  before?: KeyRecord | undefined;
}

/** One attempt to execute a request. Each text has at most 255 latin1 characters. */
export interface Execution extends Owner {
  readonly fingerprint: Fingerprint;
  readonly merchant: string;
  readonly operation: string;
  /** The idempotency key, 1 to 255 printable ASCII characters. */
  readonly key: string;
  readonly requestId: string;
}

/** The answer to a request whose key has a record. `requestId` is that of the request that started the record. */
export type ExistingAnswer =
  /** Executing, and the owner is alive. */
  | { kind: 'in_flight' }
  | { kind: 'completed'; response: BackendResponse; requestId: string }
  /** Completed, but the response was too large to store. */
  | { kind: 'tombstone'; requestId: string }
  /** The record belongs to a request with another fingerprint. */
  | { kind: 'mismatch' }
  /**
   * In doubt, or executing while the owner is dead. `sinceMs`: the record's `changedAtMs`. `operation`: the record's, which
   * may differ from the request's.
   */
  | { kind: 'in_doubt'; sinceMs: number; operation: string; requestId: string };

/** `started`: the record is durable, and the caller owns it. */
export type StartAnswer = { kind: 'started' } | ExistingAnswer;

export type PeekAnswer = { kind: 'absent' } | ExistingAnswer;

/** The answer to an owner's write. `stale`: the record has another token, or there is none, and was not changed. */
export type Written = 'ok' | 'stale';

/** Far longer than a lost command can stay under way. */
export const VOID_TOKEN_MS = 3_600_000;

export interface ListFilter {
  /** Whether to list only records that need an operator: in doubt, executing with a dead owner, or unreadable. */
  inDoubt: boolean;
  /** Whether to list only open records. Default: as `inDoubt`. */
  open?: boolean | undefined;
  /** The largest number of records in the page. */
  limit: number;
  /** {@link Listing.cursor} of the page before. Default: the first page. */
  cursor?: string | undefined;
}

/** A record without its completion, because the size of a page with bodies would have no bound. */
export type ListedRecord =
  /** `ownerGone`: the owner is dead, and no retry has marked the record in doubt yet. */
  | (RecordHead & { recordId: RecordId; ownerGone: boolean; unreadable?: undefined })
  /** The record cannot be read; `unreadable` says why. */
  | { recordId: RecordId; unreadable: string };

/** One page. There are more pages as long as `cursor` is set, even if this page is short or empty. */
export interface Listing {
  records: ListedRecord[];
  cursor?: string;
}

/** This store did not issue the cursor, or the cursor has become invalid. */
export class UnknownCursor extends Error {
  override readonly name = 'UnknownCursor';
  constructor() {
    super('the cursor is not known to this store: list from the first page again');
  }
}

export interface StoreHealth {
  ok: boolean;
  /** A copy of the records has closed the store: its gateways must not serve, even if they only observe. Implies `ok: false`. */
  isClosed?: boolean;
  /** One line for the operator. */
  detail: string;
  /** What endangers the records although the store works, one line each. */
  warnings: string[];
}

/**
 * Tells one store from another, and a store from its own backup: the id is random and made with the store, and the count
 * grows with each visit of a gateway. A store whose count has fallen was restored from an older state.
 */
export interface StoreIdentity {
  /** 32 hexadecimal digits. */
  id: string;
  count: number;
}

export interface IdentityInUse extends StoreIdentity {
  /** A gateway in the other mode has used the store within {@link VISIT_LASTS_MS}. */
  otherMode: boolean;
  /** The connections to servers that did not show whether they have it. Default: none */
  unread?: readonly unknown[];
}

/** `idempotency.mode`. */
export type Mode = 'protect' | 'observe';

/** A gateway counts as using a store for this long after its last visit. */
export const VISIT_LASTS_MS = 150_000;

/** What a gateway writes into the records that it starts. */
export interface RecordDefaults {
  /** At most 255 latin1 characters. */
  gatewayId: string;
  lifetimes: Lifetimes;
}

/** What a store on this machine uses, as far as it knows without a command. */
export interface StoreUsage {
  /** Commands that wait for the end of the transaction before theirs. */
  queued: number;
  /** Size of the write-ahead log. */
  walBytes: number;
  /** Space that the file system has for this process. Infinity: it does not say. */
  freeBytes: number;
}

/** The store did not answer within its time limit, refused the command, or failed. */
export class StoreUnavailable extends Error {
  override readonly name = 'StoreUnavailable';
  /** Whether the command may have had an effect, or may still have one. Otherwise the caller has nothing to undo. Default true. */
  readonly maybeWritten: boolean;
  constructor(message: string, options: ErrorOptions & { maybeWritten?: boolean } = {}) {
    super(message, options);
    this.maybeWritten = options.maybeWritten ?? true;
  }
}

/** A copy of the records to another store has closed the store. Nothing was written. */
export class StoreClosed extends StoreUnavailable {
  constructor(
    why = 'the store is closed by a copy of its records: restart this gateway on the store that serves',
  ) {
    super(why, { maybeWritten: false });
  }
}

/**
 * `damaged`: the value is not a record of this format. `unknown_key`: this gateway does not have its encryption key.
 * `not_authentic`: it cannot be decrypted with the key of that id.
 */
export type UnreadableReason = 'damaged' | 'unknown_key' | 'not_authentic';

/**
 * The version of what stores write: in the schemas of SQLite and PostgreSQL, and in the names and records of Redis. It changes with what an
 * older gateway would misread or, like another form of the record id, would not find.
 */
export const STORE_FORMAT = 4;

/**
 * The store has another format than this version reads and writes. It is never opened, because records that this version
 * does not see would be absent to it, and their keys would be paid again.
 */
export class OtherFormat extends StoreUnavailable {
  constructor(message: string) {
    super(message, { maybeWritten: false });
  }
}

/** The store's identity has a format of another version. It is left as it is. */
export class UnreadableIdentity extends StoreUnavailable {
  constructor() {
    super('the identity of the store has the format of another version', { maybeWritten: false });
  }
}

/** The value under the record id cannot be read as a record. It must never be treated as absent. */
export class UnreadableRecord extends StoreUnavailable {
  readonly reason: UnreadableReason;
  constructor(why: string, reason: UnreadableReason = 'damaged') {
    super(`the record cannot be read: ${why}`, { maybeWritten: false });
    this.reason = reason;
  }
}
