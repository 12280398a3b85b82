import { type Ended, type Event, STORE_FAILED, type StopsSettling } from './history.ts';
import { isInDoubt, isSettled, LOSSY_FAULTS } from './merchants.ts';

export interface LedgerEntry {
  merchant: string;
  idempotency_key: string | null;
}

/** Everything that the checker looks at. */
export interface Evidence {
  events: readonly Event[];
  payouts: readonly LedgerEntry[];
  /** The books of the backend add up. */
  balanced: boolean;
  /** Scopes that the operators are shown as in doubt, at the end. */
  listed: ReadonlySet<string>;
  /** What operators made of keys in doubt, after the last calls. */
  resolved: readonly Resolved[];
  /** Of each key that was open when a fault was healed: how long it took until its merchant knew. */
  recoveriesMs: readonly number[];
  recoverWithinMs: number;
  /** Replicas take the store's place: what was read from it can have been lost since. */
  failsOver: boolean;
}

/** A resolution, and what the merchant was told after it. */
export interface Resolved {
  scope: string;
  as: 'settled' | 'released';
  ended: Ended;
  /** Why the resolution itself was refused. */
  refusal: string | undefined;
}

export interface Violation {
  rule: keyof typeof RULES;
  /** Merchant and key, or whom else it concerns. */
  scope: string;
  detail: string;
}

export const RULES = {
  paid_twice: 'at most one ledger entry for a merchant and a key',
  answers_differ: 'every settled answer for a key is the same, byte for byte',
  paid_nothing: 'every 2xx answer has its ledger entry',
  result_lost:
    'a key that was answered with a result is not in doubt afterwards, except until the store is back that failed as it was told',
  foreign_answer: "nobody gets another one's answer",
  key_reused: 'another payout under a used key is refused',
  stuck: 'at the end each key is settled or in doubt',
  unlisted_doubt: 'each key in doubt is shown to the operators',
  unresolvable: 'operators can resolve each key in doubt, and merchants are told so',
  unexplained_doubt: "a key is in doubt only where the backend's answer was lost or its gateway died",
  slow_recovery: 'after a fault is healed merchants know in time: a lease and two seconds (p99)',
  gateway_failed: 'no gateway ends by itself, unless its disk is full',
  unbalanced: "the backend's books add up",
} as const;

/** Time from a call to the loss that can explain its doubt: waiting, executing, and a pause. */
const EXPLAINED_WITHIN_MS = 15_000;
/** A gateway may take so long to reach a store that is well again. */
const STORE_BACK_WITHIN_MS = 1500;
/** ... and to store what it has told meanwhile: it tries once a second. */
const STORED_WITHIN_MS = 3000;

type Death = Extract<Event, { event: 'gateway_died' }>;
type Loss = Extract<Event, { event: 'backend_lost' }> | Death;

/** What went wrong around the calls. */
interface World {
  faults: readonly FaultSpan[];
  losses: readonly Loss[];
  failsOver: boolean;
}

interface Call {
  start: Extract<Event, { event: 'call' }>;
  end?: { atMs: number; ended: Ended };
}

/** Compares what merchants were told with what was paid. Pure: the same evidence gives the same verdict. */
export function check(evidence: Evidence): Violation[] {
  const scopes = callsByScope(evidence.events);
  const paid = countByScope(evidence.payouts);
  const found: Violation[] = [];
  for (const [scope, count] of paid) {
    if (count > 1) found.push({ rule: 'paid_twice', scope, detail: `${count} ledger entries` });
  }
  const losses = evidence.events.filter(isLoss);
  const world = { faults: spansOf(evidence.events), losses, failsOver: evidence.failsOver };
  for (const [scope, calls] of scopes) {
    for (const [rule, detail] of violationsOf(calls, paid.get(scope) ?? 0, world))
      found.push({ rule, scope, detail });
    found.push(...doubtsOf(scope, calls, evidence.listed, losses));
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

/** What a key's calls tell by themselves. */
function* violationsOf(
  calls: readonly Call[],
  paid: number,
  world: World,
): Generator<[Violation['rule'], string]> {
  const own = calls.filter(({ start }) => start.as !== 'other_amount' && start.as !== 'resolved');
  const settled = own.flatMap(({ end }) => (end && isSettled(end.ended) ? [end] : []));
  const digests = new Set(settled.map(({ ended }) => (ended.kind === 'result' ? ended.digest : '')));
  if (digests.size > 1) yield ['answers_differ', `${digests.size} different answers`];
  const succeeded = settled.some(({ ended }) => ended.kind === 'result' && ended.status < 300);
  if (succeeded && paid === 0) yield ['paid_nothing', 'a 2xx answer, and no ledger entry'];
  const lost = lostResult(own, world);
  if (lost) yield ['result_lost', lost];
  if (calls.some(({ end }) => end && 'foreign' in end.ended && end.ended.foreign))
    yield ['foreign_answer', "an answer with another payout's account"];
  const taken = calls.find(({ start, end }) => start.as === 'other_amount' && end?.ended.kind === 'result');
  if (taken) yield ['key_reused', `answered ${JSON.stringify(taken.end?.ended)}`];
}

/**
 * A result is stored before it is told, but for one case: the store fails at that very moment, for longer than
 * `settleRetryMs`, to all or to the gateway that told it. Then the key is in doubt to others until all is healed; for good
 * only where that gateway was killed before, or could not write to its disk.
 */
function lostResult(own: readonly Call[], { faults, losses, failsOver }: World): string | undefined {
  const settled = own.filter(({ end }) => end && isSettled(end.ended));
  const known = settled.reduce<Call | undefined>(
    (first, call) => ((call.end?.atMs ?? 0) < (first?.end?.atMs ?? Number.POSITIVE_INFINITY) ? call : first),
    undefined,
  );
  const knownAtMs = known?.end?.atMs;
  if (known === undefined || knownAtMs === undefined) return undefined;
  // A replay is what the store had, and comes from another gateway than the one that has executed.
  const replayed = known.end?.ended.kind === 'result' && known.end.ended.replayed;
  const owners = replayed ? own.filter(({ start }) => start.atMs <= knownAtMs) : [known];
  const isStored = replayed && !failsOver;
  const storedByMs = isStored ? knownAtMs : storedBy(known.start.atMs, knownAtMs, faults);
  const tookItAlong = losses.some(
    (loss) =>
      !isStored &&
      loss.event === 'gateway_died' &&
      owners.some(({ start }) => isOf(loss, start)) &&
      (loss.atMs <= storedByMs || (loss.diskFullFromMs !== undefined && loss.diskFullFromMs <= knownAtMs)),
  );
  const lost = own.find(({ start, end }) => {
    // At the end it has to be stored, whatever stood shortly before.
    const fromMs = start.as === 'last' ? knownAtMs : Math.max(knownAtMs, storedByMs);
    return start.atMs > fromMs && end !== undefined && isInDoubt(end.ended);
  });
  if (!lost || tookItAlong) return undefined;
  return `in doubt at ${lost.end?.atMs} ms, answered at ${knownAtMs} ms`;
}

/** When a result surely is stored that was told in this time: before it was told, unless the store failed. */
function storedBy(fromMs: number, toldAtMs: number, faults: readonly FaultSpan[]): number {
  let byMs = Number.NEGATIVE_INFINITY;
  for (const fault of faults) {
    const asTold =
      fault.stops === 'everywhere' && fault.fromMs <= toldAtMs && fault.toMs + STORE_BACK_WITHIN_MS >= fromMs;
    // The next one may come before it was stored; and a gateway may be held up besides.
    if (asTold || fault.fromMs <= byMs) byMs = Math.max(byMs, fault.toMs + STORED_WITHIN_MS);
  }
  return byMs;
}

/** What became of the key in the end. */
function* doubtsOf(
  scope: string,
  calls: readonly Call[],
  listed: ReadonlySet<string>,
  losses: readonly Loss[],
): Generator<Violation> {
  const last = calls.findLast(({ start }) => start.as === 'last')?.end?.ended;
  if (last && isInDoubt(last)) {
    if (!listed.has(scope)) yield { rule: 'unlisted_doubt', scope, detail: 'in doubt and not listed' };
    if (!isExplained(calls, losses)) {
      yield { rule: 'unexplained_doubt', scope, detail: 'nothing was lost that could explain it' };
    }
  } else if (!last || !isSettled(last)) {
    yield { rule: 'stuck', scope, detail: `the last answer was ${JSON.stringify(last)}` };
  }
}

/** A released key is new, and is executed; one that was settled without a response is never executed again. */
function unresolved({ scope, as, ended, refusal }: Resolved): Violation[] {
  const told =
    as === 'released' ? isSettled(ended) : ended.kind === 'problem' && ended.code === 'response_not_stored';
  if (told && refusal === undefined) return [];
  return [{ rule: 'unresolvable', scope, detail: `${as}: ${refusal ?? JSON.stringify(ended)}` }];
}

/** When a fault stood that stops settling. */
interface FaultSpan {
  name: string;
  stops: StopsSettling;
  fromMs: number;
  toMs: number;
}

/** In the order in which they began. */
function spansOf(events: readonly Event[]): FaultSpan[] {
  const spans: FaultSpan[] = [];
  for (const event of events) {
    if (event.event === 'fault' && event.stopsSettling !== undefined) {
      const { name, stopsSettling, atMs } = event;
      spans.push({ name, stops: stopsSettling, fromMs: atMs, toMs: Number.POSITIVE_INFINITY });
    }
    if (event.event === 'healed') {
      const span = spans.findLast(
        ({ name, toMs }) => name === event.name && toMs === Number.POSITIVE_INFINITY,
      );
      if (span) span.toMs = event.atMs;
    }
  }
  return spans;
}

/** Whether what it executed may be in doubt: it was killed, or its disk was full, and it could not settle. */
const isLossy = ({ how, diskFullFromMs }: Death): boolean =>
  how === 'SIGKILL' || (how === STORE_FAILED && diskFullFromMs !== undefined);

const isLoss = (event: Event): event is Loss =>
  event.event === 'backend_lost' || (event.event === 'gateway_died' && isLossy(event));

/** Whether the process died that had been called, and after that. */
const isOf = (death: Death, call: Call['start']): boolean =>
  death.gateway === call.gateway && death.life === call.life && death.atMs >= call.atMs;

function isExplained(calls: readonly Call[], losses: readonly Loss[]): boolean {
  return calls.some(
    ({ start }) =>
      LOSSY_FAULTS.has(start.fault ?? '') ||
      losses.some((loss) => {
        if (loss.event === 'gateway_died' && !isOf(loss, start)) return false;
        const fromMs = 'diskFullFromMs' in loss ? (loss.diskFullFromMs ?? loss.atMs) : loss.atMs;
        return loss.atMs >= start.atMs && fromMs <= start.atMs + EXPLAINED_WITHIN_MS;
      }),
  );
}

function* ofTheRun({ events, balanced, recoveriesMs, recoverWithinMs }: Evidence): Generator<Violation> {
  for (const event of events) {
    if (event.event !== 'gateway_died' || event.how === '0' || isLossy(event)) continue;
    yield { rule: 'gateway_failed', scope: `gateway ${event.gateway}`, detail: `it ended with ${event.how}` };
  }
  if (!balanced) yield { rule: 'unbalanced', scope: 'ledger', detail: 'debits and credits differ' };
  const p99Ms = quantile(recoveriesMs, 0.99);
  if (p99Ms > recoverWithinMs) {
    yield { rule: 'slow_recovery', scope: 'merchants', detail: `p99 ${Math.round(p99Ms)} ms` };
  }
}

/** 0 where there is nothing. */
export function quantile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}
