import { randomUUID } from 'node:crypto';
import http from 'node:http';
import https from 'node:https';
import { hostname } from 'node:os';
import { thisBuild } from '../kernel/build.ts';
import { type Clock, within } from '../kernel/clock.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';
import type { TracingOptions } from './options.ts';
import { BoundedQueue, Outbox, Report } from './span-queue.ts';
import type { Recorder } from './spans.ts';

/** How many spans one request to the collector has at most. Larger requests would block the event loop for longer. */
const BATCH = 128;
/** Requests to the collector that may run at once. */
const AT_ONCE = 4;
const CLOSE_WITHIN_MS = 2000;

export interface SpanExportTools {
  metrics: Metrics;
  logger: Logger;
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
  { metrics, logger, clock, upstream }: SpanExportTools,
): Promise<Recorder> {
  const { api, sdk, resources, otlp } = await loadOpenTelemetry();
  const url = new URL(options.endpoint);
  if (url.pathname === '/') url.pathname = '/v1/traces';
  const agentOptions = { keepAlive: true, maxSockets: AT_ONCE };
  const agent = url.protocol === 'https:' ? new https.Agent(agentOptions) : new http.Agent(agentOptions);
  let isClosed = false;
  // The exporter calls this before each attempt. An exception here is the only way to end its repetitions.
  const headers = async () => {
    if (isClosed) throw new Error('the gateway ends');
    return options.headers;
  };
  const exporter = new otlp.OTLPTraceExporter({
    ...{ url: url.href, headers, timeoutMillis: options.timeoutMs },
    // At shutdown all batches are passed on at once. The HTTP agent limits how many are sent at the same time.
    concurrencyLimit: Math.ceil(options.maxQueued / BATCH) + AT_ONCE,
    httpAgentOptions: () => agent,
  });
  const report = new Report(metrics, logger, clock);
  const outbox = new Outbox(exporter, options.timeoutMs, report, () => agent.destroy());
  const batches = new sdk.BatchSpanProcessor({
    exporter: outbox,
    maxExportBatchSize: Math.min(BATCH, options.maxQueued),
    scheduledDelayMillis: options.sendEveryMs,
    exportTimeoutMillis: 2 * options.timeoutMs,
    // `BoundedQueue` drops and counts. The processor's own bound, which counts nothing, is never reached.
    maxQueueSize: options.maxQueued + BATCH,
  });
  const queue = new BoundedQueue(batches, outbox, options.maxQueued, report);
  const resource = resources
    .defaultResource()
    .merge(resources.resourceFromAttributes(describe(options.serviceName)));
  const sampler = new sdk.AlwaysOnSampler();
  const provider = new sdk.TracerProvider({ resource, sampler, spanProcessors: [queue] });
  return {
    api,
    tracer: provider.getTracer('oncegate', thisBuild().version),
    clock,
    upstream: new URL(upstream),
    close: async () => {
      await within(
        provider.shutdown().catch(() => {}),
        Math.min(CLOSE_WITHIN_MS, options.timeoutMs),
      );
      isClosed = true;
      queue.end();
      report.end();
      agent.destroy();
    },
  };
}

const describe = (serviceName: string) => ({
  'service.name': serviceName,
  'service.version': thisBuild().version,
  // Another one for each worker, because each sends its own spans.
  'service.instance.id': randomUUID(),
  'host.name': hostname(),
  'process.pid': process.pid,
});

const INSTALL =
  'npm install @opentelemetry/api@1 @opentelemetry/sdk-trace@3 @opentelemetry/resources@3 @opentelemetry/exporter-trace-otlp-http@0.301';

async function loadOpenTelemetry() {
  try {
    const [api, sdk, resources, otlp] = await Promise.all([
      import('@opentelemetry/api'),
      import('@opentelemetry/sdk-trace'),
      import('@opentelemetry/resources'),
      import('@opentelemetry/exporter-trace-otlp-http'),
    ]);
    // Older versions, which an application may have for itself, lack the first of these.
    for (const needed of [sdk.TracerProvider, resources.resourceFromAttributes, otlp.OTLPTraceExporter])
      if (typeof needed !== 'function')
        throw new Error(`tracing.endpoint: needs other versions of OpenTelemetry's packages: ${INSTALL}`);
    return { api, sdk, resources, otlp };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ERR_MODULE_NOT_FOUND') throw error;
    throw new Error(`tracing.endpoint: needs packages that are not installed: ${INSTALL}`);
  }
}
