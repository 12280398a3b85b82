import { randomUUID } from 'node:crypto';
import type { EventEmitter } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Clock } from '../kernel/clock.ts';
import { attachContext, type RequestContext } from '../kernel/context.ts';
import { Tally } from '../kernel/tally.ts';
import { type Logger, loggablePath, requestLog } from './logger.ts';
import type { Metrics } from './metrics.ts';

const WELL_FORMED = /^[A-Za-z0-9._-]{8,128}$/;

export interface AccessOptions {
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
}

/** Begins each request's context, and ends it with one log line and its metrics. */
export class Access {
  readonly #options: AccessOptions;
  readonly #log: (fields: object) => void;
  readonly #open = new Tally();
  readonly #onSocket = new WeakMap<Socket, (() => void)[]>();

  constructor(options: AccessOptions) {
    this.#options = options;
    this.#log = requestLog(options.logger);
    options.metrics.track(options.metrics.inFlight, () => this.open);
  }

  /** Requests that are being answered, or executed for a merchant who has left. */
  get open(): number {
    return this.#open.count;
  }

  /** Resolves when nothing is open. */
  idle(): Promise<void> {
    return this.#open.idle();
  }

  /** For upgrades `closes` is the socket. */
  begin(req: IncomingMessage, closes: ServerResponse | Socket): RequestContext {
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
    let over = false;
    this.#whenClosed(req.socket, closes, () => {
      if (over) return;
      over = true;
      // An execution whose merchant has left ends with its own outcome.
      if (context.done) this.#end(req, closes, context);
      else context.onDone = () => this.#end(req, closes, context);
    });
    return context;
  }

  /**
   * An answer that waits for its turn on a connection, behind those to earlier requests, is not told when that connection
   * closes: so the connection is listened to as well, once for all of its requests.
   */
  #whenClosed(socket: Socket, closes: EventEmitter, over: () => void): void {
    let waiting = this.#onSocket.get(socket);
    if (!waiting) {
      const all: (() => void)[] = [];
      this.#onSocket.set(socket, all);
      socket.once('close', () => {
        for (const each of all.splice(0)) each();
      });
      waiting = all;
    }
    waiting.push(over);
    closes.once('close', () => {
      const at = waiting.indexOf(over);
      if (at >= 0) waiting.splice(at, 1);
      over();
    });
  }

  #end(
    req: IncomingMessage,
    closed: ServerResponse | IncomingMessage['socket'],
    context: RequestContext,
  ): void {
    this.#open.end();
    const { metrics, clock } = this.#options;
    const durationMs = clock.monotonicMs() - context.startedAtMs;
    const merchantGone = 'writableFinished' in closed && !closed.writableFinished;
    const outcome = context.outcome ?? 'merchant_gone';
    const operation = context.operation?.name ?? (context.passedThrough ? 'passthrough' : 'none');
    metrics.requests.inc({ operation, outcome });
    metrics.requestSeconds.observe({ operation }, durationMs / 1000);
    const [path = ''] = (req.url ?? '').split('?', 1);
    const ownMs = Math.max(0, durationMs - context.upstreamMs - context.waitMs);
    if (operation !== 'passthrough') metrics.gatewaySeconds.observe({ operation }, ownMs / 1000);
    this.#log({
      requestId: context.requestId,
      merchant: context.merchant?.code,
      keyId: context.merchant?.keyId,
      operation,
      method: req.method,
      // A declared operation's path is the configuration's, whatever its query.
      path: context.operation ? path : loggablePath(path),
      status: 'statusCode' in closed && closed.headersSent ? closed.statusCode : undefined,
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
