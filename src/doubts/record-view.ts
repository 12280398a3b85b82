/** Which records to list. */
export interface ListRequest {
  /** Only those that an operator should look at: in doubt, executing without an owner, unreadable. */
  inDoubt: boolean;
  /** Only those that are not completed. Default: false. */
  open?: boolean;
  /** 1 to 1000. */
  limit: number;
  /** The cursor of an earlier page. */
  cursor?: string | undefined;
  /** Only those of this merchant. */
  merchant?: string | undefined;
  /** Only those that the request with this id has started. */
  requestId?: string | undefined;
}

/** Which keys in doubt to list, in which order. */
export interface SortedRequest {
  /** By age, or by a text and then by age. */
  sort: 'oldest' | 'newest' | 'merchant' | 'operation' | 'cause';
  /** From 1. */
  page: number;
  /** The length of a page, 1 to 1000. */
  limit: number;
  /** Only those with these values. */
  merchant?: string | undefined;
  operation?: string | undefined;
  cause?: string | undefined;
  /** Only those that started at least so long ago. */
  olderThanMs?: number | undefined;
}

/** A page of the keys in doubt. */
export interface SortedPage {
  records: RecordView[];
  /** The page that was asked for, or the last one if there are fewer. */
  page: number;
  pages: number;
  /** How many keys match, on all pages, and how many were read. */
  matching: number;
  inAll: number;
  /** The store has more, which were not read. */
  isCut: boolean;
  /** The values of all that were read. */
  operations: { name: string; keys: number }[];
  causes: { name: string; keys: number }[];
}

/** How an operator resolves a key in doubt. */
export interface ResolveRequest {
  /** The record's id, or its first digits. */
  recordId: string;
  as: 'completed' | 'released';
  /** Who resolves it, and why. Both are kept in the audit trail and logged. */
  by: string;
  reason: string;
  /** The response that retries get. Without a response they get 409 `response_not_stored`. */
  status?: number | undefined;
  /** Names and values in turn. */
  headers?: string[] | undefined;
  /** Base64. */
  body?: string | undefined;
  /**
   * The execution that the operator looked at; see {@link RecordView}. The resolution is refused if the record belongs to another one:
   * meanwhile someone else may have released the key, and the merchant's retry may have been executed.
   */
  execution: string;
}

export type RecordsAnswer<Value> = { kind: 'found'; value: Value } | Refusal;

/** The question was refused. Nothing was written, except that a `resolve` refused as `unavailable` may have been written. */
export interface Refusal {
  kind: 'refused';
  why: RefusalReason;
  /** One sentence for the operator. */
  detail: string;
  /** When to ask again, where that helps. */
  retryAfterMs?: number;
  /** The record as it is now. */
  record?: RecordView;
  /** The id of the record that is absent, or some of the ids that begin with the digits. */
  recordIds?: string[];
}

/**
 * `ambiguous`: the ids of several records begin with these digits. `no_body`: the record has no stored response. `alive`: the owner of
 * the record may still be working on it. `changed`: the record is not in doubt under this execution any more. `unavailable`: the store
 * did not answer.
 */
export type RefusalReason =
  | 'invalid'
  | 'absent'
  | 'ambiguous'
  | 'no_body'
  | 'alive'
  | 'changed'
  | 'unreadable'
  | 'unavailable';

/** A page of records. With a cursor there may be more, even if the page is short. */
export interface RecordsPage {
  records: RecordView[];
  /** How many records were read for this page. */
  read: number;
  cursor?: string;
}

/** What is known of one key. The audit trail outlives the record. */
export interface ShownRecord {
  recordId: string;
  record: RecordView | null;
  /** Oldest first. */
  audit: AuditView[];
}

/** A stored response with the first bytes of its body. */
export interface StoredResponse {
  recordId: string;
  status: number;
  /** Names and values in turn. */
  headers: string[];
  /** The length of the whole body. */
  bodyBytes: number;
  /** Base64. */
  body: string;
}

/** One resolution in the audit trail. Times are ISO 8601. */
export interface AuditView {
  at: string;
  by: string;
  reason: string;
  from: { state: string; merchant: string; operation: string; createdAt: string; changedAt: string };
  /** `kind` and `status` describe the completion; a release has none. Status 0: the operator does not know the backend's status. */
  to: { as: 'completed' | 'released'; kind?: 'response' | 'tombstone'; status?: number };
}

/** What the audit trail says of a resolution. */
export interface ResolvedRecord extends Omit<AuditView, 'at'> {
  recordId: string;
}

/** A record as people see it: without its token and its body. Of an unreadable record only record id and reason are known. */
export interface RecordView {
  recordId: string;
  state: 'executing' | 'completed' | 'in_doubt' | 'unreadable';
  /** Why the record cannot be read. */
  reason?: string;
  /** Names this execution, so that a resolution can say which one it means. */
  execution?: string;
  merchant?: string;
  operation?: string;
  key?: string;
  /** The id of the request that started the record. */
  requestId?: string;
  /** The fingerprint of that request, 64 hexadecimal digits. A request with another one is refused. */
  fingerprint?: string;
  /** The gateway that started the record. */
  gatewayId?: string;
  /** The encryption key of its response. */
  encryptionKeyId?: string;
  /** ISO 8601. */
  createdAt?: string;
  changedAt?: string;
  /**
   * When the store forgets the record if nothing changes it; a retry after that is executed as a new request. Only in the
   * answer to `show`, and absent if the store could not tell. SQLite counts only the time in which a gateway runs, so there
   * it can be later.
   */
  expiresAt?: string;
  wasInDoubt?: boolean;
  /** Why it is or was in doubt. */
  cause?: string;
  /** The request was sent a second time (`retry`), so a second one that was not executed says nothing about the first. */
  sentAgain?: boolean;
  /** The record is executing, and its owner has shown no sign of life for a lease. */
  ownerGone?: boolean;
  completion?:
    | { kind: 'tombstone' }
    /** Names and values in turn. Null: the admin port hides this value, because it may hold a secret. */
    | { kind: 'response'; status: number; headers: (string | null)[]; bodyBytes: number };
}
