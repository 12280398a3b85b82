import type { Scope, Token } from '../lib/brands.ts';
import type { AuditRecord } from './contract.ts';
import type { Mark } from './copy-mark.ts';
import type { StoredRecord } from './response-cipher.ts';

/** Everything that a store holds for a scope, at one moment. Durations are those that are left, in milliseconds. */
export interface Snapshot {
  scope: Scope;
  /** Undefined: there is none, or it has expired. */
  record?: CopiedRecord | undefined;
  /** Oldest first. */
  audit: AuditRecord[];
  auditExpiresInMs: number;
  unreadable?: undefined;
}

/** In the form in which the stores keep it, so that an encrypted response is copied as it is. */
export interface CopiedRecord extends StoredRecord {
  /** The owner itself marked the record in doubt. */
  ownerGaveUp: boolean;
  expiresInMs: number;
  /** How long the owner still counts as alive. 0: it is dead, or the record is not executing. */
  aliveForMs: number;
}

/** The value under this scope is not a valid record. `unreadable` says why. */
export interface UnreadableSnapshot {
  scope: Scope;
  unreadable: string;
}

/** What the record in the destination must be, so that it is replaced. A change of any of these is a change of the record. */
export type Expected =
  | 'anything'
  | 'absent'
  | Pick<CopiedRecord, 'state' | 'token' | 'wasInDoubt' | 'ownerGaveUp'>;

export interface Replacement {
  snapshot: Snapshot;
  expected: Expected;
  /** Replace the audit trail, too. */
  withAudit: boolean;
}

export interface LogEntry {
  scope: Scope;
  token: Token;
}

/** A store as the source or the destination of a copy. Every method throws `StoreUnavailable` if the store does not answer. */
export interface CopySide {
  /** For the operator, without secrets. */
  readonly name: string;
  /** Warnings about what this side cannot do. */
  readonly warnings: readonly string[];
  readMark(): Promise<Mark | undefined>;
  /**
   * Durable. A source that becomes `copying` gets an empty log in the same atomic step, so that no run that was paused can
   * empty the log of another one.
   *
   * @returns false if the mark is not `from`; it was not changed
   */
  changeMark(from: Mark | undefined, to: Mark | undefined): Promise<boolean>;
  /** A text that changes while a run works. */
  readBeat(): Promise<string>;
  writeBeat(beat: string): Promise<void>;
  /** Has the store neither records nor audit trails? */
  isEmpty(): Promise<boolean>;
  /** Scopes that have a record or an audit trail. A scope may appear twice. Those that are added meanwhile may be missing. */
  scopes(): AsyncIterable<Scope[]>;
  /** Appends to the log to which a store that is `copying` also appends its starts. */
  appendToLog(entries: readonly LogEntry[]): Promise<void>;
  /** The entries behind the first `after` ones. */
  readLog(after: number): Promise<LogEntry[]>;
  /** Reads at least the first of these scopes, and as many of the others as fit into the memory of a page. */
  read(scopes: readonly Scope[]): Promise<(Snapshot | UnreadableSnapshot)[]>;
  /**
   * Replaces what the store holds for these scopes, each in one atomic step.
   *
   * @returns for each: false if the record was not as expected, and nothing was written
   * @throws {Superseded} if the store does not have this mark
   */
  write(mark: Mark, replacements: readonly Replacement[]): Promise<boolean[]>;
  /** Resolves when everything that was written before is durable. */
  flush(): Promise<void>;
  close(): Promise<void>;
}

/** Another run of the command has taken over. This one may write no more. */
export class Superseded extends Error {
  override readonly name = 'Superseded';
  constructor() {
    super('another run of this command has taken over');
  }
}
