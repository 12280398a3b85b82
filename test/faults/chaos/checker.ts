import type { Call, Ended, Event } from './history.ts';
import {
  type Death,
  type FaultSpan,
  isOf,
  lostResult,
  spansOf,
  storedBy,
  type World,
} from './lost-results.ts';
import { isCompleted, isInDoubt, isLossy } from './merchants.ts';
import { growthOf, type Sample } from './samples.ts';

export interface LedgerEntry {
  merchant: string;
  idempotency_key: string | null;
}

/** The evidence of a run. */
export interface Evidence {
  events: readonly Event[];
  payouts: readonly LedgerEntry[];
  /** The keys that `oncegate records list --in-doubt` shows after the last calls. */
  listed: ReadonlySet<string>;
  /** The resolutions of keys in doubt by operators, after the last calls. */
  resolved: readonly Resolved[];
  /** For each key that was open when a fault was healed: the time until its merchant got a final answer. */
  recoveriesMs: readonly number[];
  recoverWithinMs: number;
  /** A replica may replace the store, so a record that was read may have been lost since. */
  failsOver: boolean;
  /** The samples of a run without faults; otherwise none. */
  samples: readonly Sample[];
}

/** A resolution, and the answer that its merchant got after it. */
export interface Resolved {
  name: string;
  as: 'completed' | 'released';
  ended: Ended;
  /** Why the resolution was refused. */
  refusal: string | undefined;
}

export interface Violation {
  rule: keyof typeof RULES;
  /** Merchant and key, or the gateway or ledger that it concerns. */
  name: string;
  detail: string;
}

export const RULES = {
  paid_twice: 'at most one ledger entry for a merchant and a key',
  answers_differ: 'every completed answer for a key is the same, byte for byte',
  paid_nothing: 'every 2xx answer has its ledger entry',
  result_lost:
    'a key with an acknowledged result is not in doubt afterwards, except while its store fails and shortly after',
  foreign_answer: "no merchant gets another payout's answer",
  key_reused: 'another payout under a used key is refused',
  stuck: 'after the run each key is completed or in doubt',
  unlisted_doubt: 'each key in doubt is shown to the operators',
  unresolvable: 'operators can resolve each key in doubt, and merchants get the resolution',
  unexplained_doubt:
    "a key is in doubt only if the backend's answer was lost, its gateway died, or the whole machine stood still",
  slow_recovery: 'after a fault is healed, merchants get final answers within a lease and two seconds (p99)',
  gateway_failed: 'no gateway exits unasked, whatever its store does',
  grows: 'without faults, the memory and the descriptors of a gateway stay flat',
} as const;

/** The longest time between a call and a loss that explains its doubt: waiting, executing, and a pause. */
const EXPLAINED_WITHIN_MS = 15_000;

/** Compares the answers that merchants got with the ledger. Pure: the same evidence gives the same verdict. */
export function check(evidence: Evidence): Violation[] {
  const { events, payouts, listed, resolved, failsOver } = evidence;
  const paid = Map.groupBy(payouts, nameOfEntry);
  const deaths = events.filter((event) => event.event === 'gateway_died' && isKill(event)) as Death[];
  const losses = events.filter((event) => event.event === 'backend_lost' || event.event === 'stalled');
  const world = { faults: spansOf(events), deaths, failsOver };
  const found: Violation[] = [];
  for (const [name, entries] of paid) {
    if (entries.length > 1)
      found.push({ rule: 'paid_twice', name, detail: `${entries.length} ledger entries` });
  }
  for (const [name, calls] of Map.groupBy(callsOf(events), (call) => call.name)) {
    const shown = [
      ...answersOf(calls, paid.has(name), world),
      ...doubtsOf(calls, listed.has(name), [...deaths, ...losses], world.faults),
    ];
    for (const [rule, detail] of shown) found.push({ rule, name, detail });
  }
  return [...found, ...resolved.flatMap(unresolved), ...ofTheRun(evidence)];
}

export const callsOf = (events: readonly Event[]): Call[] => events.filter((event) => event.event === 'call');

export const nameOfEntry = ({ merchant, idempotency_key }: LedgerEntry): string =>
  `${merchant} ${idempotency_key}`;

/** Such a death may leave keys of the gateway in doubt. */
const isKill = ({ how }: Death): boolean => how === 'SIGKILL';

type Shown = Generator<[rule: Violation['rule'], detail: string]>;

/** The violations that the answers for one key show. */
function* answersOf(calls: readonly Call[], isPaid: boolean, world: World): Shown {
  const own = calls.filter(({ as }) => as !== 'other_amount' && as !== 'resolved');
  const results = own.flatMap(({ ended }) => (ended.kind === 'result' && isCompleted(ended) ? [ended] : []));
  const digests = new Set(results.map(({ digest }) => digest));
  if (digests.size > 1) yield ['answers_differ', `${digests.size} different answers`];
  if (!isPaid && results.some(({ status }) => status < 300))
    yield ['paid_nothing', 'a 2xx answer, and no ledger entry'];
  const lost = lostResult(own, world);
  if (lost) yield ['result_lost', lost];
  if (calls.some(({ ended }) => 'foreign' in ended && ended.foreign))
    yield ['foreign_answer', "an answer with another payout's account"];
  const taken = calls.find(({ as, ended }) => as === 'other_amount' && ended.kind === 'result');
  if (taken) yield ['key_reused', `answered ${JSON.stringify(taken.ended)}`];
}

/** The violations in the final state of a key. */
function* doubtsOf(
  calls: readonly Call[],
  isListed: boolean,
  causes: readonly Cause[],
  faults: readonly FaultSpan[],
): Shown {
  const last = calls.findLast(({ as }) => as === 'last')?.ended;
  if (last && isInDoubt(last)) {
    if (!isListed) yield ['unlisted_doubt', 'in doubt and not listed'];
    if (!calls.some((call) => isExplained(call, causes, faults)))
      yield ['unexplained_doubt', 'nothing was lost that could explain it'];
  } else if (!last || !isCompleted(last)) yield ['stuck', `the last answer was ${JSON.stringify(last)}`];
}

type Cause = Extract<Event, { event: 'backend_lost' | 'gateway_died' | 'stalled' }>;

function isExplained(call: Call, causes: readonly Cause[], faults: readonly FaultSpan[]): boolean {
  // A start that is to be taken back waits for the store as a result does.
  const untilMs = Math.max(call.atMs + EXPLAINED_WITHIN_MS, storedBy(call, faults));
  return (
    isLossy(call.fault) ||
    causes.some((cause) => {
      if (cause.event === 'gateway_died' && !isOf(cause, call)) return false;
      const endMs = cause.atMs + (cause.event === 'stalled' ? cause.forMs : 0);
      return endMs >= call.atMs && cause.atMs <= untilMs;
    })
  );
}

/** A released key is executed by the next retry. A key that was completed without a response is never executed again. */
function unresolved({ name, as, ended, refusal }: Resolved): Violation[] {
  const isSeen =
    as === 'released' ? isCompleted(ended) : ended.kind === 'problem' && ended.code === 'response_not_stored';
  if (isSeen && refusal === undefined) return [];
  return [{ rule: 'unresolvable', name, detail: `${as}: ${refusal ?? JSON.stringify(ended)}` }];
}

function* ofTheRun({ events, recoveriesMs, recoverWithinMs, samples }: Evidence): Generator<Violation> {
  for (const event of events) {
    if (event.event !== 'gateway_died' || isKill(event) || (event.how === '0' && !event.unasked)) continue;
    const name = `gateway ${event.gateway}`;
    yield { rule: 'gateway_failed', name, detail: `it exited with ${event.how}` };
  }
  const p99Ms = quantile(recoveriesMs, 0.99);
  if (p99Ms > recoverWithinMs)
    yield { rule: 'slow_recovery', name: 'merchants', detail: `p99 ${Math.round(p99Ms)} ms` };
  for (const { gateway, figure, second, last, verdict } of growthOf(samples))
    if (verdict === 'grew')
      yield { rule: 'grows', name: `gateway ${gateway}`, detail: `${figure}: ${second} to ${last}` };
}

/** 0 for an empty list. */
export function quantile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}
