/** Everything that a register can hold under a record id, and everything that can happen to it. */

import * as rules from '../../../src/ledger/rules.ts';
import type { Fingerprint, RecordId, Token } from '../../../src/lib/brands.ts';
import type { CountedNote } from '../../../src/store/doubts.ts';
import type { Held } from '../../../src/store/register.ts';
import type { Execution, KeyRecord, RecordDefaults, StoredCompletion } from '../../../src/store/types.ts';

const bytes = (length: number, byte: number) => Buffer.alloc(length, byte);
export const REVISION = { held: bytes(16, 1), earlier: bytes(16, 2), new: bytes(16, 3) };
export const TOKEN = {
  own: bytes(16, 4),
  other: bytes(16, 5),
  first: bytes(16, 6),
  new: bytes(16, 7),
} as Record<'own' | 'other' | 'first' | 'new', Token>;
const FINGERPRINT = { same: bytes(32, 8) as Fingerprint, other: bytes(32, 9) as Fingerprint };

/** What the records were written with. A gateway judges them by these, and not by its own. */
const LIFETIMES = { leaseMs: 10, retentionMs: 100, inDoubtRetentionMs: 1000 };
export const OWN: RecordDefaults = frozen({
  gatewayId: 'gateway-2',
  lifetimes: { leaseMs: 20, retentionMs: 200, inDoubtRetentionMs: 2000 },
});
/** A gateway that keeps keys in doubt for less than the records were written with. */
export const SHORTER: RecordDefaults = frozen({
  gatewayId: 'gateway-3',
  lifetimes: { leaseMs: 20, retentionMs: 200, inDoubtRetentionMs: 500 },
});
export const STAMP = frozen({ revision: REVISION.new, wallMs: 9000 });

/** Ages of an executing record without a lease. `isYoung`: they show that its owner is alive. */
const AGES: [name: string, ageMs: number, isYoung: boolean][] = [
  ['young', 0, true],
  ['almost a lease old', 9, true],
  ['a lease old', 10, false],
  ['older than its lease', 15, false],
  ['almost as old as its retention', 99, false],
  ['as old as its retention', 100, false],
  ['older than its retention', 500, false],
  ['begun in the future', -9, true],
  ['begun a lease in the future', -10, false],
  ['begun long in the future', -900, false],
];
const RESPONSE: StoredCompletion = {
  kind: 'response',
  response: { status: 201, headers: ['a', 'b'], body: Buffer.from('paid') },
};
const ENCRYPTED: StoredCompletion = {
  kind: 'encrypted',
  status: 202,
  keyId: 'k1',
  bytes: Buffer.from('encrypted'),
};
const TOMBSTONE: StoredCompletion = { kind: 'tombstone', status: 203 };

/** What a register holds. */
export interface State {
  name: string;
  held: Held | undefined;
  /** Executing: its owner shows that it is alive. In doubt: a lease shows that, and the owner has not given up. */
  isAlive: boolean;
}

const state = (
  name: string,
  change: Partial<KeyRecord>,
  ageMs: number,
  isLeased: boolean,
  isAlive: boolean,
) => {
  const record: KeyRecord = {
    ...{ revision: REVISION.held, state: 'executing', token: TOKEN.own, fingerprint: FINGERPRINT.same },
    ...{ merchant: 'M-1', operation: 'withdraw', key: 'key-1', requestId: 'request-1' },
    ...{ gatewayId: 'gateway-1', lifetimes: LIFETIMES, wasInDoubt: false, ownerGaveUp: false },
    ...{ restarted: false, cause: '', createdAtMs: 5000, changedAtMs: 6000, extension: Buffer.from('v4') },
    ...change,
  };
  const expiresInMs = LIFETIMES.inDoubtRetentionMs - ageMs;
  return frozen<State>({ name, held: { record, expiresInMs, isLeased }, isAlive });
};

const leases = [false, true];
const again = { restarted: true, wasInDoubt: true, cause: 'reset' };
const inDoubt = { state: 'in_doubt', wasInDoubt: true, cause: 'timeout' } as const;
const executing: [name: string, change: Partial<KeyRecord>][] = [
  ['executing', {}],
  ['executing again', again],
];
const open: [name: string, change: Partial<KeyRecord>][] = [
  ['in doubt by its owner', { ...inDoubt, ownerGaveUp: true }],
  ['in doubt by a reader', inDoubt],
  ['executed again, and in doubt by its owner', { ...inDoubt, restarted: true, ownerGaveUp: true }],
  ['executed again, and in doubt by a reader', { ...inDoubt, restarted: true }],
];
const completed: [name: string, change: Partial<KeyRecord>][] = [
  ['completed', { completion: RESPONSE }],
  ['completed from in doubt', { completion: RESPONSE, wasInDoubt: true, cause: 'timeout' }],
  ['completed, encrypted', { completion: ENCRYPTED }],
  ['completed without its response', { completion: TOMBSTONE }],
];

export const STATES: State[] = [
  { name: 'nothing', held: undefined, isAlive: false },
  ...leases.flatMap((isLeased) => {
    const lease = isLeased ? ', with a lease' : '';
    return [
      ...executing.flatMap(([name, change]) =>
        AGES.map(([age, ms, isYoung]) =>
          state(`${name}, ${age}${lease}`, change, ms, isLeased, isLeased || isYoung),
        ),
      ),
      ...open.flatMap(([name, change]) =>
        AGES.map(([age, ms]) =>
          state(`${name}, ${age}${lease}`, change, ms, isLeased, isLeased && !change.ownerGaveUp),
        ),
      ),
      ...completed.map(([name, change]) =>
        state(`${name}${lease}`, { state: 'completed', ...change }, 930, isLeased, false),
      ),
    ];
  }),
];

export type Answer = string | ({ kind: string } & Record<string, unknown>);
export type Outcome = rules.RuleResult<Answer>;

/** Something that happens to a key. */
export interface Happening {
  kind: Exclude<keyof typeof rules, 'isAlive' | 'needsLease' | 'youngForMs'>;
  name: string;
  /** What `complete`, `commit` and `resolve` complete with. A resolution without it releases. */
  completion?: StoredCompletion;
  wasTold?: boolean;
  note?: CountedNote;
  /** What was there before the restart, for `takeBackRestart`. */
  earlier?: KeyRecord;
  /** A `restart` is identified as another operation than the record's. */
  isOtherOperation?: boolean;
  /** The gateway, unless it is {@link OWN}. */
  own?: RecordDefaults;
  run(held: Held | undefined, execution: Execution): rules.RuleResult<unknown>;
}

export const CAUSE = 'the connection was reset';
const earlier = frozen<KeyRecord>({
  ...(state('', { ...inDoubt, token: TOKEN.first, revision: REVISION.earlier }, 0, false, false).held as Held)
    .record,
  ...{ gatewayId: 'gateway-0', changedAtMs: 5500 },
  lifetimes: { leaseMs: 30, retentionMs: 300, inDoubtRetentionMs: 3000 },
});

const event = (
  kind: Happening['kind'],
  name: string,
  run: Happening['run'],
  parts: Pick<Happening, 'completion' | 'wasTold' | 'note' | 'earlier' | 'isOtherOperation' | 'own'> = {},
): Happening => ({ kind, name, run, ...parts });

const complete = (name: string, completion: StoredCompletion, wasTold: boolean): Happening =>
  event(
    'complete',
    name,
    (held, execution) => rules.complete(held, execution, completion, wasTold, OWN, STAMP),
    { completion, wasTold },
  );

const commit = (name: string, completion: StoredCompletion, wasTold: boolean): Happening =>
  event('commit', name, (held, execution) => rules.commit(held, execution, completion, wasTold, OWN, STAMP), {
    completion,
    wasTold,
  });

function resolve(name: string, note: CountedNote, completion?: StoredCompletion): Happening {
  const resolution = completion ? ({ as: 'completed', completion } as const) : ({ as: 'released' } as const);
  const run: Happening['run'] = (held, { token }) =>
    rules.resolve(held, token, resolution, note, TOKEN.new, STAMP);
  return event('resolve', name, run, completion ? { note, completion } : { note });
}

const takeBackRestart = (name: string, before: KeyRecord): Happening =>
  event('takeBackRestart', name, (held, { token }) => rules.takeBackRestart(held, token, before, STAMP), {
    earlier: before,
  });

/** A restart as the record's operation. In all other events the operation is another one, which must not matter. */
const restart = (name: string, own: RecordDefaults): Happening =>
  event(
    'restart',
    name,
    (held, execution) => rules.restart(held, { ...execution, operation: 'withdraw' }, own, STAMP),
    { own },
  );

const ada: CountedNote = { by: 'ada', reason: 'the books show it' };

export const HAPPENINGS: Happening[] = [
  event('start', 'start', (held, execution) => rules.start(held, execution, OWN, STAMP)),
  event('peek', 'peek', (held, { fingerprint }) => rules.peek(held, fingerprint, STAMP)),
  restart('restart', OWN),
  restart('restart by a gateway that keeps keys for less', SHORTER),
  event(
    'restart',
    'restart as another operation',
    (held, execution) => rules.restart(held, execution, OWN, STAMP),
    { isOtherOperation: true },
  ),
  complete('complete', RESPONSE, false),
  complete('complete, its merchant was told', RESPONSE, true),
  complete('complete, encrypted', ENCRYPTED, false),
  complete('complete without the response', TOMBSTONE, false),
  commit('commit', RESPONSE, false),
  commit('commit, its merchant was told', RESPONSE, true),
  commit('commit, encrypted', ENCRYPTED, false),
  event('release', 'release', (held, { token }) => rules.release(held, token, STAMP)),
  event('leaveInDoubt', 'leave in doubt', (held, { token }) => rules.leaveInDoubt(held, token, CAUSE, STAMP)),
  event('takeBackStart', 'take the start back', (held, { token }) => rules.takeBackStart(held, token)),
  takeBackRestart('take the restart back', earlier),
  resolve('resolve as released', ada),
  resolve('resolve as released by a lookup', { ...ada, source: 'lookup' }),
  resolve('resolve as completed', ada, RESPONSE),
  resolve('resolve as completed, encrypted', { ...ada, source: 'command_line' }, ENCRYPTED),
  resolve('resolve as completed without the response', ada, TOMBSTONE),
];

/** One state, one event, and what the rules say. */
export interface Cell extends State, Happening {
  execution: Execution;
  /** The event has the token that the record has. */
  isMine: boolean;
  /** The event has the fingerprint that the record has. */
  isSame: boolean;
  outcome: Outcome;
}

export function cellOf(from: State, event: Happening, isMine: boolean, isSame: boolean): Cell {
  const execution: Execution = frozen({
    ...{ recordId: 'a'.repeat(48) as RecordId, token: isMine ? TOKEN.own : TOKEN.other },
    ...{ fingerprint: isSame ? FINGERPRINT.same : FINGERPRINT.other },
    ...{ merchant: 'M-2', operation: 'refund', key: 'key-2', requestId: 'request-2' },
  });
  const outcome = event.run(from.held, execution) as Outcome;
  const name = `${from.name} × ${event.name}, ${isMine ? 'own' : 'other'} token, ${isSame ? 'same' : 'other'} request`;
  return { ...from, ...event, name, execution, isMine, isSame, outcome };
}

export const CELLS: Cell[] = STATES.flatMap((from) => {
  const record = from.held?.record;
  const events =
    record?.state === 'in_doubt'
      ? [...HAPPENINGS, takeBackRestart('take a restart back that has not arrived', record)]
      : HAPPENINGS;
  return events.flatMap((event) =>
    leases.flatMap((isMine) => leases.map((isSame) => cellOf(from, event, isMine, isSame))),
  );
});

/** A rule that changes what it gets throws. */
function frozen<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Buffer.isBuffer(value)) {
    for (const part of Object.values(value)) frozen(part);
    Object.freeze(value);
  }
  return value;
}
