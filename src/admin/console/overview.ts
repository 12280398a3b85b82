import type {
  Counted,
  Doubts,
  Lately,
  OutcomeGroup,
  Overview,
  Percentiles,
  Sample,
} from '../../console/contract.ts';
import type { Clock } from '../../lib/clock.ts';
import { thisBuild } from '../../lib/program.ts';
import type { Mode } from '../../store/types.ts';
import type { AllMetrics } from '../../telemetry/metrics.ts';
import { percentileBetween } from '../../telemetry/series.ts';
import type { Check } from '../source.ts';

export const EVERY_MS = 5000;
/** An hour of samples, and the one before. */
export const MOST_KEPT = 721;
/** How late a count of the keys in doubt may be before it needs attention. */
const COUNT_LATE_MS = 15_000;

/** What the page calls the last minute. */
const LATELY_MS = 60_000;

/** Every outcome that is not listed is `refused`: those are the problem codes that blame the request. */
const GROUPS: Readonly<Record<string, OutcomeGroup>> = {
  ...{ executed: 'executed', replayed: 'replayed', outcome_unknown: 'unknown' },
  ...{ forwarded: 'passedOn', passed_through: 'passedOn', upgraded: 'passedOn' },
  ...{ released: 'notServed', merchant_gone: 'notServed', store_unavailable: 'notServed' },
  ...{ upstream_unreachable: 'notServed', overloaded: 'notServed', shutting_down: 'notServed' },
  ...{ internal_error: 'notServed' },
};

/** Those of `refused` that blame the secret key. */
const OF_KEYS = new Set(['missing_credentials', 'invalid_key', 'insufficient_scope']);

/** Below this share of results the state is a warning, and below the other one merchants are not served. */
const SHARE = { warning: 0.99, failing: 0.5 };
/** Of fewer requests than this, the share says too little to be a failure. */
const LEAST_DUE = 5;

interface OverviewParts {
  mode: Mode;
  countDoubtsEveryMs: number;
  metrics: AllMetrics;
  checks(): Promise<Check[]>;
  clock: Clock;
}

/**
 * What the console shows first. Samples the metrics every five seconds, whether somebody looks or not, and keeps those of the
 * last hour.
 */
export class OverviewSource {
  readonly #parts: OverviewParts;
  readonly #startedMs: number;
  readonly #kept: Sample[] = [];
  /** The fine buckets of each histogram at the last sample. */
  readonly #fine = new Map<string, number[]>();
  #timer: NodeJS.Timeout | undefined;

  constructor(parts: OverviewParts) {
    this.#parts = parts;
    this.#startedMs = parts.clock.monotonicMs();
  }

  begin(): void {
    // Without a sample the charts lack a point. That must not end the process.
    const take = () => void this.take().catch(() => {});
    take();
    this.#timer = setInterval(take, EVERY_MS).unref();
  }

  end(): void {
    clearInterval(this.#timer);
  }

  async take(): Promise<void> {
    const { metrics } = this.#parts;
    const counted = await this.#count();
    const { keys, isLate } = await this.#doubts();
    this.#kept.push({
      ...{ ...counted, inDoubt: isLate ? null : keys },
      answerMs: this.#percentilesOf('requestSeconds'),
      gatewayMs: this.#percentilesOf('gatewaySeconds'),
      backendMs: this.#percentilesOf('upstreamSeconds'),
      inFlight: await sumOf(metrics.inFlight),
      waiting: await sumOf(metrics.waiting),
    });
    if (this.#kept.length > MOST_KEPT) this.#kept.shift();
  }

  /** @param afterMs leaves out the samples until this time, which the page has */
  async read(afterMs: number): Promise<Overview> {
    const { mode, clock } = this.#parts;
    const checks = await this.#parts.checks();
    const doubts = await this.#doubts();
    const now = await this.#count();
    const before = this.#kept.findLast(({ upMs }) => upMs <= now.upMs - LATELY_MS) ?? this.#kept[0];
    const lately = before && before.upMs < now.upMs ? between(before, now) : null;
    const served = stateOf(lately);
    const longInFlight = await sumOf(this.#parts.metrics.slotsHeldLong);
    const hasSeenNone = Object.values(now.requests).every((ended) => ended === 0);
    const needsAttention =
      served !== 'ok' ||
      longInFlight > 0 ||
      mode === 'observe' ||
      (doubts.keys ?? 0) > 0 ||
      doubts.isLate ||
      checks.some(({ warnings = [] }) => warnings.length > 0);
    const isFailing = served === 'failing' || checks.some(({ ok }) => !ok);
    return {
      ...{ nowAt: new Date(clock.wallMs()).toISOString(), upMs: now.upMs, checks, doubts, mode, lately },
      state: isFailing ? 'failing' : needsAttention ? 'warning' : hasSeenNone ? 'unknown' : 'ok',
      longInFlight,
      samples: this.#kept.filter((sample) => sample.upMs > afterMs),
      build: thisBuild(),
    };
  }

  /** What was counted since the start. */
  async #count(): Promise<Counted> {
    const { metrics } = this.#parts;
    const upMs = this.#upMs();
    const requests = { executed: 0, replayed: 0, passedOn: 0, unknown: 0, refused: 0, notServed: 0 };
    let keysRefused = 0;
    for (const { labels, value } of (await metrics.requests.get()).values) {
      const outcome = String(labels.outcome);
      requests[GROUPS[outcome] ?? 'refused'] += value;
      if (OF_KEYS.has(outcome)) keysRefused += value;
    }
    return { upMs, requests, keysRefused, backendErrors: metrics.backendErrors };
  }

  /** Of the time since the sample before. Requests that were not sent do not count as the backend's. */
  #percentilesOf(name: 'requestSeconds' | 'gatewaySeconds' | 'upstreamSeconds'): Percentiles | null {
    const counts = this.#parts.metrics[name].fineCounts(
      (labels) => !('result' in labels && labels.result === 'not_sent'),
    );
    const before = this.#fine.get(name) ?? [];
    this.#fine.set(name, counts);
    const [half, most] = [0.5, 0.99].map((share) => percentileBetween(before, counts, share));
    return half === undefined || most === undefined ? null : { half: half * 1000, most: most * 1000 };
  }

  #upMs(): number {
    return Math.round(this.#parts.clock.monotonicMs() - this.#startedMs);
  }

  /** The keys in doubt, once they have been counted. Until then their gauges are 0, which says nothing about the store. */
  async #doubts(): Promise<Doubts> {
    const { metrics, countDoubtsEveryMs, clock } = this.#parts;
    metrics.readGauges();
    const countedMs = (await sumOf(metrics.doubtsCounted)) * 1000;
    const ageMs = countedMs === 0 ? this.#upMs() : clock.wallMs() - countedMs;
    const isLate = ageMs > 2 * countDoubtsEveryMs + COUNT_LATE_MS;
    if (countedMs === 0) return { keys: null, oldestMs: null, countedAt: null, isLate };
    return {
      keys: await sumOf(metrics.keysInDoubt),
      oldestMs: Math.round((await sumOf(metrics.oldestInDoubt)) * 1000),
      countedAt: new Date(countedMs).toISOString(),
      isLate,
    };
  }
}

function between(before: Counted, now: Counted): Lately {
  const groups = Object.entries(now.requests) as [OutcomeGroup, number][];
  const requests = Object.fromEntries(
    groups.map(([group, count]) => [group, count - before.requests[group]]),
  ) as Counted['requests'];
  const backendErrors = now.backendErrors - before.backendErrors;
  // Replays say nothing of the backend: they would hide that it fails all that is new.
  const answered = requests.executed + requests.passedOn;
  return {
    ...{ ms: now.upMs - before.upMs, requests, backendErrors, results: answered - backendErrors },
    keysRefused: now.keysRefused - before.keysRefused,
    due: answered + requests.unknown + requests.notServed,
  };
}

/** What merchants get decides first: a gateway whose checks all pass can still leave every request without a result. */
function stateOf(lately: Lately | null): Overview['state'] {
  if (!lately) return 'ok';
  const { due, results, requests } = lately;
  if (due >= LEAST_DUE && results < SHARE.failing * due) return 'failing';
  const areMostRefused = requests.refused > due + requests.replayed;
  return results < SHARE.warning * due || areMostRefused ? 'warning' : 'ok';
}

const sumOf = async (gauge: AllMetrics['inFlight'] | AllMetrics['keysInDoubt']): Promise<number> =>
  (await gauge.get()).values.reduce((sum, { value }) => sum + value, 0);
