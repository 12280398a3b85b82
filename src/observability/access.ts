import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Clock } from '../kernel/clock.ts';
import { attachContext, type RequestContext } from '../kernel/context.ts';
import { Tally } from '../kernel/roster.ts';
import { type Logger, loggablePath, requestLog } from './logger.ts';
import type { Metrics } from './metrics.ts';

/** An inbound `X-Request-Id` of this form is kept. */
const WELL_FORMED = /^[A-Za-z0-9._-]{8,128}$/;

export interface AccessOptions {
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
}

/** Begins the context of each request. When the request has ended, writes its log line and its metrics. */
export class Access {
  readonly #options: AccessOptions;
  readonly #log: (fields: object) => void;
  readonly #open = new Tally();

  constructor(options: AccessOptions) {
    this.#options = options;
    this.#log = requestLog(options.logger);
    options.metrics.track(options.metrics.inFlight, () => this.open);
  }

  /** Requests that are being answered, and those that still execute after their merchant has disconnected. */
  get open(): number {
    return this.#open.count;
  }

  /** Resolves when no request is open. */
  idle(): Promise<void> {
    return this.#open.idle();
  }

  begin(req: IncomingMessage, res: ServerResponse): RequestContext {
    const inbound = req.headers['x-request-id'];
    const context: RequestContext = {
      requestId: typeof inbound === 'string' && WELL_FORMED.test(inbound) ? inbound : randomUUID(),
      startedAtMs: this.#options.clock.monotonicMs(),
      upstreamMs: 0,
      waitMs: 0,
      done: true,
    };
    attachContext(req, context);
    this.#open.begin();
    res.once('close', () => {
      // An execution can outlive the merchant's connection. The log line needs the outcome, so it waits for the execution.
      if (context.done) this.#end(req, res, context);
      else context.onDone = () => this.#end(req, res, context);
    });
    return context;
  }

  #end(req: IncomingMessage, res: ServerResponse, context: RequestContext): void {
    this.#open.end();
    const { metrics, clock } = this.#options;
    const durationMs = clock.monotonicMs() - context.startedAtMs;
    const merchantGone = !context.isUpgrade && !res.writableFinished;
    const outcome = context.outcome ?? 'merchant_gone';
    const operation = context.identity?.operation.name ?? 'none';
    metrics.requests.inc({ operation, outcome });
    metrics.requestSeconds.observe({ operation }, durationMs / 1000);
    const [path = ''] = (req.url ?? '').split('?', 1);
    const ownMs = Math.max(0, durationMs - context.upstreamMs - context.waitMs);
    if (!context.passedThrough) metrics.gatewaySeconds.observe({ operation }, ownMs / 1000);
    this.#log({
      requestId: context.requestId,
      merchant: context.merchant?.code,
      keyId: context.merchant?.keyId,
      operation,
      method: req.method,
      path: context.identity?.route ?? loggablePath(path),
      status: res.headersSent ? res.statusCode : undefined,
      outcome,
      scope: context.scope?.slice(0, 16),
      durationMs: round(durationMs),
      upstreamMs: round(context.upstreamMs),
      waitMs: round(context.waitMs),
      merchantGone: merchantGone || undefined,
    });
  }
}

const round = (ms: number): number => Math.round(ms * 100) / 100;
