import { isDeepStrictEqual } from 'node:util';
import type { Replace } from '../../../src/store/register.ts';
import type { KeyRecord } from '../../../src/store/types.ts';
import { CAUSE, type Cell, type Outcome, OWN, REVISION, SHORTER, STAMP, TOKEN } from './cells.ts';

/** What a cell's outcome means, if the register accepts its write. */
interface Seen extends Outcome {
  replace: Replace | undefined;
  before: KeyRecord | undefined;
  after: KeyRecord | undefined;
  /** The record that was written. */
  written: KeyRecord | undefined;
  isRemoved: boolean;
  kind: string;
}

export function seen(cell: Cell, outcome: Outcome): Seen {
  const { answer, write } = outcome;
  const before = cell.held?.record;
  const kind = typeof answer === 'string' ? answer : answer.kind;
  const isRemoved = before !== undefined && write !== undefined && write.record === undefined;
  const replace = write?.kind === 'replace' ? write : undefined;
  return {
    ...outcome,
    replace,
    before,
    after: write ? write.record : before,
    written: write?.record,
    isRemoved,
    kind,
  };
}

const same = isDeepStrictEqual;
const DEAD = 'its gateway ended or was paused before it stored a result';
const isOpen = (record: KeyRecord | undefined) => record !== undefined && record.state !== 'completed';
const isOneOf = (cell: Cell, ...kinds: Cell['kind'][]) => kinds.includes(cell.kind);
const isExecuting = ({ held }: Cell) => held?.record.state === 'executing';

/** The same start, restart or commit that has written the record, once more. */
const isRepeated = (cell: Cell) =>
  (isOneOf(cell, 'start', 'restart') && isExecuting(cell) && cell.isMine) ||
  (cell.kind === 'commit' && cell.held?.record.state === 'completed' && cell.isMine);
/** A request wants to know what a record means for it. */
const asks = (cell: Cell) =>
  isOneOf(cell, 'start', 'peek', 'commit') && cell.held !== undefined && !isRepeated(cell);
const asksForIts = (cell: Cell) => asks(cell) && cell.isSame;
/** An owner's last write, under the token of a record that is still open. */
const ends = (cell: Cell, ...kinds: Cell['kind'][]) =>
  isOneOf(cell, ...kinds) && cell.isMine && isOpen(cell.held?.record);
const OWNERS = ['complete', 'release', 'leaveInDoubt', 'takeBackStart', 'takeBackRestart'] as const;
const resolves = (cell: Cell) =>
  cell.kind === 'resolve' && cell.isMine && isOpen(cell.held?.record) && !cell.isAlive;
const isBackBefore = ({ kind, held, earlier }: Cell) =>
  kind === 'takeBackRestart' && held?.record === earlier;
/** A transaction of the application writes its record. */
const commits = (cell: Cell) => cell.kind === 'commit' && !cell.held;
/** A reader finds that the owner is dead. */
const findsDead = (cell: Cell) => asksForIts(cell) && isExecuting(cell) && !cell.isAlive;
const restarts = (cell: Cell) =>
  cell.kind === 'restart' && cell.isSame && !cell.isOtherOperation && cell.held?.record.state === 'in_doubt';
/** The owner knows that nothing was executed under the key. */
const clears = (cell: Cell) => ends(cell, 'release', 'takeBackStart') && !cell.held?.record.restarted;
const takesRestartBack = (cell: Cell) => isBackBefore(cell) || ends(cell, 'takeBackRestart');
/** After a restart a release says nothing about the first execution, so it does what leaveInDoubt does. */
const leavesInDoubt = (cell: Cell) =>
  ends(cell, 'leaveInDoubt') || (ends(cell, 'release') && cell.held?.record.restarted === true);

/**
 * What holds in every cell. A promise says nothing (undefined) about cells that it does not concern. Together they leave no
 * choice in any cell: the sabotage beside this shows that.
 */
export const PROMISES: Record<string, (cell: Cell, seen: Seen) => boolean | undefined> = {
  // What is answered.
  'a key that the store does not hold is started': (cell, { kind, written }) =>
    cell.kind === 'start' && !cell.held ? kind === 'started' && written?.state === 'executing' : undefined,
  'peek finds nothing where nothing is': (cell, { kind }) =>
    cell.kind === 'peek' && !cell.held ? kind === 'absent' : undefined,
  'a start, restart or commit that arrives twice is one': (cell, { kind, write }) => {
    const answers: Partial<Record<Cell['kind'], string>> = { start: 'started', commit: 'committed' };
    return isRepeated(cell) ? kind === (answers[cell.kind] ?? 'ok') && !write : undefined;
  },
  'a transaction commits its result where nothing is': (cell, { kind, written }) =>
    cell.kind === 'commit' && !cell.held ? kind === 'committed' && written?.state === 'completed' : undefined,
  'another request under the key is told so, and nothing else': (cell, { answer, write }) =>
    asks(cell) && !cell.isSame ? same(answer, { kind: 'mismatch' }) && !write : undefined,
  'a result is answered as it is stored': (cell, { answer, before, write }) => {
    const completion = before?.completion;
    if (!asksForIts(cell) || !completion) return undefined;
    const requestId = before.requestId;
    if (completion.kind === 'tombstone') return same(answer, { kind: 'tombstone', requestId }) && !write;
    return same(answer, { kind: 'completed', completion, requestId }) && !write;
  },
  'a request waits while an owner is alive': (cell, { answer, write }) =>
    asksForIts(cell) && isExecuting(cell) && cell.isAlive
      ? same(answer, { kind: 'in_flight' }) && !write
      : undefined,
  'in doubt is answered with since when, and only once that is written': (cell, { answer, after }) => {
    if (!asksForIts(cell) || !isOpen(cell.held?.record) || (isExecuting(cell) && cell.isAlive))
      return undefined;
    if (after?.state !== 'in_doubt') return false;
    const { requestId, operation, changedAtMs: sinceMs } = after;
    return same(answer, { kind: 'in_doubt', sinceMs, operation, requestId });
  },
  'only a key in doubt is restarted, and only for the same request and operation': (
    cell,
    { answer, after },
  ) => {
    if (cell.kind !== 'restart' || isRepeated(cell)) return undefined;
    return restarts(cell) ? answer === 'ok' && after?.state === 'executing' : answer === 'changed';
  },
  'a write of an owner whose record is gone, completed or not its own is stale': (
    cell,
    { answer, write },
  ) => {
    if (!isOneOf(cell, ...OWNERS)) return undefined;
    // No owner both starts and restarts.
    if (cell.kind === 'takeBackStart') return clears(cell) ? answer === 'ok' : answer === 'stale' && !write;
    if (ends(cell, ...OWNERS) || isBackBefore(cell)) return answer === 'ok';
    if (cell.kind === 'complete' && (!cell.held || cell.isMine)) return answer === 'ok';
    return answer === 'stale' && !write;
  },
  'a living owner is not resolved, and only what was looked at is': (cell, { answer }) => {
    if (cell.kind !== 'resolve') return undefined;
    if (!cell.isMine || !isOpen(cell.held?.record)) return answer === 'changed';
    return answer === (cell.isAlive ? 'alive' : 'ok');
  },

  // What becomes of the record.
  'only these events write': (cell, { write }) => {
    const changesMark = leavesInDoubt(cell) && !cell.held?.record.ownerGaveUp;
    const creates = isOneOf(cell, 'start', 'complete', 'commit') && !cell.held;
    const completes = ends(cell, 'complete');
    const others = findsDead(cell) || restarts(cell) || takesRestartBack(cell) || resolves(cell);
    return (write !== undefined) === (creates || completes || clears(cell) || changesMark || others);
  },
  'a start writes only where nothing is': (cell, { write }) =>
    write && (write.kind === 'create') === (cell.kind === 'start' && !cell.held),
  'a write names the revision of what it replaces': (_, { replace, before }) =>
    replace && same(replace.revision, before?.revision),
  'each write has a new revision': (_, { written }) => written && same(written.revision, REVISION.new),
  'only an owner that surely executed nothing, and a resolution, remove a record': (cell, { isRemoved }) =>
    isRemoved === (clears(cell) || (resolves(cell) && !cell.completion)),
  'a restarted record is never removed by its owner or a reader': (cell, { isRemoved, before }) =>
    before?.restarted && cell.kind !== 'resolve' ? !isRemoved : undefined,
  'a result is what the owner or the resolution said, and never changes': (cell, { written, before }) => {
    if (!written) return undefined;
    const isResult = isOneOf(cell, 'complete', 'resolve') || commits(cell);
    const completion = isResult ? cell.completion : before?.completion;
    return before?.state !== 'completed' && same(written.completion, completion);
  },
  'completed is what has a result': (_, { written }) =>
    written && (written.state === 'completed') === (written.completion !== undefined),
  'an owner that gives up, and a reader, leave the record in doubt': (cell, { after }) =>
    leavesInDoubt(cell) || findsDead(cell) ? after?.state === 'in_doubt' : undefined,
  'a restart that is taken back was not there': (cell, { after }) =>
    takesRestartBack(cell) ? same(after, { ...cell.earlier, revision: REVISION.new }) : undefined,

  'a result is never lost, whatever became of the record': (cell, { answer, after }) =>
    cell.kind === 'complete' && answer === 'ok' ? after?.state === 'completed' : undefined,

  // What the record says.
  'a record is for ever of the request that started it': (cell, { written, before }) => {
    if (!written || takesRestartBack(cell)) return undefined;
    const { fingerprint, merchant, operation, key, requestId } = before ?? cell.execution;
    const { createdAtMs, extension } = before ?? { createdAtMs: STAMP.wallMs, extension: undefined };
    const expected = { fingerprint, merchant, operation, key, requestId, createdAtMs, extension };
    return Object.entries(expected).every(([name, value]) => same(written[name as 'key'], value));
  },
  'the token changes with an execution and with a resolution only': (cell, { written, before }) => {
    if (!written || takesRestartBack(cell)) return undefined;
    if (cell.kind === 'resolve') return same(written.token, TOKEN.new);
    const begins = !before || restarts(cell);
    return same(written.token, begins ? cell.execution.token : before.token);
  },
  'a record is judged by the lifetimes of the gateway that executes it': (cell, { written, before }) => {
    if (!written || takesRestartBack(cell)) return undefined;
    const { gatewayId, lifetimes } = !before || restarts(cell) ? (cell.own ?? OWN) : before;
    const inDoubtRetentionMs = Math.max(
      lifetimes.inDoubtRetentionMs,
      before?.lifetimes.inDoubtRetentionMs ?? 0,
    );
    return written.gatewayId === gatewayId && same(written.lifetimes, { ...lifetimes, inDoubtRetentionMs });
  },
  'was in doubt is never forgotten': (_, { written, before }) =>
    written && (before?.wasInDoubt || written.state === 'in_doubt' ? written.wasInDoubt : undefined),
  'a result was in doubt if somebody may have been told so': (cell, { written, before }) => {
    if (!written || before?.wasInDoubt || written.state !== 'completed') return undefined;
    const { held, isAlive, wasTold } = cell;
    const age = 1000 - (held?.expiresInMs ?? 0);
    return (
      written.wasInDoubt ===
      (cell.kind === 'commit'
        ? wasTold
        : !held || cell.kind === 'resolve' || !isAlive || wasTold === true || age >= 100)
    );
  },
  'a start was never in doubt': (cell, { written }) =>
    written && cell.kind === 'start' && !cell.held ? written.wasInDoubt === false : undefined,
  'only its owner gives up, until it is restarted': (cell, { written, before }) => {
    if (!written || takesRestartBack(cell)) return undefined;
    if (restarts(cell)) return written.ownerGaveUp === false;
    return written.ownerGaveUp === (leavesInDoubt(cell) || before?.ownerGaveUp === true);
  },
  'only a restart marks as restarted, and for ever': (cell, { written, before }) =>
    written && !takesRestartBack(cell)
      ? written.restarted === (restarts(cell) || before?.restarted === true)
      : undefined,
  'the first cause of a doubt is kept until it is restarted': (cell, { written, before }) => {
    if (!written || takesRestartBack(cell)) return undefined;
    if (before?.state === 'executing' && cell.kind === 'leaveInDoubt') return written.cause === CAUSE;
    if (findsDead(cell)) return written.cause === DEAD;
    return written.cause === (before?.cause ?? '');
  },
  'people see when the state changed': (cell, { written, before }) => {
    if (!written || takesRestartBack(cell)) return undefined;
    return written.changedAtMs === (written.state === before?.state ? before.changedAtMs : STAMP.wallMs);
  },

  // How long it lives.
  'a mark keeps the lifetime, and so the age': (cell, { write }) =>
    write && (leavesInDoubt(cell) || findsDead(cell) || takesRestartBack(cell))
      ? write.expiresInMs === 'unchanged'
      : undefined,
  'an execution can be in doubt for the whole lifetime of its own gateway': (cell, { write, before }) =>
    write && (restarts(cell) || !before) && cell.kind !== 'commit' && cell.own !== SHORTER
      ? write.expiresInMs === 2000
      : undefined,
  'what a transaction has committed lives a retention, and longer if its merchant was told': (
    cell,
    { write },
  ) => (write && commits(cell) ? write.expiresInMs === (cell.wasTold ? 2000 : 200) : undefined),
  'a restart shortens no lifetime': (cell, { write }) =>
    write && restarts(cell) && cell.own === SHORTER ? write.expiresInMs === 1000 : undefined,
  'a result lives a retention from its start, and from now if it was in doubt': (
    cell,
    { write, written },
  ) => {
    if (written?.state !== 'completed' || !cell.held) return undefined;
    const age = 1000 - cell.held.expiresInMs;
    return write?.expiresInMs === (written.wasInDoubt ? 1000 : 100 - age);
  },
  'nothing has no lifetime': (_, { write, isRemoved }) => (isRemoved ? write?.expiresInMs === 0 : undefined),

  // What goes along with a write.
  'an open record is indexed under its own operation': (cell, { replace, before }) =>
    replace && replace.operation === (before ?? cell.execution).operation,
  'an owner that ends gives its lease back, and nobody else does': (cell, { replace }) =>
    replace && same(replace.endLeaseOf, isOneOf(cell, ...OWNERS) ? cell.execution.token : undefined),
  'the start of what an owner removes never succeeds any more': (cell, { replace, isRemoved }) => {
    const voids = isRemoved && cell.kind !== 'resolve';
    return replace && same(replace.voidToken, voids ? cell.execution.token : undefined);
  },
  'a decision against an owner is refused if its lease is there after all': (cell, { replace, before }) =>
    replace &&
    (replace.unlessLeased ?? false) === (findsDead(cell) || (resolves(cell) && !before?.ownerGaveUp)),
  'a closed store gets no new execution and no resolution': (cell, { replace }) => {
    const isNew = commits(cell) || restarts(cell) || resolves(cell);
    return replace && (replace.unlessClosed ?? false) === isNew;
  },
  'a failover may lose only what the lapse of the lease says too': (cell, { replace }) =>
    replace && (replace.mayBeLost ?? false) === leavesInDoubt(cell),
  'a resolution is counted and leaves a trail, and nothing else does': (cell, { replace, before }) => {
    if (!replace) return undefined;
    const { note, completion } = cell;
    if (cell.kind !== 'resolve' || !before || !note) return !replace.audit && !replace.counted;
    const { state, merchant, operation, key, requestId, createdAtMs, changedAtMs } = before;
    const from = { state, merchant, operation, key, requestId, createdAtMs, changedAtMs };
    const kind = completion?.kind === 'tombstone' ? 'tombstone' : 'response';
    const statuses = { response: 201, encrypted: 202, tombstone: 203 };
    const to = completion ? { as: 'completed', kind, status: statuses[completion.kind] } : { as: 'released' };
    const { by, reason, source = 'operator' } = note;
    const isCounted = same(replace.counted, { as: to.as, by: source });
    return isCounted && same(replace.audit, { atMs: STAMP.wallMs, by, reason, from, to });
  },
};

/** The promises that this outcome of the cell breaks. */
export function broken(cell: Cell, outcome: Outcome): string[] {
  const facts = seen(cell, outcome);
  return Object.entries(PROMISES).flatMap(([name, holds]) => (holds(cell, facts) === false ? [name] : []));
}
