import type { Counts, Ledger } from './load.ts';
import type { Sample } from './samples.ts';

/** The findings by which a run is judged. */
export interface Facts {
  samples: readonly Sample[];
  counts: Counts;
  ledger: Ledger;
  quiet: boolean;
  descriptorsBefore: number;
  descriptorsAfter: number;
  exitCode: number | string | null;
}

/** Memory in the second quarter of the run, and in the last. */
export interface Quarters {
  second: Usage;
  last: Usage;
}

export interface Usage {
  /** Medians. */
  rssBytes: number;
  anonymousBytes: number;
  /** The lowest values. Just after a garbage collection, only live objects remain. */
  heapUsedBytes: number;
}

const MAX_GROWTH = 1.1;
/**
 * How late the second quarter must begin for a memory figure to be judged by it. The heap needs some garbage collections.
 * Anonymous memory grows for minutes, because V8 and the allocator take it from the system and keep it.
 */
const WARM_AFTER_MS = { heapUsedBytes: 15_000, anonymousBytes: 120_000 } as const;
/** Garbage that the collector may leave for a while, regardless of the size of the process. */
const NOISE_BYTES = 8 * 1024 * 1024;

export function quarters(samples: readonly Sample[]): Quarters {
  const part = (from: number, to: number) =>
    samples.slice(Math.floor(from * samples.length), Math.ceil(to * samples.length));
  return { second: usageOf(part(0.25, 0.5)), last: usageOf(part(0.75, 1)) };
}

/** One line for each violation. */
export function judge(facts: Facts): string[] {
  return [...wrongAnswers(facts), ...wrongLedger(facts), ...leftBehind(facts)];
}

function* wrongAnswers({ counts }: Facts): Generator<string> {
  for (const [what, times] of Object.entries(counts.wrong)) yield `${what}: ${times} times`;
  if (counts.balances === 0 || counts.payouts === 0) yield 'there was no load';
}

function* wrongLedger({ counts, ledger }: Facts): Generator<string> {
  if (ledger.duplicateKeys.length > 0) yield `${ledger.duplicateKeys.length} keys were paid more than once`;
  if (ledger.payouts !== counts.payouts)
    yield `${ledger.payouts} payouts in the ledger, ${counts.payouts} answered`;
  if (!ledger.balanced) yield 'the ledger is not balanced';
}

function* leftBehind(facts: Facts): Generator<string> {
  const { quiet, descriptorsBefore: before, descriptorsAfter: after, exitCode } = facts;
  if (!quiet) yield 'requests or writes were still open after the load';
  if (after > before) yield `${after - before} file descriptors more than before, at rest`;
  if (exitCode !== 0) yield `the gateway exited with ${exitCode}`;
  const { second, last } = quarters(facts.samples);
  for (const name of ['heapUsedBytes', 'anonymousBytes'] as const) {
    if (!isWarm(facts.samples, name)) continue;
    if (last[name] <= second[name] * MAX_GROWTH + NOISE_BYTES) continue;
    yield `${name} grew from ${second[name]} in the second quarter to ${last[name]} in the last`;
  }
}

/** Was the run long enough for this to be judged? */
export function isWarm(samples: readonly Sample[], name: keyof typeof WARM_AFTER_MS): boolean {
  return (samples[Math.floor(0.25 * samples.length)]?.atMs ?? 0) >= WARM_AFTER_MS[name];
}

function usageOf(samples: readonly Sample[]): Usage {
  const of = (name: 'rssBytes' | 'anonymousBytes') => median(samples.map((sample) => sample[name]));
  return {
    rssBytes: of('rssBytes'),
    anonymousBytes: of('anonymousBytes'),
    heapUsedBytes: Math.min(...samples.map(({ heapUsedBytes }) => heapUsedBytes)),
  };
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}
