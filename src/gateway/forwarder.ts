import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Executor } from '../backend/executor.ts';
import { forwardedHeaders } from '../backend/headers.ts';
import type { Passthrough } from '../backend/passthrough.ts';
import type { Slots } from '../backend/slots.ts';
import type { Config } from '../config/schema.ts';
import { answerOfExchange, overloaded, sendAnswer } from '../idempotency/answer.ts';
import { disconnectSignalOf } from '../idempotency/protect.ts';
import { forwardAuthorization } from '../keys/authorization-header.ts';
import { contextOf, exemplarIdOf, type RequestContext, setDone } from '../lib/context.ts';
import { asReceived, classOf, type Exchange, releaseAfter, type Slot } from '../lib/exchange.ts';
import { endSent } from '../lib/trace.ts';
import { type BodyLimits, inviteBody, takeBody } from '../requests/body.ts';
import { isEncrypted } from '../requests/client-address.ts';
import { HOPS } from '../requests/fields.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';
import type { Upgrades } from './upgrades.ts';

export interface ForwarderOptions {
  limits: BodyLimits;
  slots: Slots;
  executor: Executor;
  passthrough: Passthrough;
  upgrades: Upgrades;
  metrics: AllMetrics;
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
   * Handles upgrades, and requests that `protect` has passed on. A declared request goes through the executor if its
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
    // A public request takes no slot from the merchants.
    if (context.body && context.merchant) return await this.#execute(req, res, next);
    context.outcome = 'passed_through';
    context.passedThrough = 'connecting';
    inviteBody(req, res);
    context.spans?.send();
    passthrough.handle(req, res);
  }

  /** Sends a request whose body is in memory, once. Never throws. */
  send(req: IncomingMessage, maySend?: () => boolean): Promise<Exchange> {
    const { executor, metrics, headersOf } = this.#options;
    const context = contextOf(req);
    // Before the header fields are made: they name this step.
    const step = context.spans?.send();
    const request = {
      method: req.method ?? '',
      target: req.url ?? '',
      headers: headersOf(req, { unencoded: true }),
      body: context.body ?? Buffer.alloc(0),
    };
    const ended = (exchange: Exchange & { elapsedMs: number }) => {
      const { kind, elapsedMs } = exchange;
      if (step) endSent(step, exchange);
      context.sent = classOf(exchange);
      context.upstreamMs += elapsedMs;
      const labels = { operation: context.identity?.operation.name ?? 'none', result: kind };
      metrics.upstreamSeconds.observe(labels, elapsedMs / 1000, exemplarIdOf(context));
    };
    return executor.send(request, maySend ? { maySend, ended } : { ended });
  }

  /** Takes a slot, unless none became free in time or the merchant has disconnected. */
  async #queue(res: ServerResponse, { spans }: RequestContext): Promise<Slot | undefined> {
    const step = spans?.begin('queue');
    const slot = await this.#options.slots.take(disconnectSignalOf(res));
    step?.end(slot ? 'slot' : 'overloaded');
    return slot;
  }

  /** Takes a slot, then sends. Requests with and without a key share the same slots. */
  async #execute(req: IncomingMessage, res: ServerResponse, next: (refusal: unknown) => void): Promise<void> {
    const { slots } = this.#options;
    const context = contextOf(req);
    context.done = false;
    try {
      const slot = slots.tryTake() ?? (await this.#queue(res, context));
      if (!slot) return sendAnswer(res, context, overloaded(), next);
      const observed = context.observe?.();
      const exchange = await this.send(req);
      releaseAfter(slot, exchange);
      observed?.(exchange);
      sendAnswer(res, context, answerOfExchange(asReceived(exchange), 'forwarded'), next);
    } finally {
      setDone(context);
    }
  }
}

/** Returns a function that makes the header fields of a request to the backend. See {@link ForwarderOptions}. */
export function backendHeaders({ auth, headers, idempotency }: Config) {
  const authorization = forwardAuthorization(auth);
  // A request on a public path has no merchant, and must not get the gateway's own credentials for the backend.
  const ofPublic = auth.forward === 'keep' ? authorization : () => undefined;
  return (req: IncomingMessage, { unencoded = false } = {}): string[] => {
    const { requestId, merchant, client, traceContext } = contextOf(req);
    return forwardedHeaders(req.rawHeaders, {
      requestId,
      merchantCode: merchant?.code ?? '',
      client,
      authorization: merchant ? authorization : ofPublic,
      keyHeaders: idempotency.headers,
      keepUnderscore: headers.keepUnderscore,
      secure: isEncrypted(req),
      unencoded,
      traceContext,
      hops: req.headers[HOPS] as string | undefined,
    });
  };
}
