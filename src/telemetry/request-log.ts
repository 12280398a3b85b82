import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '../lib/clock.ts';
import { InFlightCounter } from '../lib/collections.ts';
import { attachContext, type Client, exemplarIdOf, type RequestContext } from '../lib/context.ts';
import { classOfStatus, type ResponseClass } from '../lib/exchange.ts';
import type { Told } from './emit.ts';
import { type Logger, loggablePath, requestLogger } from './logger.ts';
import type { AllMetrics } from './metrics.ts';
import { keepTrace } from './traceparent.ts';
import type { Tracing } from './tracing.ts';

/** An inbound `X-Request-Id` of this form is kept. */
const WELL_FORMED = /^[A-Za-z0-9._-]{8,128}$/;

export interface RequestLogOptions {
  clock: Clock;
  logger: Logger;
  metrics: AllMetrics;
  /** Finds where a request came from. */
  clientOf(req: IncomingMessage): Client;
  /** Default: a request keeps the trace that it comes with. */
  tracing?: Tracing | undefined;
}

/** Outcomes with which the merchant has a new result of the backend: with a 5xx status, that is of little use. */
const RESULTS = new Set(['executed', 'forwarded', 'passed_through']);

/** Begins the context of each request. When the request has ended, writes its log line and its metrics. */
export class RequestLog {
  readonly #options: RequestLogOptions;
  readonly #log: (fields: Told<'request'>) => void;
  /** Requests that are being answered, and those that still execute after their merchant has disconnected. */
  readonly open = new InFlightCounter();

  constructor(options: RequestLogOptions) {
    this.#options = options;
    this.#log = requestLogger(options.logger);
    options.metrics.track(options.metrics.inFlight, () => this.open.count);
  }

  begin(req: IncomingMessage, res: ServerResponse): RequestContext {
    const context: RequestContext = {
      requestId: newRequestId(req),
      startedAtMs: this.#options.clock.monotonicMs(),
      client: this.#options.clientOf(req),
      traceId: undefined,
      spans: undefined,
      sent: undefined,
      upstreamMs: 0,
      waitMs: 0,
      done: true,
    };
    if (this.#options.tracing) this.#options.tracing.begin(req, context);
    else keepTrace(req.headers, context);
    attachContext(req, context);
    this.open.begin();
    res.once('close', () => {
      // An execution can outlive the merchant's connection. The log line needs the outcome, so it waits for the execution.
      if (context.done) this.#end(req, res, context);
      else context.onDone = () => this.#end(req, res, context);
    });
    return context;
  }

  #end(req: IncomingMessage, res: ServerResponse, context: RequestContext): void {
    this.open.end();
    for (const end of context.ends ?? []) end();
    const { metrics, clock } = this.#options;
    const durationMs = clock.monotonicMs() - context.startedAtMs;
    const merchantGone = !context.isUpgrade && !res.writableFinished;
    const outcome = context.outcome ?? 'merchant_gone';
    const operation = context.identity?.operation.name ?? 'none';
    const sent = context.passedThrough ? sentAsStream(res, context) : context.sent;
    // A status that says nothing of the execution, such as a proxy's 504, is no answer of the backend.
    const isUnknown = outcome === 'outcome_unknown' && sent !== 'not_sent';
    const labels = { operation, outcome, class: isUnknown ? 'unknown' : (sent ?? '') };
    metrics.requests.inc(labels);
    if (sent) metrics.upstreamResponses.inc(labels);
    metrics.requestSeconds.observe(labels, durationMs / 1000, exemplarIdOf(context));
    // A handler that requires no key may have no merchant.
    if (context.merchant?.code) {
      const merchant = metrics.merchantLabel(context.merchant.code);
      metrics.merchantRequests.inc({ merchant, outcome });
      metrics.merchantSeconds.observe({ merchant }, durationMs / 1000);
    }
    const [path = ''] = (req.url ?? '').split('?', 1);
    const ownMs = Math.max(0, durationMs - context.upstreamMs - context.waitMs);
    if (!context.passedThrough) metrics.gatewaySeconds.observe(labels, ownMs / 1000);
    const status = res.headersSent ? res.statusCode : undefined;
    if (status !== undefined && status >= 500 && RESULTS.has(outcome)) metrics.backendErrors++;
    context.spans?.end({
      ...{ operation, outcome, merchantGone },
      // The answer to a handshake is written by the pass-through.
      status: context.passedThrough === 'upgraded' ? 101 : status,
    });
    this.#log({
      requestId: context.requestId,
      traceId: context.traceId,
      client: context.client.address,
      merchant: context.merchant?.code,
      keyId: context.merchant?.keyId,
      operation,
      method: req.method,
      path: context.identity?.route ?? loggablePath(path),
      status,
      outcome,
      would: context.would,
      recordId: context.recordId?.slice(0, 16),
      ignoredKeyHeaders: context.ignoredKeyHeaders,
      durationMs: round(durationMs),
      upstreamMs: round(context.upstreamMs),
      waitMs: round(context.waitMs),
      merchantGone: merchantGone || undefined,
    });
  }
}

/** What came of a request that was streamed. undefined: its merchant left, or it became a WebSocket. */
function sentAsStream(
  { headersSent, statusCode }: ServerResponse,
  { outcome }: RequestContext,
): ResponseClass | undefined {
  if (outcome === 'passed_through') return headersSent ? classOfStatus(statusCode) : undefined;
  if (outcome === 'upstream_unreachable') return 'not_sent';
  return outcome === 'outcome_unknown' ? 'unknown' : undefined;
}

/** The inbound `X-Request-Id` if it is well-formed, or a new id. */
export function newRequestId({ headers }: IncomingMessage): string {
  const inbound = headers['x-request-id'];
  return typeof inbound === 'string' && WELL_FORMED.test(inbound) ? inbound : randomUUID();
}

const round = (ms: number): number => Math.round(ms * 100) / 100;
