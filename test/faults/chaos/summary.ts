import { callsOf, type Evidence, nameOfEntry, quantile, RULES, type Violation } from './checker.ts';
import { isCompleted, isInDoubt } from './merchants.ts';
import { growthOf } from './samples.ts';

export interface RunFacts {
  seed: number;
  store: string;
  unsafe: string | undefined;
  seconds: number;
  /** The folder of history and logs. */
  folder: string;
  /** How often each fault was injected. */
  faults: Record<string, number>;
  /** Faults that the machine did not allow. */
  missing: readonly string[];
  keys: number;
}

/** The summary of a run, which is also written as JSON. */
export type Summary = ReturnType<typeof summaryOf>;

const SHOWN = 20;

export function summaryOf(run: RunFacts, evidence: Evidence, violations: readonly Violation[]) {
  const { events, payouts, recoveriesMs } = evidence;
  const calls = callsOf(events);
  const last = new Map(calls.filter(({ as }) => as === 'last').map(({ name, ended }) => [name, ended]));
  const inDoubt = [...last].filter(([, ended]) => isInDoubt(ended));
  const sent = sentKeys(evidence);
  const byRule: Record<string, number> = {};
  for (const { rule } of violations) byRule[rule] = (byRule[rule] ?? 0) + 1;
  const ms = (part: number) => Math.round(quantile(recoveriesMs, part));
  return {
    ...run,
    clean: violations.length === 0,
    calls: calls.length,
    /** How many payouts the ledger has. */
    payouts: payouts.length,
    replays: calls.filter(({ ended }) => ended.kind === 'result' && ended.replayed).length,
    /** After the run. */
    completed: [...last.values()].filter(isCompleted).length,
    inDoubt: inDoubt.length,
    /** How many of those no gateway had sent a byte of: the cost of a single write before the first byte. */
    neverSent: inDoubt.filter(([name]) => !sent.has(name)).length,
    /** How many of those in doubt operators resolved. */
    resolved: evidence.resolved.length,
    /** Gateways that were killed, or shut down. */
    gatewayDeaths: events.filter(({ event }) => event === 'gateway_died').length,
    /** For how long the whole machine ran nothing. */
    stalledMs: Math.round(events.reduce((sum, e) => sum + (e.event === 'stalled' ? e.forMs : 0), 0)),
    /** After a heal. */
    recoveryMs: { p50: ms(0.5), p99: ms(0.99), max: ms(1) },
    /** How memory and descriptors grow in a run without faults. */
    growth: growthOf(evidence.samples),
    violations: { total: violations.length, byRule, first: violations.slice(0, SHOWN) },
  };
}

/**
 * The keys of which a gateway sent the first byte before operators released some of them after the run.
 *
 * @throws if the ledger has a payout that no gateway sent: then the measurement is wrong
 */
function sentKeys({ events, payouts }: Evidence): Set<string> {
  const sent = events.filter((event) => event.event === 'sent');
  const ever = new Set(sent.map(({ name }) => name));
  const unseen = payouts.map(nameOfEntry).find((name) => !ever.has(name));
  if (unseen !== undefined) throw new Error(`the suite did not see that ${unseen} was sent`);
  const resolvedMs = callsOf(events).find(({ as }) => as === 'resolved')?.atMs ?? Number.POSITIVE_INFINITY;
  return new Set(sent.filter(({ atMs }) => atMs < resolvedMs).map(({ name }) => name));
}

const COLUMNS: Record<string, (summary: Summary) => string | number> = {
  store: ({ store, unsafe }) => (unsafe ? `${store} (${unsafe})` : store),
  keys: ({ keys }) => keys,
  calls: ({ calls }) => calls,
  'in doubt': ({ inDoubt }) => inDoubt,
  'never sent': ({ inDoubt, neverSent }) =>
    `${neverSent} (${((100 * neverSent) / Math.max(inDoubt, 1)).toFixed(1)} %)`,
  replays: ({ replays }) => replays,
  'gateway deaths': ({ gatewayDeaths }) => gatewayDeaths,
  violations: ({ violations }) => violations.total,
  'recovery p99 ms': ({ recoveryMs }) => recoveryMs.p99,
  seed: ({ seed }) => seed,
};

/** One table of several runs. */
export function markdownOf(summaries: readonly Summary[]): string {
  const names = Object.keys(COLUMNS);
  const rows = summaries.map((summary) => Object.values(COLUMNS).map((cell) => cell(summary)));
  const lines = [names, names.map((_, i) => (i === 0 ? '---' : '---:')), ...rows];
  return `${lines.map((cells) => `| ${cells.join(' | ')} |`).join('\n')}\n`;
}

/** The summary as text. */
export function tableOf(summary: Summary): string {
  const { seconds, payouts, completed, resolved, stalledMs, recoveryMs, violations } = summary;
  const rows: Record<string, unknown> = {
    ...Object.fromEntries(Object.entries(COLUMNS).map(([name, cell]) => [name, cell(summary)])),
    ...{ seconds, 'payouts in the ledger': payouts, 'completed after the run': completed },
    ...{ 'resolved by operators': resolved, 'ms in which the machine stood still': stalledMs },
    'recovery p50 / p99 / max ms': Object.values(recoveryMs).join(' / '),
  };
  for (const { gateway, figure, second, last, verdict } of summary.growth)
    rows[`gateway ${gateway}: ${figure}, second quarter to last`] = `${second} to ${last}: ${verdict}`;
  for (const [name, count] of Object.entries(summary.faults)) rows[`fault: ${name}`] = count;
  for (const [rule, says] of Object.entries(RULES)) rows[`rule: ${says}`] = violations.byRule[rule] ?? 0;
  const width = Math.max(...Object.keys(rows).map((name) => name.length));
  const lines = Object.entries(rows).map(([name, value]) => `${name.padEnd(width)}  ${value}`);
  const first = violations.first.map(({ rule, name, detail }) => `VIOLATION ${rule}: ${name}: ${detail}`);
  const missing = summary.missing.map((fault) => `NOT TESTED on this machine: ${fault}`);
  const verdict = summary.clean ? 'clean: no violation' : `${violations.total} violations`;
  return [...lines, ...missing, ...first, verdict, ''].join('\n');
}
