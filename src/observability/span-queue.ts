import type { ReadableSpan, SpanExporter, SpanProcessor } from '@opentelemetry/sdk-trace';
import type { Clock } from '../kernel/clock.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

const LOG_EVERY_MS = 60_000;

type Result = 'exported' | 'failed' | 'dropped';

/** Bounds the spans that are not sent yet. If the collector is slow or away, spans are lost and requests are not affected. */
export class BoundedQueue implements SpanProcessor {
  readonly #batches: SpanProcessor;
  readonly #outbox: Outbox;
  readonly #maxQueued: number;
  readonly #report: Report;
  /** Spans that ended in this turn of the event loop. */
  #fresh: ReadableSpan[] = [];
  #taken = 0;
  #ended = false;

  constructor(batches: SpanProcessor, outbox: Outbox, maxQueued: number, report: Report) {
    this.#batches = batches;
    this.#outbox = outbox;
    this.#maxQueued = maxQueued;
    this.#report = report;
  }

  onStart(): void {}

  onEnd(span: ReadableSpan): void {
    if (this.#ended || this.#waiting >= this.#maxQueued) {
      this.#report.count('dropped', 1, this.#ended ? 'the gateway ends' : 'too many spans wait');
      return;
    }
    this.#taken++;
    // The exporter serialises a full batch at once, which must not delay the request that ends this span.
    if (this.#fresh.length === 0) setImmediate(() => this.#passOn());
    this.#fresh.push(span);
  }

  forceFlush(): Promise<void> {
    this.#passOn();
    return this.#batches.forceFlush();
  }

  shutdown(): Promise<void> {
    this.#passOn();
    return this.#batches.shutdown();
  }

  #passOn(): void {
    for (const span of this.#fresh.splice(0)) this.#batches.onEnd(span);
  }

  /** Gives up the spans that still wait. */
  end(): void {
    this.#ended = true;
    this.#outbox.close();
    const left = this.#waiting;
    if (left > 0) this.#report.count('dropped', left, 'the collector did not take the last spans in time');
  }

  /** Spans that are queued, or being sent. */
  get #waiting(): number {
    return this.#taken - this.#outbox.ended;
  }
}

/** Passes batches to the exporter, and counts what became of their spans. */
export class Outbox implements SpanExporter {
  readonly #exporter: SpanExporter;
  readonly #timeoutMs: number;
  readonly #report: Report;
  readonly #cut: () => void;
  /** Spans that were sent or given up. */
  ended = 0;
  /** Each ends one running request to the collector as failed, without counting its spans. */
  readonly #giveUps = new Set<() => void>();

  /** @param cut closes the connections to the collector */
  constructor(exporter: SpanExporter, timeoutMs: number, report: Report, cut: () => void) {
    this.#exporter = exporter;
    this.#timeoutMs = timeoutMs;
    this.#report = report;
    this.#cut = cut;
  }

  export(spans: ReadableSpan[], done: Parameters<SpanExporter['export']>[1]): void {
    const giveUp = () => {
      clearTimeout(timer);
      this.#giveUps.delete(giveUp);
      done({ code: 1 });
    };
    const end: typeof done = (result) => {
      if (!this.#giveUps.delete(giveUp)) return;
      clearTimeout(timer);
      this.ended += spans.length;
      this.#report.count(result.code === 0 ? 'exported' : 'failed', spans.length, reasonOf(result.error));
      done(result);
    };
    // The exporter's own timeout begins anew with each byte of an answer.
    const timer = setTimeout(() => {
      this.#cut();
      end({ code: 1, error: new Error(TIMED_OUT) });
    }, this.#timeoutMs * 1.5).unref();
    this.#giveUps.add(giveUp);
    try {
      this.#exporter.export(spans, end);
    } catch (error) {
      end({ code: 1, error: error as Error });
    }
  }

  /** Gives up what is being sent, so that no timer keeps the process alive. */
  close(): void {
    for (const giveUp of this.#giveUps) giveUp();
  }

  shutdown(): Promise<void> {
    return this.#exporter.shutdown();
  }
}

const TIMED_OUT = 'Request timed out';

/** Has no header, no address and no words of the collector, because it is logged. */
function reasonOf(error: Error | undefined): string {
  const { code, message } = (error ?? {}) as { code?: unknown; message?: string };
  if (typeof code === 'number') return `status ${code}`;
  if (typeof code === 'string') return code;
  return message === TIMED_OUT ? 'timeout' : 'no success within tracing.timeoutMs';
}

/** Counts spans, and logs those that were lost, at most once a minute and at the end. */
export class Report {
  readonly #metrics: Metrics;
  readonly #logger: Logger;
  readonly #clock: Clock;
  #lost = 0;
  #reason = '';
  #loggedMs = Number.NEGATIVE_INFINITY;

  constructor(metrics: Metrics, logger: Logger, clock: Clock) {
    this.#metrics = metrics;
    this.#logger = logger;
    this.#clock = clock;
  }

  count(result: Result, spans: number, reason: string): void {
    this.#metrics.spans.inc({ result }, spans);
    if (result === 'exported') return;
    this.#lost += spans;
    this.#reason = reason;
    if (this.#clock.monotonicMs() >= this.#loggedMs + LOG_EVERY_MS) this.#log();
  }

  /** Logs the spans that were lost since the last line, which may be less than a minute ago. */
  end(): void {
    if (this.#lost > 0) this.#log();
  }

  #log(): void {
    const fields = { spans: this.#lost, reason: this.#reason };
    this.#logger.warn(fields, 'spans were lost: the collector did not take them');
    this.#lost = 0;
    this.#loggedMs = this.#clock.monotonicMs();
  }
}
