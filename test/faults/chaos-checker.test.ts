import { describe, expect, it } from 'vitest';
import { check, type Evidence, RULES } from './chaos/checker.ts';
import { type Ended, type Event, HUNG, STORE_FAILED, type StopsSettling } from './chaos/history.ts';

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
/** A call of a tenth of a second. */
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

function rulesOf(events: Event[], more: Partial<Evidence> = {}): string[] {
  const evidence: Evidence = {
    events,
    payouts: [ENTRY],
    balanced: true,
    listed: new Set(),
    resolved: [],
    recoveriesMs: [],
    recoverWithinMs: 3000,
    failsOver: false,
    ...more,
  };
  return check(evidence).map(({ rule }) => rule);
}

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
const stopping = (stopsSettling: StopsSettling, fromMs: number, toMs: number): Event[] => [
  { event: 'fault', atMs: fromMs, of: 'store', name: `killed at ${fromMs} ms`, stopsSettling },
  { event: 'healed', atMs: toMs, of: 'store', name: `killed at ${fromMs} ms` },
];
const storeFault = (fromMs: number, toMs: number): Event[] => stopping('everywhere', fromMs, toMs);

/** Results are stored all the same. */
const standsBeside = (fromMs: number, toMs: number): Event[] => [
  { event: 'fault', atMs: fromMs, of: 'backend', name: 'backend killed' },
  { event: 'healed', atMs: toMs, of: 'backend', name: 'backend killed' },
];

/** Evidence of each rule's violation, and of nothing else. */
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
  unbalanced: () => rulesOf(fine, { balanced: false }),
};

describe('the checker of the fault suite', () => {
  it('finds nothing in a run without violation', () => {
    expect(rulesOf(fine)).toEqual([]);
    expect(
      rulesOf([...fine, ...call(500, problem('idempotency_key_reused'), { as: 'other_amount' })]),
    ).toEqual([]);
  });

  it.each(Object.keys(RULES) as (keyof typeof RULES)[])('sees %s', (rule) => {
    expect(violations[rule]()).toEqual([rule]);
  });

  it('takes a doubt that a killed gateway explains, and one that a lost answer does', () => {
    expect(rulesOf([...doubt, killed], { listed })).toEqual([]);
    expect(
      rulesOf([...call(0, UNKNOWN, { fault: 'execute-then-reset' }), ...last(UNKNOWN)], { listed }),
    ).toEqual([]);
    expect(rulesOf([...doubt, { event: 'backend_lost', atMs: 60 }], { listed })).toEqual([]);
  });

  it('takes no other gateway, no earlier life and no earlier loss for an explanation', () => {
    expect(rulesOf([...doubt, { ...killed, gateway: 1 }], { listed })).toEqual(['unexplained_doubt']);
    expect(rulesOf([...doubt, { ...killed, life: 2 }], { listed })).toEqual(['unexplained_doubt']);
    const late = [...call(1000, UNKNOWN), ...last(UNKNOWN)];
    expect(rulesOf([{ event: 'backend_lost', atMs: 60 }, ...late], { listed })).toEqual([
      'unexplained_doubt',
    ]);
  });

  it('lets a told result be in doubt only where the store failed as it was told, and until it is back', () => {
    const told = [...call(0, result()), ...call(1000, UNKNOWN)];
    expect(rulesOf([...told, ...storeFault(50, 900), ...last(result())])).toEqual([]);
    expect(rulesOf([...told, ...storeFault(500, 900), ...last(result())])).toEqual(['result_lost']);
    const longAfter = [...call(0, result()), ...call(4000, UNKNOWN)];
    expect(rulesOf([...longAfter, ...storeFault(50, 900), ...last(result())])).toEqual(['result_lost']);
    for (const beside of [stopping('there', 800, 3000), storeFault(2000, 3000)])
      expect(rulesOf([...longAfter, ...storeFault(50, 900), ...beside, ...last(result())])).toEqual([]);
    for (const alone of [stopping('there', 50, 3000), storeFault(5000, 6000), standsBeside(50, 3000)])
      expect(rulesOf([...longAfter, ...alone, ...last(result())])).toEqual(['result_lost']);
    expect(
      rulesOf([...longAfter, ...storeFault(50, 900), ...standsBeside(50, 9000), ...last(result())]),
    ).toEqual(['result_lost']);
    expect(rulesOf([...told, ...storeFault(50, 900), ...last(UNKNOWN)], { listed })).toEqual([
      'result_lost',
      'unexplained_doubt',
    ]);
  });

  it('lets no told result be in doubt at the end, however late the store came back', () => {
    const told = [...call(85_000, result()), ...storeFault(85_050, 89_000), ...last(UNKNOWN)];
    const lost: Event = { event: 'backend_lost', atMs: 85_060 };
    expect(rulesOf([...told, lost], { listed })).toEqual(['result_lost']);
  });

  it('lets a told result be in doubt for good only where its gateway was killed while the store failed', () => {
    const told = (more = {}) => [...call(0, result('a', more)), ...call(1000, UNKNOWN), ...last(UNKNOWN)];
    const meanwhile = (death: Event, more = {}) =>
      rulesOf([...told(more), ...storeFault(50, 900), death], { listed });
    expect(meanwhile({ ...killed, atMs: 500 })).toEqual([]);
    expect(meanwhile({ ...killed, atMs: 500, how: '0' })).toEqual(['result_lost', 'unexplained_doubt']);
    expect(meanwhile({ ...killed, atMs: 5000 })).toEqual(['result_lost']);
    expect(rulesOf([...told(), { ...killed, atMs: 500 }], { listed })).toEqual(['result_lost']);
    // A replay came by another gateway than the one that has executed.
    const owner = call(0, problem('store_unavailable'), { gateway: 1 });
    const death: Event = { ...killed, atMs: 500, gateway: 1 };
    const calls = (more = {}) => [...owner, ...told(more), ...storeFault(50, 900), death];
    expect(rulesOf(calls({ replayed: true }), { listed, failsOver: true })).toEqual([]);
    expect(rulesOf(calls({ replayed: true }), { listed })).toEqual(['result_lost']);
    expect(rulesOf(calls(), { listed, failsOver: true })).toEqual(['result_lost']);
    const stored = [...call(0, result('a', { replayed: true })), ...call(1000, UNKNOWN), ...last(result())];
    expect(rulesOf([...stored, ...storeFault(50, 900)])).toEqual(['result_lost']);
  });

  it('lets a gateway whose disk is full end, with what it could not settle in doubt', () => {
    // It tells the result at 100 ms.
    const ended: Event = { ...killed, atMs: 500, how: STORE_FAILED, diskFullFromMs: 50 };
    const told = [...call(0, result()), ...call(1000, UNKNOWN), ...last(UNKNOWN)];
    expect(rulesOf([...told, ended], { listed })).toEqual([]);
    expect(rulesOf([...told, { ...ended, diskFullFromMs: 150 }], { listed })).toEqual(['result_lost']);
    expect(rulesOf([...told, { ...ended, life: 2 }], { listed })).toEqual([
      'result_lost',
      'unexplained_doubt',
    ]);
    const longAfter: Event = { ...ended, atMs: 60_000, diskFullFromMs: 55_000 };
    expect(rulesOf([...told, longAfter], { listed })).toEqual(['result_lost', 'unexplained_doubt']);
    expect(rulesOf([...fine, { ...killed, how: STORE_FAILED }])).toEqual(['gateway_failed']);
    expect(rulesOf([...fine, { ...ended, how: HUNG }])).toEqual(['gateway_failed']);
  });

  it('takes a key for resolved when its merchant is told so', () => {
    const stored = problem('response_not_stored');
    const told = [
      { scope: SCOPE, as: 'settled' as const, ended: stored, refusal: undefined },
      { scope: SCOPE, as: 'released' as const, ended: result(), refusal: undefined },
    ];
    expect(rulesOf(fine, { resolved: told })).toEqual([]);
    const refused = told.map((one) => ({ ...one, refusal: '409 alive' }));
    expect(rulesOf(fine, { resolved: refused })).toEqual(['unresolvable', 'unresolvable']);
  });

  it('takes an answer that frees the key for no result', () => {
    const events = [...call(0, result('free', { status: 429 })), ...call(1000, result()), ...last(result())];
    expect(rulesOf(events)).toEqual([]);
  });
});
