import { randomUUID } from 'node:crypto';
import http from 'node:http';
import https from 'node:https';
import { createRequire } from 'node:module';
import { hostname } from 'node:os';
import { setImmediate } from 'node:timers/promises';
import type * as Api from '@opentelemetry/api';
import type * as Otlp from '@opentelemetry/exporter-trace-otlp-http';
import type * as Resources from '@opentelemetry/resources';
import type * as Sdk from '@opentelemetry/sdk-trace';
import type { ReadableSpan, SpanExporter } from '@opentelemetry/sdk-trace';
import { type Clock, within } from '../lib/clock.ts';
import { thisBuild } from '../lib/program.ts';
import type { Emit } from './emit.ts';
import type { Recorder } from './spans.ts';
import type { TracingOptions } from './telemetry-options.ts';

/** How many spans one request to the collector has at most. Larger requests would block the event loop for longer. */
const BATCH = 128;
/** Connections to the collector. At shutdown, all spans that wait are sent at once. */
const MAX_CONNECTIONS = 4;
const CLOSE_WITHIN_MS = 2000;
const LOG_EVERY_MS = 60_000;

export interface SpanExportTools {
  emit: Emit;
  clock: Clock;
  /** `upstream.url`. */
  upstream: string;
}

/**
 * Loads OpenTelemetry, and opens what makes and sends spans.
 *
 * @throws {Error} with a message for the operator if OpenTelemetry is not installed
 */
export async function openRecorder(
  options: TracingOptions & { endpoint: string },
  tools: SpanExportTools,
): Promise<Recorder> {
  const { api, sdk, resources, otlp } = loadOpenTelemetry();
  const { maxQueued, timeoutMs } = options;
  const url = new URL(options.endpoint);
  if (url.pathname === '/') url.pathname = '/v1/traces';
  const { Agent } = url.protocol === 'https:' ? https : http;
  const agent = new Agent({ keepAlive: true, maxSockets: MAX_CONNECTIONS });
  const otlpExporter = new otlp.OTLPTraceExporter({
    ...{ url: url.href, headers: { ...options.headers }, timeoutMillis: timeoutMs },
    ...{ concurrencyLimit: maxQueued, httpAgentOptions: () => agent },
  });
  const exporter = new CountingExporter(otlpExporter, timeoutMs, () => agent.destroy(), tools);
  /** OpenTelemetry does not count the spans that it drops because too many wait. This drops them first. */
  class Queue extends sdk.BatchSpanProcessor {
    override onEnd(span: ReadableSpan): void {
      if (exporter.mayWait(maxQueued)) super.onEnd(span);
    }
  }
  const queue = new Queue({
    ...{ exporter, maxQueueSize: maxQueued, maxExportBatchSize: Math.min(BATCH, maxQueued) },
    ...{ scheduledDelayMillis: options.sendEveryMs, exportTimeoutMillis: 2 * timeoutMs },
  });
  const provider = new sdk.TracerProvider({
    resource: resources
      .defaultResource()
      .merge(resources.resourceFromAttributes(describe(options.serviceName))),
    ...{ sampler: new sdk.AlwaysOnSampler(), spanProcessors: [queue] },
  });
  return {
    api,
    tracer: provider.getTracer('oncegate', thisBuild().version),
    clock: tools.clock,
    upstream: new URL(tools.upstream),
    close: async () => {
      await within(
        tools.clock,
        provider.shutdown().catch(() => {}),
        Math.min(CLOSE_WITHIN_MS, timeoutMs),
      );
      exporter.giveUp();
      agent.destroy();
    },
  };
}

const describe = (serviceName: string) => ({
  'service.name': serviceName,
  'service.version': thisBuild().version,
  // Another one for each process, because each sends its own spans.
  'service.instance.id': randomUUID(),
  'host.name': hostname(),
  'process.pid': process.pid,
});

type Done = Parameters<SpanExporter['export']>[1];

/**
 * Passes batches to OpenTelemetry's exporter, and counts what became of their spans. Logs those that were lost, at most once a
 * minute and at the end. If the collector is slow or away, spans are lost and requests are not affected.
 */
class CountingExporter implements SpanExporter {
  readonly #exporter: SpanExporter;
  readonly #timeoutMs: number;
  readonly #cut: () => void;
  readonly #tools: SpanExportTools;
  readonly #running = new Set<Done>();
  /** Spans that are queued, or being sent. */
  #waiting = 0;
  #hasGivenUp = false;
  #lost = 0;
  #reason = '';
  #loggedMs = Number.NEGATIVE_INFINITY;

  /** @param cut closes the connections to the collector */
  constructor(exporter: SpanExporter, timeoutMs: number, cut: () => void, tools: SpanExportTools) {
    this.#exporter = exporter;
    this.#timeoutMs = timeoutMs;
    this.#cut = cut;
    this.#tools = tools;
  }

  /** Whether a span that has ended may wait to be sent. If not, it is counted as dropped. */
  mayWait(maxQueued: number): boolean {
    const may = this.#waiting < maxQueued && !this.#hasGivenUp;
    if (may) this.#waiting++;
    else this.#count('dropped', 1, this.#hasGivenUp ? 'the gateway ends' : 'too many spans wait');
    return may;
  }

  export(spans: ReadableSpan[], done: Done): void {
    const end: Done = (result) => {
      if (!this.#running.delete(end)) return;
      clearTimeout(timer);
      if (!this.#hasGivenUp) {
        this.#waiting -= spans.length;
        this.#count(result.code === 0 ? 'exported' : 'failed', spans.length, reasonOf(result.error));
      }
      done(result);
    };
    // The exporter's own timeout begins anew with each byte of an answer.
    const timer = setTimeout(() => {
      this.#cut();
      end({ code: 1, error: new Error(TIMED_OUT) });
    }, this.#timeoutMs * 1.5).unref();
    this.#running.add(end);
    // The exporter serialises a batch at once, which must not delay the request that ends this span.
    setImmediate()
      .then(() => this.#exporter.export(spans, end))
      .catch((error: Error) => end({ code: 1, error }));
  }

  shutdown(): Promise<void> {
    return this.#exporter.shutdown();
  }

  /** Drops the spans that still wait, and ends the timers of what is being sent. */
  giveUp(): void {
    this.#hasGivenUp = true;
    if (this.#waiting > 0)
      this.#count('dropped', this.#waiting, 'the collector did not take the last spans in time');
    for (const end of this.#running) end({ code: 1 });
    if (this.#lost > 0) this.#log();
  }

  #count(result: 'exported' | 'failed' | 'dropped', spans: number, reason: string): void {
    this.#tools.emit('spans', { result }, spans);
    if (result === 'exported') return;
    this.#lost += spans;
    this.#reason = reason;
    if (this.#tools.clock.monotonicMs() >= this.#loggedMs + LOG_EVERY_MS) this.#log();
  }

  #log(): void {
    this.#tools.emit('spans_lost', { spans: this.#lost, reason: this.#reason });
    this.#lost = 0;
    this.#loggedMs = this.#tools.clock.monotonicMs();
  }
}

const TIMED_OUT = 'Request timed out';

/** Why an export failed, without a header, an address or words of the collector, because it is logged. */
function reasonOf(error: Error | undefined): string {
  const { code, message } = (error ?? {}) as { code?: unknown; message?: string };
  if (typeof code === 'number') return `status ${code}`;
  if (typeof code === 'string') return code;
  return message === TIMED_OUT ? 'timeout' : 'no success within tracing.timeoutMs';
}

const INSTALL =
  'npm install @opentelemetry/api@1 @opentelemetry/sdk-trace@3 @opentelemetry/resources@3 @opentelemetry/exporter-trace-otlp-http@0.301';

/** By `require`: an `import` from the bundle of the command, which V8 has compiled before, prints a warning of Node. */
function loadOpenTelemetry() {
  const load = createRequire(import.meta.url);
  try {
    const api = load('@opentelemetry/api') as typeof Api;
    const sdk = load('@opentelemetry/sdk-trace') as typeof Sdk;
    const resources = load('@opentelemetry/resources') as typeof Resources;
    const otlp = load('@opentelemetry/exporter-trace-otlp-http') as typeof Otlp;
    // Older versions, which an application may have for itself, lack the first of these.
    for (const needed of [sdk.TracerProvider, resources.resourceFromAttributes, otlp.OTLPTraceExporter])
      if (typeof needed !== 'function')
        throw new Error(`tracing.endpoint: needs other versions of OpenTelemetry's packages: ${INSTALL}`);
    return { api, sdk, resources, otlp };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'MODULE_NOT_FOUND') throw error;
    throw new Error(`tracing.endpoint: needs packages that are not installed: ${INSTALL}`);
  }
}
