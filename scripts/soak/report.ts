import { type Facts, isWarm, type Quarters } from './judge.ts';
import type { Counts } from './load.ts';
import type { SoakOptions } from './options.ts';
import type { Sample } from './samples.ts';

export interface Report extends Facts {
  options: SoakOptions;
  rate: number;
  /** Requests a second; undefined if the rate was given. */
  maxRate: number | undefined;
  latency: { p50: number; p99: number; max: number };
  quarters: Quarters;
  violations: string[];
}

const mib = (bytes: number): string => `${(bytes / 1024 / 1024).toFixed(0)} MiB`;
const sum = (counts: Record<string, number>): number => Object.values(counts).reduce((a, b) => a + b, 0);

export function progressLine(sample: Sample, counts: Counts): string {
  const { rssBytes, anonymousBytes, heapUsedBytes, eventLoopLagP99Ms, descriptors } = sample;
  return [
    `${(sample.atMs / 1000).toFixed(0).padStart(6)} s`,
    `${counts.sent} requests, ${sum(counts.wrong)} wrong`,
    `rss ${mib(rssBytes)} (anonymous ${mib(anonymousBytes)}), heap ${mib(heapUsedBytes)}`,
    `lag p99 ${eventLoopLagP99Ms} ms`,
    `fd ${descriptors}, in flight ${sample.inFlight}, pending writes ${sample.pendingWrites}`,
  ].join(' | ');
}

export function describeRun(report: Report): string {
  const { counts, ledger, latency, quarters, samples, violations } = report;
  const grown = (name: keyof Quarters['second']) =>
    `${mib(quarters.second[name])} -> ${mib(quarters.last[name])}`;
  const worst = (name: 'eventLoopLagP99Ms' | 'inFlight' | 'pendingWrites' | 'descriptors') =>
    samples.reduce((most, sample) => Math.max(most, sample[name]), 0);
  const judged = (name: 'heapUsedBytes' | 'anonymousBytes') =>
    `${grown(name)}${isWarm(samples, name) ? '' : ' (not judged: the run is all warm-up)'}`;
  const rows: [string, string | number][] = [
    ['store, minutes', `${report.options.store}, ${report.options.minutes}`],
    ['rate (requests a second)', `${report.rate}, of at most ${report.maxRate ?? 'not measured'}`],
    ['requests', counts.sent],
    ['balances, payouts, replays', `${counts.balances}, ${counts.payouts}, ${counts.replays}`],
    ['wrong answers', sum(counts.wrong)],
    ['latency p50, p99, max (ms)', `${latency.p50}, ${latency.p99}, ${latency.max}`],
    ['payouts in the ledger', `${ledger.payouts}, ${ledger.duplicateKeys.length} keys paid more than once`],
    ['anonymous memory, 2nd quarter -> last', judged('anonymousBytes')],
    ['lowest heap, 2nd quarter -> last', judged('heapUsedBytes')],
    ['rss, 2nd quarter -> last', grown('rssBytes')],
    ['event loop lag p99, worst (ms)', worst('eventLoopLagP99Ms')],
    ['in flight, pending writes (highest)', `${worst('inFlight')}, ${worst('pendingWrites')}`],
    [
      'file descriptors (before, highest, after)',
      `${report.descriptorsBefore}, ${worst('descriptors')}, ${report.descriptorsAfter}`,
    ],
    ['exit code of the gateway', `${report.exitCode}`],
  ];
  const table = rows.map(([name, value]) => `${name.padEnd(38)} ${value}`).join('\n');
  const verdict =
    violations.length === 0 ? 'passed' : `FAILED\n${violations.map((v) => `  - ${v}`).join('\n')}`;
  return `\n${table}\n\n${verdict}`;
}
