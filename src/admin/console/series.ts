import { randomUUID } from 'node:crypto';
import type { Clock } from '../../kernel/clock.ts';
import type { DoubtsSummary, OutcomeGroup, Quantiles, Series, SeriesPoint } from './contract.ts';
import { type Exposition, increases, labelOf, quantile, readExposition, total } from './exposition.ts';

export const EVERY_MS = 2000;
const KEPT_MS = 15 * 60_000;
/** Sampling ends this long after a session was used last. */
const LOOKED_AT_MS = 60_000;
/** Two samples further apart make no point: an average over a long pause of the process would hide what happened. */
const MAX_GAP_MS = 30_000;

const REQUESTS = 'oncegate_requests_total';
const GATEWAY = 'oncegate_gateway_duration_seconds_bucket';
const UPSTREAM = 'oncegate_upstream_duration_seconds_bucket';
const IN_FLIGHT = 'oncegate_in_flight';
const EXECUTING = 'oncegate_executing';
const WAITING = 'oncegate_waiting';
const IN_DOUBT = 'oncegate_keys_in_doubt';
const OWNER_GONE = 'oncegate_keys_owner_gone';
const OLDEST = 'oncegate_oldest_in_doubt_seconds';
const COUNTED = 'oncegate_doubts_counted_timestamp_seconds';
const NAMES = new Set([
  ...[REQUESTS, GATEWAY, UPSTREAM, IN_FLIGHT, EXECUTING, WAITING],
  ...[IN_DOUBT, OWNER_GONE, OLDEST, COUNTED],
]);

/** Every outcome that is not listed is a refusal: those are the problem codes that blame the request. */
const GROUPS: Readonly<Record<string, OutcomeGroup>> = {
  ...{ executed: 'executed', released: 'executed', forwarded: 'executed' },
  ...{ passed_through: 'executed', upgraded: 'executed', replayed: 'replayed', merchant_gone: 'gone' },
  ...{ request_in_flight: 'conflict', idempotency_key_reused: 'conflict', response_not_stored: 'conflict' },
  ...{ outcome_unknown: 'unknown', store_unavailable: 'failed', upstream_unreachable: 'failed' },
  ...{ overloaded: 'failed', shutting_down: 'failed', internal_error: 'failed' },
};

interface Sample {
  atMs: number;
  metrics: Exposition;
}

/** Samples the metrics while somebody looks at the console, and keeps what happened between the samples. */
export class LiveSeries {
  readonly #read: () => Promise<string>;
  readonly #clock: Clock;
  /** Is a part of each cursor, so that a cursor of another process or of an earlier run is recognised. */
  readonly #id = randomUUID();
  readonly #points: { n: number; point: SeriesPoint }[] = [];
  #n = 0;
  #last: Sample | undefined;
  #timer: NodeJS.Timeout | undefined;
  #reading: Promise<void> | undefined;
  #lookedAtMs = Number.NEGATIVE_INFINITY;

  /** @param read the metrics in Prometheus' text format */
  constructor(read: () => Promise<string>, clock: Clock) {
    this.#read = read;
    this.#clock = clock;
  }

  /** Call it when a session is used: then samples are taken for a minute. */
  look(): void {
    this.#lookedAtMs = this.#clock.monotonicMs();
    if (this.#timer) return;
    this.#timer = setInterval(() => this.tick(), EVERY_MS).unref();
    this.tick();
  }

  get isSampling(): boolean {
    return this.#timer !== undefined;
  }

  /**
   * The keys in doubt, as of the last sample. If a sample is being taken, waits for it: the first request of a session starts
   * one, and there is none before it.
   */
  async doubts(): Promise<DoubtsSummary> {
    await this.#reading;
    return doubtsIn(this.#last?.metrics ?? new Map());
  }

  since(cursor: string | undefined): Series {
    const [id, n = ''] = cursor?.split('.') ?? [];
    const from = id === this.#id && /^\d{1,15}$/.test(n) ? Number(n) : undefined;
    const points = this.#points.filter((kept) => from === undefined || kept.n > from);
    return {
      nowAt: new Date(this.#clock.wallMs()).toISOString(),
      cursor: `${this.#id}.${this.#n}`,
      replaces: from === undefined,
      everyMs: EVERY_MS,
      keptMs: KEPT_MS,
      points: points.map(({ point }) => point),
    };
  }

  /** Takes a sample, or ends sampling. The timer calls it. */
  tick(): void {
    if (this.#clock.monotonicMs() - this.#lookedAtMs > LOOKED_AT_MS) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      this.#last = undefined;
      return;
    }
    // Workers may take a second to answer, and a sample must not overtake another.
    this.#reading ??= this.#sample().finally(() => {
      this.#reading = undefined;
    });
  }

  async #sample(): Promise<void> {
    let text: string;
    try {
      text = await this.#read();
    } catch {
      // The next sample is further away than usual, and the chart has a gap.
      return;
    }
    const atMs = this.#clock.monotonicMs();
    const sample = { atMs, metrics: readExposition(text, NAMES) };
    const before = this.#last;
    this.#last = sample;
    const seconds = before ? (atMs - before.atMs) / 1000 : 0;
    if (!before || seconds <= 0 || seconds * 1000 > MAX_GAP_MS) return;
    this.#n++;
    this.#points.push({
      n: this.#n,
      point: pointOf(before.metrics, sample.metrics, seconds, this.#clock.wallMs()),
    });
    if (this.#points.length > KEPT_MS / EVERY_MS) this.#points.shift();
  }
}

function pointOf(before: Exposition, after: Exposition, seconds: number, atMs: number): SeriesPoint {
  const perSecond = {
    ...{ executed: 0, replayed: 0, conflict: 0, unknown: 0, refused: 0, failed: 0, gone: 0 },
  };
  for (const [outcome, count] of increases(before, after, REQUESTS, 'outcome'))
    perSecond[GROUPS[outcome] ?? 'refused'] += count / seconds;
  const isAnswer = (labels: string) => labelOf(labels, 'result') !== 'not_sent';
  return {
    atMs,
    perSecond,
    gateway: quantiles(increases(before, after, GATEWAY, 'le')),
    upstream: quantiles(increases(before, after, UPSTREAM, 'le', isAnswer)),
    inFlight: total(after, IN_FLIGHT) ?? 0,
    executing: total(after, EXECUTING) ?? 0,
    waiting: total(after, WAITING) ?? 0,
    inDoubt: doubtsIn(after).keys,
  };
}

function quantiles(buckets: ReadonlyMap<string, number>): Quantiles | null {
  const at = (q: number) => Math.round((quantile(buckets, q) ?? 0) * 100_000) / 100;
  return quantile(buckets, 0.5) === undefined ? null : { p50Ms: at(0.5), p95Ms: at(0.95), p99Ms: at(0.99) };
}

/** Until the keys in doubt have been counted once, their gauges are 0, which says nothing about the store. */
function doubtsIn(metrics: Exposition): DoubtsSummary {
  const countedS = total(metrics, COUNTED) ?? 0;
  if (countedS === 0) return { keys: null, ownerGone: null, oldestMs: null, countedAt: null };
  return {
    keys: total(metrics, IN_DOUBT) ?? null,
    ownerGone: total(metrics, OWNER_GONE) ?? null,
    oldestMs: Math.round((total(metrics, OLDEST) ?? 0) * 1000),
    countedAt: new Date(countedS * 1000).toISOString(),
  };
}
