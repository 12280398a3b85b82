import type {
  Execution,
  Fenced,
  Lifetimes,
  Mode,
  Owner,
  ResolutionNote,
  Resolved,
  UsedMark,
} from '../../contract.ts';
import type { ResolutionSource } from '../../doubt-count.ts';
import type { StoredCompletion } from '../../response-cipher.ts';
import type { ClockState, Now } from './running-time.ts';

/**
 * The messages between the main thread and the writer thread. They hold bytes as latin1 strings, because a Buffer is
 * often a small part of a large pool, and structured cloning would copy the whole pool.
 */
export interface PackedOwner {
  /** Hexadecimal. */
  scope: string;
  /** Bytes as latin1, as are the fingerprint and the body below. */
  token: string;
}

export interface PackedExecution extends PackedOwner {
  fingerprint: string;
  merchant: string;
  operation: string;
  key: string;
  requestId: string;
}

export interface PackedCompletion {
  status: number;
  /** A JSON array of names and values. Null for a tombstone, and if the response is encrypted. */
  headers: string | null;
  /** If the response is encrypted, the sealed response. Null for a tombstone. */
  body: string | null;
  encryptionKeyId: string | null;
}

export type Command =
  | ({ kind: 'start' } & PackedExecution)
  | ({ kind: 'restart' } & PackedExecution)
  /** If there is no record, the answer is `absent`, and the main thread sends `create`. */
  | ({ kind: 'complete' } & PackedOwner & PackedCompletion)
  /** As `complete`, but creates the record if there is none. */
  | ({ kind: 'create' } & PackedExecution & PackedCompletion)
  | ({ kind: 'renew' } & PackedOwner)
  | ({ kind: 'release'; voidToken: boolean } & PackedOwner)
  | ({ kind: 'markInDoubt'; voidToken: boolean } & PackedOwner)
  | ({
      kind: 'resolve';
      /** The token that the completed record gets. */
      newToken: string;
      completion: PackedCompletion | undefined;
      source: ResolutionSource;
    } & PackedOwner &
      ResolutionNote)
  | { kind: 'sweep' }
  /** `newId`: of a store that has no mark. */
  | { kind: 'mark'; mode: Mode; newId: string }
  | { kind: 'probe' };

/** `exists`: the scope has a record, which the main thread must read. `voided`: the token is voided, nothing was written. */
export interface Answers {
  start: 'started' | 'exists' | 'voided';
  restart: 'ok' | 'changed' | 'voided';
  renew: Fenced | 'lost';
  complete: Fenced | 'absent';
  create: Fenced;
  release: Fenced;
  markInDoubt: Fenced;
  resolve: Resolved;
  /** `isRoundDone`: the only expired rows left are those that cannot be read. */
  sweep: { removed: number; isRoundDone: boolean };
  mark: UsedMark;
  probe: 'ok';
}

/** `closed`: the mark of a copy forbids the command, and nothing was written for it. */
export type Answer = Answers[keyof Answers] | { unreadable: string } | { closed: string };

/**
 * A command in the form that is cloned for the writer thread. The two commands of a payout, `start` and `complete`, are
 * arrays, because cloning an object also copies the names of its members.
 */
export type Message = Command | (string | number | null)[];

export interface Batch {
  messages: Message[];
  now: Now;
  /** How long the thread may try to get the write lock, in milliseconds. */
  beginWithinMs: number;
}

export type BatchAnswer =
  | {
      kind: 'committed';
      answers: Answer[];
      /** False: the batch changed no row. */
      wrote: boolean;
      /** From BEGIN to the end of COMMIT, with the wait for other processes, in milliseconds. */
      tookMs: number;
      /** The running time in the database, which another process may have stored. Only if the boot id is unknown. */
      observedAt: number | undefined;
    }
  /** `maybeWritten`: the COMMIT failed. `isBusy`: another process held the write lock. */
  | { kind: 'failed'; message: string; maybeWritten: boolean; isBusy: boolean };

export type FromWriter =
  | { kind: 'ready'; clock: ClockState }
  /** The thread could not open the database, and ends. */
  | { kind: 'refused'; message: string }
  | BatchAnswer;

/** The first message is the {@link WriterData}. */
export type ToWriter = WriterData | Batch | 'close';

/** What the thread opens. */
export interface WriterData {
  file: string;
  timeoutMs: number;
  gatewayId: string;
  lifetimes: Lifetimes;
  /** See `bootId` in running-time.ts. */
  boot: Uint8Array | undefined;
  /** The monotonic clock when this message was sent. */
  monotonicMs: number;
}

export const packOwner = ({ scope, token }: Owner): PackedOwner => ({
  scope,
  token: token.toString('latin1'),
});

export function packExecution<K extends 'start' | 'restart'>(
  kind: K,
  execution: Execution,
): { kind: K } & PackedExecution {
  const { scope, token, fingerprint, merchant, operation, key, requestId } = execution;
  return {
    kind,
    scope,
    token: token.toString('latin1'),
    fingerprint: fingerprint.toString('latin1'),
    merchant,
    operation,
    key,
    requestId,
  };
}

export function packCompletion(completion: StoredCompletion): PackedCompletion {
  if (completion.kind === 'tombstone')
    return { status: completion.status, headers: null, body: null, encryptionKeyId: null };
  if (completion.kind === 'sealed') {
    const { status, keyId, bytes } = completion;
    return { status, headers: null, body: bytes.toString('latin1'), encryptionKeyId: keyId };
  }
  const { status, headers, body } = completion.response;
  return {
    status,
    headers: JSON.stringify(headers),
    body: body.toString('latin1'),
    encryptionKeyId: null,
  };
}

export function toMessage(command: Command): Message {
  if (command.kind === 'start') {
    const { kind, scope, token, fingerprint, merchant, operation, key, requestId } = command;
    return [kind, scope, token, fingerprint, merchant, operation, key, requestId];
  }
  if (command.kind === 'complete') {
    const { kind, scope, token, status, headers, body, encryptionKeyId } = command;
    return [kind, scope, token, status, headers, body, encryptionKeyId];
  }
  return command;
}

export function fromMessage(message: Message): Command {
  if (!Array.isArray(message)) return message;
  if (message[0] === 'start') {
    const [, scope, token, fingerprint, merchant, operation, key, requestId] = message as string[];
    return { kind: 'start', scope, token, fingerprint, merchant, operation, key, requestId } as Command;
  }
  const [, scope, token, status, headers, body, encryptionKeyId] = message;
  return { kind: 'complete', scope, token, status, headers, body, encryptionKeyId } as Command;
}

export const unpackBytes = (packed: string): Buffer => Buffer.from(packed, 'latin1');
