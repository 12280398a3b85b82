import type { Doubts, OutcomeGroup, Overview, Sample } from '../../console/contract.ts';
import type { Clock } from '../../lib/clock.ts';
import { thisBuild } from '../../lib/program.ts';
import type { Mode } from '../../store/types.ts';
import type { Metrics } from '../../telemetry/metrics.ts';
import type { Check } from '../source.ts';

export const EVERY_MS = 5000;
/** An hour of samples, and the one before. */
export const MOST_KEPT = 721;
/** How late a count of the keys in doubt may be before it needs attention. */
const COUNT_LATE_MS = 15_000;

/** Every outcome that is not listed is `refused`: those are the problem codes that blame the request. */
const GROUPS: Readonly<Record<string, OutcomeGroup>> = {
  ...{ executed: 'executed', released: 'executed', forwarded: 'executed', passed_through: 'executed' },
  ...{ upgraded: 'executed', replayed: 'replayed', outcome_unknown: 'unknown', store_unavailable: 'failed' },
  ...{ upstream_unreachable: 'failed', overloaded: 'failed', shutting_down: 'failed' },
  ...{ internal_error: 'failed' },
};

interface OverviewParts {
  mode: Mode;
  countDoubtsEveryMs: number;
  metrics: Metrics;
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
    const upMs = this.#upMs();
    const { keys: inDoubt } = await this.#doubts();
    const requests = { executed: 0, replayed: 0, unknown: 0, refused: 0, failed: 0 };
    for (const { labels, value } of (await metrics.requests.get()).values)
      requests[GROUPS[String(labels.outcome)] ?? 'refused'] += value;
    this.#kept.push({
      ...{ upMs, requests, inDoubt },
      gateway: await durationsOf(metrics.gatewaySeconds),
      backend: await durationsOf(metrics.upstreamSeconds),
      inFlight: await sumOf(metrics.inFlight),
      waiting: await sumOf(metrics.waiting),
    });
    if (this.#kept.length > MOST_KEPT) this.#kept.shift();
  }

  /** @param afterMs leaves out the samples until this time, which the page has */
  async read(afterMs: number): Promise<Overview> {
    const { mode, countDoubtsEveryMs, clock } = this.#parts;
    const checks = await this.#parts.checks();
    const doubts = await this.#doubts();
    const [nowMs, upMs] = [clock.wallMs(), this.#upMs()];
    const countAgeMs = doubts.countedAt === null ? upMs : nowMs - Date.parse(doubts.countedAt);
    const needsAttention =
      mode === 'observe' ||
      (doubts.keys ?? 0) > 0 ||
      countAgeMs > 2 * countDoubtsEveryMs + COUNT_LATE_MS ||
      checks.some(({ warnings = [] }) => warnings.length > 0);
    const isFailing = checks.some(({ ok }) => !ok);
    return {
      ...{ nowAt: new Date(nowMs).toISOString(), upMs, checks, doubts, mode },
      state: isFailing ? 'failing' : needsAttention ? 'warning' : 'ok',
      samples: this.#kept.filter((sample) => sample.upMs > afterMs),
      build: thisBuild(),
    };
  }

  #upMs(): number {
    return Math.round(this.#parts.clock.monotonicMs() - this.#startedMs);
  }

  /** The keys in doubt, once they have been counted. Until then their gauges are 0, which says nothing about the store. */
  async #doubts(): Promise<Doubts> {
    const { metrics } = this.#parts;
    metrics.readGauges();
    const countedS = await sumOf(metrics.doubtsCounted);
    if (countedS === 0) return { keys: null, oldestMs: null, countedAt: null };
    return {
      keys: await sumOf(metrics.keysInDoubt),
      oldestMs: Math.round((await sumOf(metrics.oldestInDoubt)) * 1000),
      countedAt: new Date(countedS * 1000).toISOString(),
    };
  }
}

const sumOf = async (gauge: Metrics['inFlight'] | Metrics['keysInDoubt']): Promise<number> =>
  (await gauge.get()).values.reduce((sum, { value }) => sum + value, 0);

/** Adds up durations, without those of requests that were not sent to the backend. */
async function durationsOf(
  histogram: Metrics['gatewaySeconds'] | Metrics['upstreamSeconds'],
): Promise<Sample['gateway']> {
  const durations = { number: 0, ms: 0 };
  for (const { metricName = '', labels, value } of (await histogram.get()).values) {
    if ('result' in labels && labels.result === 'not_sent') continue;
    if (metricName.endsWith('_count')) durations.number += value;
    if (metricName.endsWith('_sum')) durations.ms += value * 1000;
  }
  return durations;
}
