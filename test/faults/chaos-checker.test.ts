import { describe, expect, it } from 'vitest';
import { check, type Evidence, RULES } from './chaos/checker.ts';
import type { Ended, Event, StopsCompleting } from './chaos/history.ts';
import type { Sample } from './chaos/samples.ts';
import { shareNeverSent, summaryOf } from './chaos/summary.ts';

const SCOPE = 'M-ALPHA payout-1';
const ENTRY = { merchant: 'M-ALPHA', idempotency_key: 'payout-1' };

const result = (digest = 'a', more: Partial<Extract<Ended, { kind: 'result' }>> = {}): Ended => ({
  kind: 'result',
  status: 201,
  digest,
  replayed: false,
  foreign: false,
  ...more,
});
const problem = (code: string): Ended => ({ kind: 'problem', status: 409, code, foreign: false });
const UNKNOWN = problem('outcome_unknown');

type CallEvent = Extract<Event, { event: 'call' }>;

let calls = 0;
/** A call that takes 100 ms. */
function call(atMs: number, ended: Ended, more: Partial<CallEvent> = {}): Event[] {
  const id = calls++;
  const start: CallEvent = {
    event: 'call',
    id,
    atMs,
    scope: SCOPE,
    gateway: 0,
    life: 1,
    as: 'merchant',
    ...more,
  };
  return [start, { event: 'ended', id, atMs: atMs + 100, scope: SCOPE, ended }];
}
const last = (ended: Ended): Event[] => call(90_000, ended, { as: 'last' });

function evidenceOf(events: Event[], more: Partial<Evidence> = {}): Evidence {
  return {
    events,
    payouts: [ENTRY],
    listed: new Set(),
    resolved: [],
    unasked: new Set(),
    recoveriesMs: [],
    recoverWithinMs: 3000,
    failsOver: false,
    samples: [],
    ...more,
  };
}

const rulesOf = (events: Event[], more: Partial<Evidence> = {}): string[] =>
  check(evidenceOf(events, more)).map(({ rule }) => rule);

const fine = [...call(0, result()), ...last(result('a', { replayed: true }))];
const killed: Extract<Event, { event: 'gateway_died' }> = {
  event: 'gateway_died',
  atMs: 50,
  gateway: 0,
  life: 1,
  how: 'SIGKILL',
};
const doubt = [...call(0, UNKNOWN), ...last(UNKNOWN)];
const listed = new Set([SCOPE]);
const stopping = (stopsCompleting: StopsCompleting, fromMs: number, toMs: number, gateway = 0): Event[] => [
  { event: 'fault', atMs: fromMs, of: 'store', name: `killed at ${fromMs} ms`, gateway, stopsCompleting },
  { event: 'healed', atMs: toMs, of: 'store', name: `killed at ${fromMs} ms` },
];
const storeFault = (fromMs: number, toMs: number): Event[] => stopping('everywhere', fromMs, toMs);

/** A fault during which results are still stored. */
const backendFault = (fromMs: number, toMs: number): Event[] => [
  { event: 'fault', atMs: fromMs, of: 'backend', name: 'backend killed' },
  { event: 'healed', atMs: toMs, of: 'backend', name: 'backend killed' },
];

const MIB = 1024 * 1024;
/** A hundred samples of a gateway. */
const samplesOf = (minutes: number, change: (share: number) => Partial<Sample> = () => ({})): Sample[] =>
  Array.from({ length: 100 }, (_, i) => ({
    ...{ atMs: (i / 100) * minutes * 60_000, gateway: 0 },
    ...{ anonymousBytes: 200 * MIB, heapUsedBytes: 50 * MIB, descriptors: 90, ...change(i / 100) },
  }));

/** Evidence that violates exactly one rule. */
const violations: Record<keyof typeof RULES, () => string[]> = {
  paid_twice: () => rulesOf(fine, { payouts: [ENTRY, ENTRY] }),
  answers_differ: () => rulesOf([...call(0, result('a')), ...last(result('b'))]),
  paid_nothing: () => rulesOf(fine, { payouts: [] }),
  result_lost: () => rulesOf([...call(0, result()), ...call(1000, UNKNOWN), ...last(result())]),
  foreign_answer: () => rulesOf([...call(0, result('a', { foreign: true })), ...last(result())]),
  key_reused: () => rulesOf([...fine, ...call(500, result('c'), { as: 'other_amount' })]),
  stuck: () => rulesOf([...call(0, result()), ...last(problem('request_in_flight'))]),
  unlisted_doubt: () => rulesOf([...doubt, killed]),
  unresolvable: () =>
    rulesOf(fine, { resolved: [{ scope: SCOPE, as: 'released', ended: UNKNOWN, refusal: undefined }] }),
  unexplained_doubt: () => rulesOf(doubt, { listed }),
  slow_recovery: () => rulesOf(fine, { recoveriesMs: [10, 3500] }),
  gateway_failed: () => rulesOf([...fine, { ...killed, how: '1' }]),
  grows: () => rulesOf(fine, { samples: samplesOf(30, (share) => ({ descriptors: 90 + 50 * share })) }),
};

describe('the checker of the fault suite', () => {
  it('finds nothing in a run without violation', () => {
    expect(rulesOf(fine)).toEqual([]);
    expect(
      rulesOf([...fine, ...call(500, problem('idempotency_key_reused'), { as: 'other_amount' })]),
    ).toEqual([]);
  });

  it.each(Object.keys(RULES) as (keyof typeof RULES)[])('detects %s', (rule) => {
    expect(violations[rule]()).toEqual([rule]);
  });

  it('accepts a doubt that a killed gateway or a lost answer explains', () => {
    expect(rulesOf([...doubt, killed], { listed })).toEqual([]);
    expect(
      rulesOf([...call(0, UNKNOWN, { fault: 'execute-then-reset' }), ...last(UNKNOWN)], { listed }),
    ).toEqual([]);
    expect(rulesOf([...doubt, { event: 'backend_lost', atMs: 60 }], { listed })).toEqual([]);
  });

  it('accepts a doubt of a call during which the machine stood still, and no later one', () => {
    const stalled: Event = { event: 'stalled', atMs: -7000, forMs: 7300 };
    expect(rulesOf([...doubt, stalled], { listed })).toEqual([]);
    const late = [...call(1000, UNKNOWN), ...last(UNKNOWN)];
    expect(rulesOf([stalled, ...late], { listed })).toEqual(['unexplained_doubt']);
    const answered = [...call(0, result()), ...last(UNKNOWN)];
    expect(rulesOf([...answered, stalled], { listed })).toEqual(['result_lost']);
  });

  it('does not accept another gateway, an earlier process or an earlier loss as an explanation', () => {
    expect(rulesOf([...doubt, { ...killed, gateway: 1 }], { listed })).toEqual(['unexplained_doubt']);
    expect(rulesOf([...doubt, { ...killed, life: 2 }], { listed })).toEqual(['unexplained_doubt']);
    const late = [...call(1000, UNKNOWN), ...last(UNKNOWN)];
    expect(rulesOf([{ event: 'backend_lost', atMs: 60 }, ...late], { listed })).toEqual([
      'unexplained_doubt',
    ]);
  });

  it('allows an acknowledged result to be in doubt only while the store fails and until it is back', () => {
    const answered = [...call(0, result()), ...call(1000, UNKNOWN)];
    expect(rulesOf([...answered, ...storeFault(50, 900), ...last(result())])).toEqual([]);
    expect(rulesOf([...answered, ...storeFault(500, 900), ...last(result())])).toEqual(['result_lost']);
    const longAfter = [...call(0, result()), ...call(4000, UNKNOWN)];
    expect(rulesOf([...longAfter, ...storeFault(50, 900), ...last(result())])).toEqual(['result_lost']);
    for (const also of [stopping('late', 800, 3000), storeFault(2000, 3000)])
      expect(rulesOf([...longAfter, ...storeFault(50, 900), ...also, ...last(result())])).toEqual([]);
    for (const alone of [stopping('late', 50, 3000), storeFault(5000, 6000), backendFault(50, 3000)])
      expect(rulesOf([...longAfter, ...alone, ...last(result())])).toEqual(['result_lost']);
    expect(
      rulesOf([...longAfter, ...storeFault(50, 900), ...backendFault(50, 9000), ...last(result())]),
    ).toEqual(['result_lost']);
    expect(rulesOf([...answered, ...storeFault(50, 900), ...last(UNKNOWN)], { listed })).toEqual([
      'result_lost',
      'unexplained_doubt',
    ]);
  });

  it('allows no acknowledged result to be in doubt after the run, however late the store came back', () => {
    const answered = [...call(85_000, result()), ...storeFault(85_050, 89_000), ...last(UNKNOWN)];
    const lost: Event = { event: 'backend_lost', atMs: 85_060 };
    expect(rulesOf([...answered, lost], { listed })).toEqual(['result_lost']);
  });

  it('allows an acknowledged result to stay in doubt only if its gateway was killed while the store failed', () => {
    const answered = (more = {}) => [...call(0, result('a', more)), ...call(1000, UNKNOWN), ...last(UNKNOWN)];
    const meanwhile = (death: Event, more = {}) =>
      rulesOf([...answered(more), ...storeFault(50, 900), death], { listed });
    expect(meanwhile({ ...killed, atMs: 500 })).toEqual([]);
    expect(meanwhile({ ...killed, atMs: 500, how: '0' })).toEqual(['result_lost', 'unexplained_doubt']);
    expect(meanwhile({ ...killed, atMs: 5000 })).toEqual(['result_lost']);
    expect(rulesOf([...answered(), { ...killed, atMs: 500 }], { listed })).toEqual(['result_lost']);
    // The replay came from another gateway than the one that executed.
    const owner = call(0, problem('store_unavailable'), { gateway: 1 });
    const death: Event = { ...killed, atMs: 500, gateway: 1 };
    const calls = (more = {}) => [...owner, ...answered(more), ...storeFault(50, 900), death];
    expect(rulesOf(calls({ replayed: true }), { listed, failsOver: true })).toEqual([]);
    expect(rulesOf(calls({ replayed: true }), { listed })).toEqual(['result_lost']);
    expect(rulesOf(calls(), { listed, failsOver: true })).toEqual(['result_lost']);
    const stored = [...call(0, result('a', { replayed: true })), ...call(1000, UNKNOWN), ...last(result())];
    expect(rulesOf([...stored, ...storeFault(50, 900)])).toEqual(['result_lost']);
  });

  it('allows a result to be in doubt for a while if only its own gateway could not store it', () => {
    const known = [...call(0, result()), ...call(1000, UNKNOWN), ...last(result())];
    expect(rulesOf([...known, ...stopping('there', 50, 900)])).toEqual([]);
    expect(rulesOf([...known, ...stopping('there', 50, 900, 1)])).toEqual(['result_lost']);
    expect(rulesOf([...known, ...stopping('there', 500, 900)])).toEqual(['result_lost']);
    const stays = [...call(0, result()), ...call(1000, UNKNOWN), ...last(UNKNOWN)];
    const killedThen: Event = { ...killed, atMs: 500 };
    expect(rulesOf([...stays, ...stopping('there', 50, 900), killedThen], { listed })).toEqual([]);
    expect(rulesOf([...stays, ...stopping('there', 50, 900)], { listed })).toEqual([
      'result_lost',
      'unexplained_doubt',
    ]);
  });

  it('allows no gateway to exit unasked, not even with exit code 0 or while its store fails', () => {
    for (const how of ['1', '74', '0', 'SIGABRT', 'SIGXFSZ']) {
      const death: Event = { ...killed, atMs: 500, how, unasked: true };
      expect(rulesOf([...fine, ...storeFault(50, 900), death])).toEqual(['gateway_failed']);
    }
    expect(rulesOf([...fine, { ...killed, how: '0' }])).toEqual([]);
    expect(rulesOf([...fine, { ...killed, how: '1' }])).toEqual(['gateway_failed']);
  });

  it('requires no last answer for a key that may have expired, but still detects a second payment for it', () => {
    const unasked = new Set([SCOPE]);
    expect(rulesOf(call(0, result()))).toEqual(['stuck']);
    expect(rulesOf(call(0, result()), { unasked })).toEqual([]);
    expect(rulesOf(call(0, result()), { unasked, payouts: [ENTRY, ENTRY] })).toEqual(['paid_twice']);
  });

  it('counts a key as resolved when its merchant gets the resolution', () => {
    const stored = problem('response_not_stored');
    const resolved = [
      { scope: SCOPE, as: 'completed' as const, ended: stored, refusal: undefined },
      { scope: SCOPE, as: 'released' as const, ended: result(), refusal: undefined },
    ];
    expect(rulesOf(fine, { resolved })).toEqual([]);
    const refused = resolved.map((one) => ({ ...one, refusal: '409 alive' }));
    expect(rulesOf(fine, { resolved: refused })).toEqual(['unresolvable', 'unresolvable']);
  });

  it('lets a gateway without faults grow by noise and while it warms up, and no more', () => {
    const growing = (minutes: number, change: (share: number) => Partial<Sample>) =>
      rulesOf(fine, { samples: samplesOf(minutes, change) });
    expect(growing(30, () => ({}))).toEqual([]);
    expect(growing(30, (share) => ({ heapUsedBytes: (50 + 10 * share) * MIB }))).toEqual([]);
    expect(growing(30, (share) => ({ heapUsedBytes: (50 + 40 * share) * MIB }))).toEqual(['grows']);
    const anonymous = (share: number) => ({ anonymousBytes: (200 + 150 * share) * MIB });
    expect(growing(2, anonymous)).toEqual([]);
    expect(growing(30, anonymous)).toEqual(['grows']);
    expect(growing(30, () => ({ anonymousBytes: Number.NaN }))).toEqual(['grows']);
  });

  it('does not count an answer that frees the key as a result', () => {
    const events = [...call(0, result('free', { status: 429 })), ...call(1000, result()), ...last(result())];
    expect(rulesOf(events)).toEqual([]);
  });

  it('does not count a status that leaves the outcome unknown as a result', () => {
    const unknown = call(0, result('gave up', { status: 502 }), { fault: 'status=502' });
    expect(rulesOf([...unknown, ...last(UNKNOWN)], { listed })).toEqual([]);
  });
});

describe('the summary of the fault suite', () => {
  const facts = {
    seed: 1,
    store: 'sqlite',
    unsafe: undefined,
    tookMs: 1,
    folder: '',
    faults: {},
    missing: [],
  };
  const sent: Event = { event: 'sent', atMs: 10, scope: SCOPE, gateway: 0, life: 1 };
  const summarise = (events: Event[], more: Partial<Evidence> = {}) =>
    summaryOf({ ...facts, keys: 1 }, evidenceOf(events, more), []);

  it('counts the keys in doubt of which no gateway had sent a byte', () => {
    const never = summarise([...doubt, killed], { payouts: [] });
    expect(never).toMatchObject({ inDoubt: 1, neverSent: 1, neverSentAimed: 0 });
    expect(shareNeverSent(never)).toBe('1 (100.0 %; 1 (100.0 %) without kills aimed there)');
    const broken = [...call(0, { kind: 'no_answer', reason: 'ECONNRESET' }), ...last(UNKNOWN)];
    const aimed = summarise([...broken, { ...killed, at: 'after_start' }], { payouts: [] });
    expect(aimed).toMatchObject({ inDoubt: 1, neverSent: 1, neverSentAimed: 1 });
    expect(shareNeverSent(aimed)).toBe('1 (100.0 %; 0 (0 %) without kills aimed there)');
    const elsewhere = summarise([...broken, { ...killed, at: 'after_send' }], { payouts: [] });
    expect(elsewhere).toMatchObject({ neverSentAimed: 0 });
    const answered = summarise([...doubt, { ...killed, at: 'after_start' }], { payouts: [] });
    expect(answered).toMatchObject({ neverSentAimed: 0 });
    expect(summarise([...doubt, sent, killed])).toMatchObject({ inDoubt: 1, neverSent: 0 });
    // An operator released the key, and its merchant retried.
    const released = call(95_000, result(), { as: 'resolved' });
    expect(summarise([...doubt, killed, ...released, sent])).toMatchObject({ inDoubt: 1, neverSent: 1 });
    expect(summarise([...fine, sent])).toMatchObject({ inDoubt: 0, neverSent: 0 });
  });

  it('rejects its own count if the ledger has a payout that no gateway reported as sent', () => {
    expect(() => summarise(fine)).toThrow(`did not see that ${SCOPE} was sent`);
  });
});
