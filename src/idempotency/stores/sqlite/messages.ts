import type { Completion } from '../../../kernel/exchange.ts';
import type { Execution, Fenced, Lifetimes, Owner, ResolutionNote, Resolved } from '../../store.ts';
import type { ClockState, Now } from './running-time.ts';

/**
 * What the main thread and the writer thread say to each other. Bytes travel as latin1 strings: cloning a Buffer would
 * copy the whole memory that it is a part of.
 */
export interface PackedOwner {
  /** Hexadecimal. */
  scope: string;
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
  /** JSON. Null for a tombstone. */
  headers: string | null;
  body: string | null;
}

export type Command =
  | ({ kind: 'start' } & PackedExecution)
  | ({ kind: 'restart' } & PackedExecution)
  /** The record must exist, or the answer is `absent`. */
  | ({ kind: 'complete' } & PackedOwner & PackedCompletion)
  /** The same, but creates the record if there is none. */
  | ({ kind: 'create' } & PackedExecution & PackedCompletion)
  | ({ kind: 'renew' } & PackedOwner)
  | ({ kind: 'release'; voidToken: boolean } & PackedOwner)
  | ({ kind: 'markInDoubt'; voidToken: boolean } & PackedOwner)
  | ({
      kind: 'resolve';
      /** The token of the completed record. */
      newToken: string;
      completion: PackedCompletion | undefined;
    } & PackedOwner &
      ResolutionNote)
  | { kind: 'sweep' }
  | { kind: 'probe' };

/** `exists`: another record is there, which the main thread reads. `voided`: the token was given up. */
export interface Answers {
  start: 'started' | 'exists' | 'voided';
  restart: 'ok' | 'changed' | 'voided';
  renew: Fenced | 'lost';
  complete: Fenced | 'absent';
  create: Fenced;
  release: Fenced;
  markInDoubt: Fenced;
  resolve: Resolved;
  /** `isRoundDone`: no expired row is left but those that cannot be read. */
  sweep: { removed: number; isRoundDone: boolean };
  probe: 'ok';
}

export type Answer = Answers[keyof Answers] | { unreadable: string };

/**
 * A command as it is cloned for the other thread. The two commands of a payout travel as lists, because cloning an object
 * copies the names of its members as well.
 */
export type Message = Command | (string | number | null)[];

export interface Batch {
  messages: Message[];
  now: Now;
  /** How long to try to begin the transaction, in milliseconds. */
  beginWithinMs: number;
}

export type BatchAnswer =
  | {
      kind: 'committed';
      answers: Answer[];
      /** Whether anything was written at all. */
      wrote: boolean;
      /** Running time that another process has stored; only where the boot is unknown. */
      observedAt: number | undefined;
    }
  /** `isBusy`: another process holds the write lock. */
  | { kind: 'failed'; message: string; maybeWritten: boolean; isBusy: boolean };

export type FromWriter =
  | { kind: 'ready'; clock: ClockState }
  | { kind: 'refused'; message: string }
  | BatchAnswer;

export type ToWriter = Batch | 'close';

export interface WriterData {
  file: string;
  timeoutMs: number;
  gatewayId: string;
  lifetimes: Lifetimes;
  /** Undefined where the system does not say. */
  boot: Uint8Array | undefined;
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

export function packCompletion(completion: Completion): PackedCompletion {
  if (completion.kind === 'tombstone') return { status: completion.status, headers: null, body: null };
  const { status, headers, body } = completion.response;
  return { status, headers: JSON.stringify(headers), body: body.toString('latin1') };
}

export function toMessage(command: Command): Message {
  if (command.kind === 'start') {
    const { kind, scope, token, fingerprint, merchant, operation, key, requestId } = command;
    return [kind, scope, token, fingerprint, merchant, operation, key, requestId];
  }
  if (command.kind === 'complete') {
    const { kind, scope, token, status, headers, body } = command;
    return [kind, scope, token, status, headers, body];
  }
  return command;
}

export function fromMessage(message: Message): Command {
  if (!Array.isArray(message)) return message;
  if (message[0] === 'start') {
    const [, scope, token, fingerprint, merchant, operation, key, requestId] = message as string[];
    return { kind: 'start', scope, token, fingerprint, merchant, operation, key, requestId } as Command;
  }
  const [, scope, token, status, headers, body] = message;
  return { kind: 'complete', scope, token, status, headers, body } as Command;
}

export const unpackBytes = (packed: string): Buffer => Buffer.from(packed, 'latin1');
