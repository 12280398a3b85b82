import { describe, expect, it } from 'vitest';
import { eachRow } from '../support/each-row.ts';
import { check, type Evidence, type RULES } from './chaos/checker.ts';
import { draw, type Fault } from './chaos/faults.ts';
import type { Call, Ended, Event, StopsCompleting } from './chaos/history.ts';
import type { Sample } from './chaos/samples.ts';
import { summaryOf } from './chaos/summary.ts';

const NAME = 'M-ALPHA payout-1';
const ENTRY = { merchant: 'M-ALPHA', idempotency_key: 'payout-1' };

const result = (digest = 'a', more: Partial<Extract<Ended, { kind: 'result' }>> = {}): Ended => ({
  ...{ kind: 'result', status: 201, digest, replayed: false, foreign: false },
  ...more,
});
const problem = (code: string): Ended => ({ kind: 'problem', status: 409, code, foreign: false });
const UNKNOWN = problem('outcome_unknown');
const REPLAY = result('a', { replayed: true });

/** A call that takes 100 ms. */
const call = (atMs: number, ended: Ended, more: Partial<Call> = {}): Event => ({
  ...{ event: 'call', atMs, endedAtMs: atMs + 100, name: NAME, gateway: 0, life: 1, as: 'merchant' },
  ...{ ended, ...more },
});
const last = (ended: Ended): Event => call(90_000, ended, { as: 'last' });

const evidenceOf = (events: Event[], more: Partial<Evidence> = {}): Evidence => ({
  ...{ events, payouts: [ENTRY], listed: new Set([NAME]), resolved: [], recoveriesMs: [] },
  ...{ recoverWithinMs: 3000, failsOver: false, samples: [] },
  ...more,
});
const rulesOf = (events: Event[], more?: Partial<Evidence>): string[] =>
  check(evidenceOf(events, more)).map(({ rule }) => rule);

const fine = [call(0, result()), last(REPLAY)];
const doubt = [call(0, UNKNOWN), last(UNKNOWN)];
const killed = (atMs: number, more: Partial<Extract<Event, { event: 'gateway_died' }>> = {}): Event => ({
  ...{ event: 'gateway_died', atMs, gateway: 0, life: 1, how: 'SIGKILL' },
  ...more,
});
const lostAt = (atMs: number): Event => ({ event: 'backend_lost', atMs });
const fault = (fromMs: number, toMs: number, of: 'store' | 'backend', more: object): Event[] => [
  { event: 'fault', atMs: fromMs, of, name: `${of} killed at ${fromMs} ms`, ...more },
  { event: 'healed', atMs: toMs, of, name: `${of} killed at ${fromMs} ms` },
];
const stopping = (stopsCompleting: StopsCompleting, fromMs: number, toMs: number, gateway = 0): Event[] =>
  fault(fromMs, toMs, 'store', { stopsCompleting, gateway });
const storeFault = (fromMs: number, toMs: number): Event[] => stopping('everywhere', fromMs, toMs);
/** Results are still stored meanwhile. */
const backendFault = (fromMs: number, toMs: number): Event[] => fault(fromMs, toMs, 'backend', {});

const MIB = 1024 * 1024;
/** A hundred samples of a gateway. */
const samplesOf = (minutes: number, change: (share: number) => Partial<Sample> = () => ({})): Sample[] =>
  Array.from({ length: 100 }, (_, i) => ({
    ...{ atMs: (i / 100) * minutes * 60_000, gateway: 0 },
    ...{ anonymousBytes: 200 * MIB, heapUsedBytes: 50 * MIB, descriptors: 90, ...change(i / 100) },
  }));

const NO_REFUSAL = { name: NAME, refusal: undefined };
const resolved: Evidence['resolved'] = [
  { ...NO_REFUSAL, as: 'completed', ended: problem('response_not_stored') },
  { ...NO_REFUSAL, as: 'released', ended: result() },
];

/** Evidence that violates exactly one rule. */
const violations: Record<keyof typeof RULES, [events: Event[], more?: Partial<Evidence>]> = {
  paid_twice: [fine, { payouts: [ENTRY, ENTRY] }],
  answers_differ: [[call(0, result('a')), last(result('b'))]],
  paid_nothing: [fine, { payouts: [] }],
  result_lost: [[call(0, result()), call(1000, UNKNOWN), last(result())]],
  foreign_answer: [[call(0, result('a', { foreign: true })), last(result())]],
  key_reused: [[...fine, call(500, result('c'), { as: 'other_amount' })]],
  stuck: [[call(0, result()), last(problem('request_in_flight'))]],
  unlisted_doubt: [[...doubt, killed(50)], { listed: new Set() }],
  unresolvable: [fine, { resolved: [{ ...NO_REFUSAL, as: 'released', ended: UNKNOWN }] }],
  unexplained_doubt: [doubt],
  slow_recovery: [fine, { recoveriesMs: [10, 3500] }],
  gateway_failed: [[...fine, killed(50, { how: '1' })]],
  grows: [fine, { samples: samplesOf(30, (share) => ({ descriptors: 90 + 50 * share })) }],
};

type Row = [what: string, rules: (keyof typeof RULES)[], events: Event[], more?: Partial<Evidence>];

const acknowledged = [call(0, result()), call(1000, UNKNOWN)];
const longAfter = [call(0, result()), call(4000, UNKNOWN), last(result())];
const known = [...acknowledged, last(result())];
const stays = [...acknowledged, last(UNKNOWN)];
const failing = storeFault(50, 900);
const late = [call(1000, UNKNOWN), last(UNKNOWN)];
const stalled: Event = { event: 'stalled', atMs: -7000, forMs: 7300 };
const growing = (minutes: number, change: (share: number) => Partial<Sample>) => ({
  samples: samplesOf(minutes, change),
});
const manyBytes = (share: number) => ({ anonymousBytes: (200 + 150 * share) * MIB });

const explanations: Row[] = [
  ['a killed gateway', [], [...doubt, killed(50)]],
  ['a lost answer', [], [call(0, UNKNOWN, { fault: 'execute-then-reset' }), last(UNKNOWN)]],
  ['a lost backend', [], [...doubt, lostAt(60)]],
  ['a machine that stood still', [], [...doubt, stalled]],
  ['it stood still before', ['unexplained_doubt'], [stalled, ...late]],
  ['it loses no result', ['result_lost'], [call(0, result()), last(UNKNOWN), stalled]],
  ['another gateway', ['unexplained_doubt'], [...doubt, killed(50, { gateway: 1 })]],
  ['another process', ['unexplained_doubt'], [...doubt, killed(50, { life: 2 })]],
  ['a loss before', ['unexplained_doubt'], [lostAt(60), ...late]],
  ['a gateway that is killed much later', ['unexplained_doubt'], [...doubt, killed(19_000)]],
  ['the same, but the store failed until then', [], [...doubt, ...storeFault(0, 18_000), killed(19_000)]],
  ['an unknown outcome', [], [call(0, result('b', { status: 502 }), { fault: 'status=502' }), last(UNKNOWN)]],
];

/** The replay came from another gateway than the one that executed and died. */
const elsewhere = (ended: Ended): Event[] => [
  call(0, problem('store_unavailable'), { gateway: 1 }),
  ...[call(0, ended), call(1000, UNKNOWN), last(UNKNOWN), ...failing, killed(500, { gateway: 1 })],
];

const lostResults: Row[] = [
  ['while the store fails', [], [...known, ...failing]],
  ['it fails later', ['result_lost'], [...known, ...storeFault(500, 900)]],
  ['long after it failed', ['result_lost'], [...longAfter, ...failing]],
  ['and its gateway stands still', [], [...longAfter, ...failing, ...stopping('late', 800, 3000)]],
  ['and it fails again', [], [...longAfter, ...failing, ...storeFault(2000, 3000)]],
  ['its gateway only stands still', ['result_lost'], [...longAfter, ...stopping('late', 50, 3000)]],
  ['it fails afterwards', ['result_lost'], [...longAfter, ...storeFault(5000, 6000)]],
  ['the backend fails', ['result_lost'], [...longAfter, ...backendFault(50, 3000)]],
  ['both fail', ['result_lost'], [...longAfter, ...failing, ...backendFault(50, 9000)]],
  ['for good', ['result_lost', 'unexplained_doubt'], [...stays, ...failing]],
  [
    'after the run, however late the store came back',
    ['result_lost'],
    [call(85_000, result()), ...storeFault(85_050, 89_000), last(UNKNOWN), lostAt(85_060)],
  ],
  ['its gateway is killed meanwhile', [], [...stays, ...failing, killed(500)]],
  ['it ends', ['result_lost', 'unexplained_doubt'], [...stays, ...failing, killed(500, { how: '0' })]],
  ['it is killed later', ['result_lost'], [...stays, ...failing, killed(5000)]],
  ['it is killed, the store works', ['result_lost'], [...stays, killed(500)]],
  ['a replay, failed over', [], elsewhere(REPLAY), { failsOver: true }],
  ['a replay that was read', ['result_lost'], elsewhere(REPLAY)],
  ['no replay', ['result_lost'], elsewhere(result()), { failsOver: true }],
  ['stored before', ['result_lost'], [call(0, REPLAY), call(1000, UNKNOWN), last(result()), ...failing]],
  ['only its gateway cannot store', [], [...known, ...stopping('there', 50, 900)]],
  ['only another cannot', ['result_lost'], [...known, ...stopping('there', 50, 900, 1)]],
  ['it cannot later', ['result_lost'], [...known, ...stopping('there', 500, 900)]],
  ['it cannot, and is killed', [], [...stays, ...stopping('there', 50, 900), killed(500)]],
  ['it cannot, for good', ['result_lost', 'unexplained_doubt'], [...stays, ...stopping('there', 50, 900)]],
];

const others: Row[] = [
  ['nothing', [], fine],
  ['a refusal', [], [...fine, call(500, problem('idempotency_key_reused'), { as: 'other_amount' })]],
  ['no last call', ['stuck'], [call(0, result())]],
  ['freed, then paid', [], [call(0, result('b', { status: 429 })), call(1000, result()), last(result())]],
  ['a shutdown', [], [...fine, killed(50, { how: '0' })]],
  ...['1', '74', '0', 'SIGABRT', 'SIGXFSZ'].map((how): Row => {
    const events = [...fine, ...failing, killed(500, { how, unasked: true })];
    return [`unasked ${how}`, ['gateway_failed'], events];
  }),
  ['resolved', [], fine, { resolved }],
  [
    'not resolved',
    ['unresolvable', 'unresolvable'],
    fine,
    { resolved: resolved.map((one) => ({ ...one, refusal: '409 alive' })) },
  ],
  ['flat', [], fine, growing(30, () => ({}))],
  ['noise', [], fine, growing(30, (share) => ({ heapUsedBytes: (50 + 10 * share) * MIB }))],
  ['a leak', ['grows'], fine, growing(30, (share) => ({ heapUsedBytes: (50 + 40 * share) * MIB }))],
  ['warming up', [], fine, growing(2, manyBytes)],
  ['no more', ['grows'], fine, growing(30, manyBytes)],
  ['unreadable', ['grows'], fine, growing(30, () => ({ anonymousBytes: Number.NaN }))],
];

describe('the checker of the fault suite', () => {
  it('detects each violation', () => {
    eachRow(Object.entries(violations), ([rule, [events, more]]) =>
      expect(rulesOf(events, more)).toEqual([rule]),
    );
  });

  it.each([
    ['accepts a doubt only with an explanation', explanations],
    ['allows an acknowledged result to be in doubt only while and because the store fails', lostResults],
    ['judges the rest of a run', others],
  ])('%s', (_, rows) => {
    eachRow(rows, ([, rules, events, more]) => expect(rulesOf(events, more)).toEqual(rules));
  });
});

describe('the summary of the fault suite', () => {
  const facts = {
    seed: 1,
    store: 'sqlite',
    unsafe: undefined,
    seconds: 1,
    folder: '',
    faults: {},
    missing: [],
  };
  const sent: Event = { event: 'sent', atMs: 10, name: NAME };
  const summarise = (events: Event[], more?: Partial<Evidence>) =>
    summaryOf({ ...facts, keys: 1 }, evidenceOf(events, more), []);

  it('counts the keys in doubt of which no gateway had sent a byte', () => {
    const never = summarise([...doubt, killed(50)], { payouts: [] });
    expect(never).toMatchObject({ inDoubt: 1, neverSent: 1 });
    expect(summarise([...doubt, sent, killed(50)])).toMatchObject({ inDoubt: 1, neverSent: 0 });
    // An operator released the key, and its merchant retried.
    const released = call(95_000, result(), { as: 'resolved' });
    const again = [...doubt, killed(50), { ...sent, atMs: 95_050 }, released];
    expect(summarise(again)).toMatchObject({ inDoubt: 1, neverSent: 1 });
    expect(summarise([...fine, sent])).toMatchObject({ inDoubt: 0, neverSent: 0 });
  });

  it('rejects its own count if the ledger has a payout that no gateway reported as sent', () => {
    expect(() => summarise(fine)).toThrow(`did not see that ${NAME} was sent`);
  });
});

it('at most one fault of the store is drawn, and a fault that must be alone is drawn alone', () => {
  const faultOf = (name: string, of: Fault['of'], more: Partial<Fault> = {}): Fault => ({
    ...{ name, of, inject: () => {}, heal: () => {}, ...more },
  });
  const names = (faults: readonly Fault[]) => faults.map(({ name }) => name);
  const alone = faultOf('alone', 'gateway', { alone: true });
  const stores = [faultOf('s1', 'store'), faultOf('s2', 'store')];
  const deck = [faultOf('g1', 'gateway'), ...stores, alone, faultOf('b1', 'backend')];
  const first = draw(deck, 5);
  expect([names(first.drawn), names(first.left)]).toEqual([
    ['g1', 's1', 'b1'],
    ['s2', 'alone'],
  ]);
  const second = draw(first.left, 5);
  expect(names(second.drawn)).toEqual(['s2']);
  expect(names(draw([...second.left, ...deck], 5).drawn)).toEqual(['alone']);
});
