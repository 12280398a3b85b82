import type { Fingerprint, Token } from '../lib/brands.ts';
import { auditOf, type CountedNote, type Resolved, type StoredResolution } from '../store/doubts.ts';
import type { Held, Replace, Write } from '../store/register.ts';
import type {
  Execution,
  ExistingAnswer,
  KeyRecord,
  RecordDefaults,
  ResponseAsStored,
  StoredCompletion,
  Written,
} from '../store/types.ts';

/*
 * The life of a key. There is one rule for each event. A rule gets what the store holds under the record's id, and the event.
 * It returns the answer, and at most one write. The answer is true once the store has accepted the write. If the store holds
 * something else by then, it refuses the write, and the ledger asks the rule again with that.
 *
 * No rule has a clock, a store or a source of random bytes: times, tokens and revisions come with the event.
 */

/** What each new version of a record gets. */
export interface Stamp {
  revision: KeyRecord['revision'];
  /** Wall clock. Shown to people; no decision depends on it. */
  wallMs: number;
}

export interface RuleResult<Answer> {
  answer: Answer;
  write?: Write;
}

/** What a record means for a request. `completed` has its response as the store holds it. */
export type Meaning =
  | Exclude<ExistingAnswer, { kind: 'completed' }>
  | { kind: 'completed'; completion: ResponseAsStored; requestId: string };

/** Nothing → executing. Otherwise: what the record means for this request. */
export function start(
  held: Held | undefined,
  execution: Execution,
  own: RecordDefaults,
  stamp: Stamp,
): RuleResult<{ kind: 'started' } | Meaning> {
  if (!held) {
    const record = executing(execution, own, stamp);
    const expiresInMs = own.lifetimes.inDoubtRetentionMs;
    return { answer: { kind: 'started' }, write: { kind: 'create', record, expiresInMs } };
  }
  // The same start, by its token, arrived twice. The age counts from the first.
  if (held.record.state === 'executing' && isOf(held, execution.token))
    return { answer: { kind: 'started' } };
  return meaning(held, execution.fingerprint, stamp);
}

/** What the record means for a request with this fingerprint. */
export function peek(
  held: Held | undefined,
  fingerprint: Fingerprint,
  stamp: Stamp,
): RuleResult<{ kind: 'absent' } | Meaning> {
  return held ? meaning(held, fingerprint, stamp) : { answer: { kind: 'absent' } };
}

/**
 * In doubt → executing, for a second execution of the same request. The operation must be the same, because `retry` is the
 * policy of that operation. If the first owner lives, its writes are `stale` from then on.
 */
export function restart(
  held: Held | undefined,
  execution: Execution,
  own: RecordDefaults,
  stamp: Stamp,
): RuleResult<'ok' | 'changed'> {
  if (held?.record.state === 'executing' && isOf(held, execution.token)) return { answer: 'ok' };
  const { token, fingerprint, operation } = execution;
  const isSame = held?.record.fingerprint.equals(fingerprint) && held.record.operation === operation;
  if (held?.record.state !== 'in_doubt' || !isSame) return { answer: 'changed' };
  const { gatewayId, lifetimes } = own;
  // A gateway with the longer time may have answered `outcome_unknown`. Within it the merchant's retry must not find the key new.
  const inDoubtRetentionMs = Math.max(lifetimes.inDoubtRetentionMs, held.record.lifetimes.inDoubtRetentionMs);
  const record = next(held.record, stamp, {
    ...{ state: 'executing', token, gatewayId, lifetimes: { ...lifetimes, inDoubtRetentionMs } },
    ...{ ownerGaveUp: false, restarted: true },
  });
  return { answer: 'ok', write: replace(held.record, record, inDoubtRetentionMs, { unlessClosed: true }) };
}

/**
 * Executing or in doubt, under this token → completed. Nothing → completed, because the backend has executed. Another token: `stale`.
 * The result is kept for `retentionMs` from the start; for `inDoubtRetentionMs` from now if anybody may have seen the key in doubt.
 *
 * @param wasTold the merchant has been answered `outcome_unknown`, so its next retry may come after the retention
 */
export function complete(
  held: Held | undefined,
  execution: Execution,
  completion: StoredCompletion,
  wasTold: boolean,
  own: RecordDefaults,
  stamp: Stamp,
): RuleResult<Written> {
  const { token: endLeaseOf, operation } = execution;
  if (!held) {
    const { inDoubtRetentionMs } = own.lifetimes;
    const begun = executing(execution, own, stamp);
    const record = next(begun, stamp, { state: 'completed', wasInDoubt: true, completion });
    return { answer: 'ok', write: replace({ operation }, record, inDoubtRetentionMs, { endLeaseOf }) };
  }
  if (!isOf(held, execution.token)) return { answer: 'stale' };
  // A repeat, because the reply to the first write was lost. The results are not compared: the first stays.
  if (held.record.state === 'completed') return { answer: 'ok' };
  const { retentionMs, inDoubtRetentionMs } = held.record.lifetimes;
  const retainedMs = retentionMs - ageMs(held);
  const wasInDoubt =
    wasTold ||
    held.record.wasInDoubt ||
    held.record.state === 'in_doubt' ||
    !isAlive(held) ||
    retainedMs <= 0;
  const record = next(held.record, stamp, { state: 'completed', wasInDoubt, completion });
  const expiresInMs = wasInDoubt ? inDoubtRetentionMs : retainedMs;
  return { answer: 'ok', write: replace(held.record, record, expiresInMs, { endLeaseOf }) };
}

/**
 * Nothing → completed, in one step: one transaction of the application's own database executes the request and writes the record.
 * Without a commit neither has happened, so no doubt is possible. Otherwise: what the record means for this request.
 *
 * @param wasTold see {@link complete}
 */
export function commit(
  held: Held | undefined,
  execution: Execution,
  completion: StoredCompletion,
  wasTold: boolean,
  own: RecordDefaults,
  stamp: Stamp,
): RuleResult<{ kind: 'committed' } | Meaning> {
  if (held?.record.state === 'completed' && isOf(held, execution.token))
    return { answer: { kind: 'committed' } };
  if (held) return meaning(held, execution.fingerprint, stamp);
  const { retentionMs, inDoubtRetentionMs } = own.lifetimes;
  const begun = executing(execution, own, stamp);
  const record = next(begun, stamp, { state: 'completed', wasInDoubt: wasTold, completion });
  const expiresInMs = wasTold ? inDoubtRetentionMs : retentionMs;
  const { operation } = execution;
  const write = replace({ operation }, record, expiresInMs, { unlessClosed: true });
  return { answer: { kind: 'committed' }, write };
}

/**
 * Executing or in doubt → removed, because the backend surely did not execute. The token is voided: if its start was sent
 * twice, one of the two may still arrive. A restarted record is left in doubt instead, because the first request may have executed.
 */
export function release(held: Held | undefined, token: Token, stamp: Stamp): RuleResult<Written> {
  if (isOpenOf(held, token) && held.record.restarted)
    return leaveInDoubt(held, token, held.record.cause, stamp);
  return takeBackStart(held, token);
}

/**
 * The owner does not know whether the backend executed. Executing → in doubt; a record that a request has found in doubt stays so. Either
 * is marked as given up by its owner.
 */
export function leaveInDoubt(
  held: Held | undefined,
  token: Token,
  cause: string,
  stamp: Stamp,
): RuleResult<Written> {
  if (!isOpenOf(held, token)) return { answer: 'stale' };
  if (held.record.ownerGaveUp) return { answer: 'ok' };
  const record = { ...inDoubt(held.record, cause, stamp), ownerGaveUp: true };
  return {
    answer: 'ok',
    write: replace(held.record, record, 'unchanged', { endLeaseOf: token, mayBeLost: true }),
  };
}

/**
 * Undoes a start whose reply was lost, and under which nothing was sent. The start may still arrive, so its token is voided. If nothing is
 * held, there is nothing to replace: the answer is `stale`, and the ledger voids the token.
 */
export function takeBackStart(held: Held | undefined, token: Token): RuleResult<Written> {
  if (!isOpenOf(held, token) || held.record.restarted) return { answer: 'stale' };
  return { answer: 'ok', write: replace(held.record, undefined, 0, { endLeaseOf: token, voidToken: token }) };
}

/**
 * Undoes a restart whose reply was lost: the record is what it was `before`. If the restart has not arrived, the record still gets a new
 * revision, so that the restart is refused when it does.
 */
export function takeBackRestart(
  held: Held | undefined,
  token: Token,
  before: KeyRecord,
  stamp: Stamp,
): RuleResult<Written> {
  // `boolean` stops TypeScript from narrowing `held`, which may be defined if this is false.
  const hasArrived: boolean = isOpenOf(held, token);
  if (!held || !(hasArrived || held.record.revision.equals(before.revision))) return { answer: 'stale' };
  const record = { ...before, revision: stamp.revision };
  return { answer: 'ok', write: replace(held.record, record, 'unchanged', { endLeaseOf: token }) };
}

/**
 * In doubt or executing → completed under a token that no execution has, or removed. Two answers write nothing: `changed`, if the record
 * is not open under `seen`, and `alive`, if its owner shows that it is alive and has not given up.
 *
 * @param seen the token of the execution that was looked at
 */
export function resolve(
  held: Held | undefined,
  seen: Token,
  resolution: StoredResolution,
  note: CountedNote,
  newToken: Token,
  stamp: Stamp,
): RuleResult<Resolved> {
  if (!isOpenOf(held, seen)) return { answer: 'changed' };
  const { ownerGaveUp, lifetimes } = held.record;
  if (!ownerGaveUp && isAlive(held)) return { answer: 'alive' };
  const { as } = resolution;
  const along = {
    unlessLeased: !ownerGaveUp,
    unlessClosed: true,
    audit: auditOf(held.record, resolution, note, stamp.wallMs),
    counted: { as, by: note.source ?? ('operator' as const) },
  };
  if (as === 'released') return { answer: 'ok', write: replace(held.record, undefined, 0, along) };
  const { completion } = resolution;
  const change = { state: 'completed', token: newToken, wasInDoubt: true, completion } as const;
  const record = next(held.record, stamp, change);
  return { answer: 'ok', write: replace(held.record, record, lifetimes.inDoubtRetentionMs, along) };
}

/** Whether the owner of this record shows that it is alive. */
export const isAlive = (held: Held): boolean =>
  held.isLeased || (held.record.state === 'executing' && youngForMs(held) > 0);

/**
 * For how long the age of an executing record still shows that its owner is alive: for one lease from its start. 0 or less if it does
 * not. A clock of the store that was stepped back makes the age negative, and must not keep a dead owner alive.
 */
export const youngForMs = (held: Omit<Held, 'isLeased'>): number =>
  held.record.lifetimes.leaseMs - Math.abs(ageMs(held));

/** Whether what the record means can depend on its lease. Only then need lock nodes be asked. */
export function needsLease(held: Omit<Held, 'isLeased'>): boolean {
  const { state, ownerGaveUp } = held.record;
  return state === 'in_doubt' ? !ownerGaveUp : state === 'executing' && youngForMs(held) <= 0;
}

/** What a record means for a request with this fingerprint. The first request that finds the owner dead puts it in doubt. */
function meaning(held: Held, fingerprint: Fingerprint, stamp: Stamp): RuleResult<Meaning> {
  const { record } = held;
  const { requestId, operation, completion } = record;
  if (!record.fingerprint.equals(fingerprint)) return { answer: { kind: 'mismatch' } };
  if (completion?.kind === 'tombstone') return { answer: { kind: 'tombstone', requestId } };
  if (completion) return { answer: { kind: 'completed', completion, requestId } };
  if (record.state === 'in_doubt')
    return { answer: { kind: 'in_doubt', sinceMs: record.changedAtMs, operation, requestId } };
  if (isAlive(held)) return { answer: { kind: 'in_flight' } };
  // A completion under way would keep the record for `retentionMs` only. The new revision refuses it, and `complete` is asked again.
  const write = replace(held.record, inDoubt(record, OWNER_DEAD, stamp), 'unchanged', { unlessLeased: true });
  return { answer: { kind: 'in_doubt', sinceMs: stamp.wallMs, operation, requestId }, write };
}

export const OWNER_DEAD = 'its gateway ended or was paused before it stored a result';

/** A start or restart sets the lifetime of an open record to `inDoubtRetentionMs`. Nothing else changes it. */
const ageMs = ({ record, expiresInMs }: Omit<Held, 'isLeased'>): number =>
  record.lifetimes.inDoubtRetentionMs - expiresInMs;

const isOf = ({ record }: Held, token: Token): boolean => record.token.equals(token);

const isOpenOf = (held: Held | undefined, token: Token): held is Held =>
  held !== undefined && held.record.state !== 'completed' && isOf(held, token);

function executing(execution: Execution, own: RecordDefaults, { revision, wallMs }: Stamp): KeyRecord {
  const { token, fingerprint, merchant, operation, key, requestId } = execution;
  const { gatewayId, lifetimes } = own;
  // Of one shape with the records that a register reads, and without a spread: each payout makes one.
  return {
    revision,
    state: 'executing',
    token,
    fingerprint,
    merchant,
    operation,
    key,
    requestId,
    gatewayId,
    lifetimes,
    wasInDoubt: false,
    ownerGaveUp: false,
    restarted: false,
    cause: '',
    createdAtMs: wallMs,
    changedAtMs: wallMs,
  };
}

/** The first parameter is the record that is held, or only the operation if nothing is. The store writes nothing if that has changed. */
const replace = (
  { revision, operation }: { revision?: KeyRecord['revision']; operation: string },
  record: KeyRecord | undefined,
  expiresInMs: Replace['expiresInMs'],
  along: Omit<Replace, 'kind' | 'revision' | 'record' | 'operation' | 'expiresInMs'>,
): Replace => ({ kind: 'replace', revision, record, operation, expiresInMs, ...along });

const next = (record: KeyRecord, { revision, wallMs }: Stamp, change: Partial<KeyRecord>): KeyRecord => ({
  ...record,
  ...change,
  revision,
  changedAtMs: wallMs,
});

/** A record that is in doubt already keeps its cause, and the time when its doubt began. */
const inDoubt = (record: KeyRecord, cause: string, stamp: Stamp): KeyRecord =>
  record.state === 'in_doubt'
    ? { ...record, revision: stamp.revision }
    : next(record, stamp, { state: 'in_doubt', wasInDoubt: true, cause });
