import type { Ended, Event } from './history.ts';
import { type Call, type Death, isOf, type Loss, lostResult, spansOf, type World } from './lost-results.ts';
import { isCompleted, isInDoubt, LOSSY_FAULTS } from './merchants.ts';
import { growthOf, type Sample } from './samples.ts';

export interface LedgerEntry {
  merchant: string;
  idempotency_key: string | null;
}

/** The evidence of a run. */
export interface Evidence {
  events: readonly Event[];
  payouts: readonly LedgerEntry[];
  /** Scopes that `oncegate records list --in-doubt` shows after the last calls. */
  listed: ReadonlySet<string>;
  /** The resolutions of keys in doubt by operators, after the last calls. */
  resolved: readonly Resolved[];
  /** Scopes without a last call, because their records may have expired. */
  unasked: ReadonlySet<string>;
  /** For each key that was open when a fault was healed: the time until its merchant got a final answer. */
  recoveriesMs: readonly number[];
  recoverWithinMs: number;
  /** A replica may replace the store, so a record that was read may have been lost since. */
  failsOver: boolean;
  /** Of a run without faults; otherwise empty. */
  samples: readonly Sample[];
}

/** A resolution, and the answer that its merchant got after it. */
export interface Resolved {
  scope: string;
  as: 'completed' | 'released';
  ended: Ended;
  /** Why the resolution was refused. */
  refusal: string | undefined;
}

export interface Violation {
  rule: keyof typeof RULES;
  /** Merchant and key, or the gateway or ledger that it concerns. */
  scope: string;
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
  const scopes = callsByScope(evidence.events);
  const paid = countByScope(evidence.payouts);
  const found: Violation[] = [];
  for (const [scope, count] of paid) {
    if (count > 1) found.push({ rule: 'paid_twice', scope, detail: `${count} ledger entries` });
  }
  const losses = evidence.events.filter(isLoss);
  const stalls = evidence.events.filter((event) => event.event === 'stalled');
  const world = { faults: spansOf(evidence.events), losses, failsOver: evidence.failsOver };
  for (const [scope, calls] of scopes) {
    for (const [rule, detail] of violationsOf(calls, paid.get(scope) ?? 0, world))
      found.push({ rule, scope, detail });
    if (!evidence.unasked.has(scope))
      found.push(...doubtsOf(scope, calls, evidence.listed, [...losses, ...stalls]));
  }
  return [...found, ...evidence.resolved.flatMap(unresolved), ...ofTheRun(evidence)];
}

function callsByScope(events: readonly Event[]): Map<string, Call[]> {
  const byId = new Map<number, Call>();
  const scopes = new Map<string, Call[]>();
  for (const event of events) {
    if (event.event === 'call') {
      const call: Call = { start: event };
      byId.set(event.id, call);
      const calls = scopes.get(event.scope);
      if (calls) calls.push(call);
      else scopes.set(event.scope, [call]);
    }
    if (event.event === 'ended') {
      const call = byId.get(event.id);
      if (call) call.end = event;
    }
  }
  return scopes;
}

export const scopeOfEntry = ({ merchant, idempotency_key }: LedgerEntry): string =>
  `${merchant} ${idempotency_key}`;

function countByScope(payouts: readonly LedgerEntry[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const entry of payouts) {
    const scope = scopeOfEntry(entry);
    counts.set(scope, (counts.get(scope) ?? 0) + 1);
  }
  return counts;
}

/** The violations that the calls of one key show. */
function* violationsOf(
  calls: readonly Call[],
  paid: number,
  world: World,
): Generator<[Violation['rule'], string]> {
  const own = calls.filter(({ start }) => start.as !== 'other_amount' && start.as !== 'resolved');
  const completed = own.flatMap(({ end }) => (end && isCompleted(end.ended) ? [end] : []));
  const digests = new Set(completed.map(({ ended }) => (ended.kind === 'result' ? ended.digest : '')));
  if (digests.size > 1) yield ['answers_differ', `${digests.size} different answers`];
  const succeeded = completed.some(({ ended }) => ended.kind === 'result' && ended.status < 300);
  if (succeeded && paid === 0) yield ['paid_nothing', 'a 2xx answer, and no ledger entry'];
  const lost = lostResult(own, world);
  if (lost) yield ['result_lost', lost];
  if (calls.some(({ end }) => end && 'foreign' in end.ended && end.ended.foreign))
    yield ['foreign_answer', "an answer with another payout's account"];
  const taken = calls.find(({ start, end }) => start.as === 'other_amount' && end?.ended.kind === 'result');
  if (taken) yield ['key_reused', `answered ${JSON.stringify(taken.end?.ended)}`];
}

/** The violations in the final state of the key. */
function* doubtsOf(
  scope: string,
  calls: readonly Call[],
  listed: ReadonlySet<string>,
  causes: readonly (Loss | Stall)[],
): Generator<Violation> {
  const last = calls.findLast(({ start }) => start.as === 'last')?.end?.ended;
  if (last && isInDoubt(last)) {
    if (!listed.has(scope)) yield { rule: 'unlisted_doubt', scope, detail: 'in doubt and not listed' };
    if (!isExplained(calls, causes)) {
      yield { rule: 'unexplained_doubt', scope, detail: 'nothing was lost that could explain it' };
    }
  } else if (!last || !isCompleted(last)) {
    yield { rule: 'stuck', scope, detail: `the last answer was ${JSON.stringify(last)}` };
  }
}

/** A released key is executed by the next retry. A key that was completed without a response is never executed again. */
function unresolved({ scope, as, ended, refusal }: Resolved): Violation[] {
  const isSeen =
    as === 'released' ? isCompleted(ended) : ended.kind === 'problem' && ended.code === 'response_not_stored';
  if (isSeen && refusal === undefined) return [];
  return [{ rule: 'unresolvable', scope, detail: `${as}: ${refusal ?? JSON.stringify(ended)}` }];
}

type Stall = Extract<Event, { event: 'stalled' }>;

/** Whether a process died in a way that may leave its keys in doubt. */
const isLossy = ({ how }: Death): boolean => how === 'SIGKILL';

const isLoss = (event: Event): event is Loss =>
  event.event === 'backend_lost' || (event.event === 'gateway_died' && isLossy(event));

function isExplained(calls: readonly Call[], causes: readonly (Loss | Stall)[]): boolean {
  return calls.some(
    ({ start }) =>
      LOSSY_FAULTS.has(start.fault ?? '') ||
      causes.some((cause) => {
        if (cause.event === 'gateway_died' && !isOf(cause, start)) return false;
        const endMs = cause.atMs + (cause.event === 'stalled' ? cause.forMs : 0);
        return endMs >= start.atMs && cause.atMs <= start.atMs + EXPLAINED_WITHIN_MS;
      }),
  );
}

function* ofTheRun(evidence: Evidence): Generator<Violation> {
  const { events, recoveriesMs, recoverWithinMs, samples } = evidence;
  for (const event of events) {
    if (event.event !== 'gateway_died' || isLossy(event) || (event.how === '0' && !event.unasked)) continue;
    yield {
      rule: 'gateway_failed',
      scope: `gateway ${event.gateway}`,
      detail: `it exited with ${event.how}`,
    };
  }
  const p99Ms = quantile(recoveriesMs, 0.99);
  if (p99Ms > recoverWithinMs) {
    yield { rule: 'slow_recovery', scope: 'merchants', detail: `p99 ${Math.round(p99Ms)} ms` };
  }
  for (const { gateway, figure, second, last, verdict } of growthOf(samples))
    if (verdict === 'grew')
      yield { rule: 'grows', scope: `gateway ${gateway}`, detail: `${figure}: ${second} to ${last}` };
}

/** 0 for an empty list. */
export function quantile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}
