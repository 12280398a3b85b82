import { type Evidence, quantile, RULES, scopeOfEntry, type Violation } from './checker.ts';
import { isCompleted, isInDoubt } from './merchants.ts';
import { type Growth, growthOf } from './samples.ts';

export interface RunFacts {
  seed: number;
  store: string;
  unsafe: string | undefined;
  tookMs: number;
  /** The folder of history and logs. */
  folder: string;
  /** How often each fault was injected. */
  faults: Record<string, number>;
  /** Faults that the machine did not allow. */
  missing: readonly string[];
  keys: number;
}

/** The summary of a run, which is also written as JSON. */
export interface Summary extends RunFacts {
  clean: boolean;
  calls: number;
  payouts: number;
  replays: number;
  completed: number;
  inDoubt: number;
  /** How many of those no gateway had sent a byte of: the cost of a single write before the first byte. */
  neverSent: number;
  /** How many of those were in flight in a gateway that the suite killed exactly between its start and its first byte. */
  neverSentAimed: number;
  /** How many of those in doubt operators resolved. */
  resolved: number;
  /** Keys without a last call, because their records may have expired. */
  unasked: number;
  /** Gateways that were killed, or shut down. */
  gatewayDeaths: number;
  /** For how long the whole machine ran nothing. */
  stalledMs: number;
  recoveryMs: { count: number; p50: number; p99: number; max: number };
  /** Of a run without faults. */
  growth: Growth[];
  violations: { total: number; byRule: Record<string, number>; first: Violation[] };
}

const SHOWN = 20;

export function summaryOf(run: RunFacts, evidence: Evidence, violations: readonly Violation[]): Summary {
  const { events, payouts, recoveriesMs } = evidence;
  const asLast = new Set(events.flatMap((e) => (e.event === 'call' && e.as === 'last' ? [e.id] : [])));
  const ended = events.flatMap((e) => (e.event === 'ended' ? [e] : []));
  const last = new Map(ended.flatMap((e) => (asLast.has(e.id) ? [[e.scope, e.ended] as const] : [])));
  const inDoubt = [...last].filter(([, how]) => isInDoubt(how));
  const sent = sentScopes(evidence);
  const neverSent = inDoubt.map(([scope]) => scope).filter((scope) => !sent.has(scope));
  const aimedAt = aimedScopes(evidence);
  const byRule: Record<string, number> = {};
  for (const { rule } of violations) byRule[rule] = (byRule[rule] ?? 0) + 1;
  const ms = (part: number) => Math.round(quantile(recoveriesMs, part));
  return {
    ...run,
    tookMs: Math.round(run.tookMs),
    clean: violations.length === 0,
    calls: ended.length,
    payouts: payouts.length,
    replays: ended.filter(
      ({ ended: { kind, ...end } }) => kind === 'result' && 'replayed' in end && end.replayed,
    ).length,
    completed: [...last.values()].filter(isCompleted).length,
    inDoubt: inDoubt.length,
    neverSent: neverSent.length,
    neverSentAimed: neverSent.filter((scope) => aimedAt.has(scope)).length,
    resolved: evidence.resolved.length,
    unasked: evidence.unasked.size,
    gatewayDeaths: events.filter(({ event }) => event === 'gateway_died').length,
    stalledMs: Math.round(events.reduce((sum, e) => sum + (e.event === 'stalled' ? e.forMs : 0), 0)),
    recoveryMs: { count: recoveriesMs.length, p50: ms(0.5), p99: ms(0.99), max: ms(1) },
    growth: growthOf(evidence.samples),
    violations: { total: violations.length, byRule, first: violations.slice(0, SHOWN) },
  };
}

/**
 * Scopes of which a gateway sent the first byte before operators released some of them after the run.
 *
 * @throws if the ledger has a payout that no gateway sent: then the measurement is wrong
 */
function sentScopes({ events, payouts }: Evidence): Set<string> {
  const ever = new Set<string>();
  const sent = new Set<string>();
  const released = new Set<string>();
  for (const event of events) {
    if (event.event === 'call' && event.as === 'resolved') released.add(event.scope);
    if (event.event !== 'sent') continue;
    ever.add(event.scope);
    if (!released.has(event.scope)) sent.add(event.scope);
  }
  const unseen = payouts.map(scopeOfEntry).find((scope) => !ever.has(scope));
  if (unseen !== undefined) throw new Error(`the suite did not see that ${unseen} was sent`);
  return sent;
}

/** Scopes with a call in flight in a gateway that the suite killed exactly at `after_start`. */
function aimedScopes({ events }: Evidence): Set<string> {
  const ends = new Map(events.flatMap((e) => (e.event === 'ended' ? [[e.id, e] as const] : [])));
  const deaths = events.flatMap((e) => (e.event === 'gateway_died' && e.at === 'after_start' ? [e] : []));
  const aimed = new Set<string>();
  for (const call of events) {
    if (call.event !== 'call') continue;
    const end = ends.get(call.id);
    if (end && end.ended.kind !== 'no_answer') continue;
    const endMs = end?.atMs ?? Number.POSITIVE_INFINITY;
    const { gateway, life, atMs } = call;
    // The call ends when the connection breaks, a moment before the process is seen to have died.
    const died = deaths.some(
      (death) =>
        death.gateway === gateway &&
        death.life === life &&
        atMs <= death.atMs &&
        endMs > death.atMs - NOTICED_WITHIN_MS,
    );
    if (died) aimed.add(call.scope);
  }
  return aimed;
}

const NOTICED_WITHIN_MS = 500;

/** The share of the keys in doubt, and the same without those whose gateway was killed exactly there. */
export function shareNeverSent({
  inDoubt,
  neverSent,
  neverSentAimed,
}: Pick<Summary, 'inDoubt' | 'neverSent' | 'neverSentAimed'>): string {
  const share = (part: number, all: number) => (all === 0 ? '0' : ((100 * part) / all).toFixed(1));
  const others = share(neverSent - neverSentAimed, inDoubt - neverSentAimed);
  return `${neverSent} (${share(neverSent, inDoubt)} %; ${neverSent - neverSentAimed} (${others} %) without kills aimed there)`;
}

/** The summary as text. */
export function tableOf(summary: Summary): string {
  const { recoveryMs, violations, unsafe, faults } = summary;
  const rows: [string, string | number][] = [
    ['store', unsafe ? `${summary.store} (${unsafe})` : summary.store],
    ['seed', summary.seed],
    ['seconds', Math.round(summary.tookMs / 1000)],
    ['keys', summary.keys],
    ['calls', summary.calls],
    ['payouts in the ledger', summary.payouts],
    ['replays', summary.replays],
    ['completed after the run', summary.completed],
    ['in doubt after the run', summary.inDoubt],
    ['of these never sent', shareNeverSent(summary)],
    ['of these resolved by operators', summary.resolved],
    ['without a last call, because their records may have expired', summary.unasked],
    ['gateway processes that exited', summary.gatewayDeaths],
    ['ms in which the machine stood still', summary.stalledMs],
    [
      'recovery after a heal, p50 / p99 / max ms',
      `${recoveryMs.p50} / ${recoveryMs.p99} / ${recoveryMs.max}`,
    ],
    ...summary.growth.map(({ gateway, figure, second, last, verdict }): [string, string] => [
      `gateway ${gateway}: ${figure}, second quarter to last`,
      `${second} to ${last}: ${verdict}`,
    ]),
    ...Object.entries(faults).map(([name, count]): [string, number] => [`fault: ${name}`, count]),
    ...Object.entries(RULES).map(([rule, says]): [string, number] => [
      `rule: ${says}`,
      violations.byRule[rule] ?? 0,
    ]),
  ];
  const width = Math.max(...rows.map(([name]) => name.length));
  const lines = rows.map(([name, value]) => `${name.padEnd(width)}  ${value}`);
  const first = violations.first.map(({ rule, scope, detail }) => `VIOLATION ${rule}: ${scope}: ${detail}`);
  const missing = summary.missing.map((fault) => `NOT TESTED on this machine: ${fault}`);
  const verdict = summary.clean ? 'clean: no violation' : `${violations.total} violations`;
  return [...lines, ...missing, ...first, verdict, ''].join('\n');
}
