import type { IncomingMessage, ServerResponse } from 'node:http';
import { answerOfExchange, overloaded, sendAnswer } from '../idempotency/http/answer.ts';
import { disconnectSignalOf } from '../idempotency/http/middleware.ts';
import { contextOf, markDone } from '../kernel/context.ts';
import { type Exchange, releaseAfter } from '../kernel/exchange.ts';
import type { Metrics } from '../observability/metrics.ts';
import { type BodyLimits, inviteBody, takeBody } from '../operations/body.ts';
import type { Executor } from '../upstream/executor.ts';
import type { Passthrough } from '../upstream/passthrough.ts';
import type { Slots } from '../upstream/slots.ts';
import type { Upgrades } from './upgrades.ts';

export interface ForwarderOptions {
  limits: BodyLimits;
  slots: Slots;
  executor: Executor;
  passthrough: Passthrough;
  upgrades: Upgrades;
  metrics: Metrics;
  /** Makes the header fields of a request to the backend. `unencoded`: asks the backend not to compress the response. */
  headersOf(req: IncomingMessage, options: { unencoded: boolean }): string[];
}

/** Sends requests to the backend, through the executor or streamed. */
export class Forwarder {
  readonly #options: ForwarderOptions;

  constructor(options: ForwarderOptions) {
    this.#options = options;
  }

  /**
   * Handles upgrades, and requests that `idempotency` has passed on. A declared request goes through the executor if its
   * body is within `limits.bodyBytes`, and so does a request whose body `identify` has read. Everything else is streamed.
   */
  async handle(req: IncomingMessage, res: ServerResponse, next: (refusal: unknown) => void): Promise<void> {
    const { limits, passthrough, upgrades } = this.#options;
    if (upgrades.pass(req, res)) return;
    const context = contextOf(req);
    if (!context.body && context.identity?.isDeclared) {
      const taking = takeBody(req, res, limits);
      const taken = taking instanceof Promise ? await taking : taking;
      if (taken === 'gone') return;
      if (typeof taken === 'object') return next(taken);
    }
    if (context.body) return await this.#execute(req, res, next);
    context.outcome = 'passed_through';
    context.passedThrough = 'connecting';
    inviteBody(req, res);
    passthrough.handle(req, res);
  }

  /** Sends a request whose body is in memory, once. Never throws. */
  send(req: IncomingMessage, maySend?: () => boolean): Promise<Exchange> {
    const { executor, metrics, headersOf } = this.#options;
    const context = contextOf(req);
    const request = {
      method: req.method ?? '',
      target: req.url ?? '',
      headers: headersOf(req, { unencoded: true }),
      body: context.body ?? Buffer.alloc(0),
    };
    const ended = ({ kind, elapsedMs }: Exchange & { elapsedMs: number }) => {
      context.upstreamMs += elapsedMs;
      const labels = { operation: context.identity?.operation.name ?? 'none', result: kind };
      metrics.upstreamSeconds.observe(labels, elapsedMs / 1000);
    };
    return executor.send(request, maySend ? { maySend, ended } : { ended });
  }

  /** Takes a slot, then sends. Requests with and without a key share the same slots. */
  async #execute(req: IncomingMessage, res: ServerResponse, next: (refusal: unknown) => void): Promise<void> {
    const { slots } = this.#options;
    const context = contextOf(req);
    context.done = false;
    try {
      const slot = slots.tryTake() ?? (await slots.take(disconnectSignalOf(res)));
      if (!slot) return sendAnswer(res, context, overloaded(), next);
      const exchange = await this.send(req);
      releaseAfter(slot, exchange);
      sendAnswer(res, context, answerOfExchange(exchange, 'forwarded'), next);
    } finally {
      markDone(context);
    }
  }
}
