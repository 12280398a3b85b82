import type { IncomingMessage, ServerResponse } from 'node:http';
import * as z from 'zod';
import { Executor } from '../backend/executor.ts';
import { forwardedHeaders } from '../backend/headers.ts';
import { Slots } from '../backend/slots.ts';
import { upstreamOptions } from '../backend/upstream-options.ts';
import { parsed } from '../config/explain.ts';
import { limitOptions } from '../config/schema.ts';
import { refusalOfHead } from '../gateway/admission.ts';
import { answerOfExchange, overloaded, sendStream } from '../idempotency/answer.ts';
import { idempotencyOptions } from '../idempotency/idempotency-options.ts';
import { disconnectSignalOf, targetOf } from '../idempotency/protect.ts';
import { authOptions } from '../keys/auth-options.ts';
import { systemClock } from '../lib/clock.ts';
import { findContext } from '../lib/context.ts';
import { asReceived, type Exchange, releaseAfter } from '../lib/exchange.ts';
import {
  isProblem,
  type Problem,
  type ProblemDocument,
  problem,
  problemDocument,
  sendProblem,
} from '../lib/problem.ts';
import { findClientInExpress, isEncrypted } from '../requests/client-address.ts';
import { wholeNumber } from '../requests/common-options.ts';
import { HOPS } from '../requests/fields.ts';
import { newRequestId } from '../telemetry/request-log.ts';
import { executionOf, fieldsNow, type HandlerRequest } from './handler-request.ts';
import { bodyOf, type ParsedRequest } from './parsed-body.ts';
import { errorOf } from './refusals.ts';
import { writeResponse } from './respond.ts';

/** Options of {@link forward}. Times are in milliseconds. */
export interface ForwardOptions {
  /** Origin of the backend: http or https, without path and credentials. */
  upstream: string;
  /** Time to connect. Nothing has been sent when it runs out. Less than the store's `leaseMs`. Default 2 s. */
  connectTimeoutMs?: number;
  /** Time from sending to the complete response. Less than the `timeoutMs` of `idempotency`. Default 25 s. */
  responseTimeoutMs?: number;
  /** Connections to the backend. Default 64. */
  maxConnections?: number;
  /** Requests that wait for a connection. Default 1000. */
  maxQueued?: number;
  /** How long they wait. Default 2 s. */
  queueTimeoutMs?: number;
  /**
   * An idle connection is closed after this. Keep it well below the backend's own limit: a connection that the backend closes
   * at the moment of sending leaves the key in doubt. Default 1 s.
   */
  keepAliveMs?: number;
  /**
   * `untrusted` (default): the outcome is unknown if a response has neither a Content-Length nor chunks, and is not one whole JSON
   * object or array. `trusted` is dangerous: such a response that was cut is stored as the result.
   */
  endOfConnection?: 'untrusted' | 'trusted';
  /** Largest body of a request. Default 1 MiB. */
  bodyBytes?: number;
  /** Time for a body to arrive. Default 30 s. */
  bodyTimeoutMs?: number;
  /** A larger response is streamed, and not stored by `idempotency`. Default 1 MiB. */
  maxStoredBytes?: number;
  /** The Authorization that the backend gets: that of the merchant (`keep`, the default), none (`strip`), or `replaceWith`. */
  authorization?: 'keep' | 'strip' | 'replace';
  /**
   * Needed with `authorization: 'replace'`, and only goes with it: the whole value, such as `Bearer` and a token. It is sent together
   * with `X-Merchant-Code`, and only if the merchant is known: from `req.merchant`, or, for a request with a key, from the option
   * `merchant` of `idempotency`.
   */
  replaceWith?: string;
  /** The request target for the backend. Default: the target as received. One that the backend could take for another path is refused. */
  target?(req: HandlerRequest): string;
}

const { connectTimeoutMs, maxConnections, maxQueued, queueTimeoutMs } = upstreamOptions.shape;
const { maxStreams, keepAliveMs, endOfConnection } = upstreamOptions.shape;
const { bodyBytes, bodyTimeoutMs } = limitOptions.shape;
const { maxStoredBytes } = idempotencyOptions.shape;

/** The options of `forward` that are plain values. Most are those of the gateway's configuration, with its defaults. */
export const forwardOptions = z
  .strictObject({
    upstream: upstreamOptions.shape.url,
    ...{ connectTimeoutMs, maxConnections, maxQueued, queueTimeoutMs },
    ...{ maxStreams, keepAliveMs, endOfConnection },
    ...{ bodyBytes, bodyTimeoutMs, maxStoredBytes },
    responseTimeoutMs: wholeNumber(1, 3_600_000).default(25_000),
    authorization: authOptions.shape.forward,
    replaceWith: authOptions.shape.replaceWith,
  })
  .refine(({ authorization, replaceWith }) => (authorization === 'replace') === (replaceWith !== undefined), {
    path: ['replaceWith'],
    message: "is needed with authorization: 'replace', and only goes with it",
  });

/** The handler that {@link forward} returns. */
export interface ForwardHandler {
  /** Express calls it for each request. */
  (req: IncomingMessage, res: ServerResponse, next: (error?: unknown) => void): void;
  /** Closes all connections. Close the `idempotency` in front of it first. */
  close(): Promise<void>;
}

type Request = ParsedRequest & { merchant?: { code: string } };

/**
 * A handler that sends requests to a backend, each at most once, with its whole body in memory. Behind `idempotency` it tells
 * exactly whether a request was sent, asks the last-moment fence before its first byte, and goes on when the merchant
 * disconnects.
 *
 * Place it behind an `idempotency` without `transactional`: what it sends is in no transaction. Place it before body parsers, or keep the
 * raw body in `req.rawBody`: the backend must get the merchant's bytes. Parsers decompress, so of a request with a Content-Encoding
 * neither `req.rawBody` nor `req.body` is sent. A request whose bytes are gone gets 500, which names the parser.
 *
 * @param options `upstream` is needed
 * @returns the handler
 * @throws {TypeError} if an option is invalid
 */
export function forward(options: ForwardOptions): ForwardHandler {
  const { target: targetFor = targetOf, ...values } = options;
  const settings = parsed(forwardOptions, values, 'forward');
  const upstream = { ...settings, url: settings.upstream };
  const executor = new Executor(upstream, settings.maxStoredBytes, systemClock);
  const slots = new Slots(upstream, systemClock);
  const headersOf = headersMaker(settings);
  let hasWarned = false;

  /** Sends the request, unless no connection became free in time or the merchant has disconnected. */
  const send = async (
    req: Request,
    res: ServerResponse,
    target: string,
    body: Buffer,
    requestId: string,
  ): Promise<Exchange | undefined> => {
    const execution = executionOf(req);
    const request = {
      method: req.method ?? '',
      target,
      headers: headersOf(req, requestId),
      body,
    };
    const slot = slots.tryTake() ?? (await slots.take(execution ? undefined : disconnectSignalOf(res)));
    if (!slot) return undefined;
    const exchange = await executor.send(request, execution);
    releaseAfter(slot, exchange);
    return exchange;
  };

  const handle = async (req: Request, res: ServerResponse): Promise<void> => {
    const execution = executionOf(req);
    const requestId = findContext(req)?.requestId ?? newRequestId(req);
    const refuse = (refusal: Problem): void => {
      const document = problemDocument(refusal, requestId);
      if (execution) execution.conclude(refused(document));
      else sendProblem(res, document);
    };
    if (execution?.isTransactional) return refuse(inNoTransaction());
    const target = targetFor(req as HandlerRequest);
    const malformed = refusalOfHead(req, res, target);
    if (malformed) return refuse(malformed);
    const body = execution ? execution.rawBody : await rawBodyOf(req, settings);
    if (body === 'gone') return;
    if (!body) {
      const parsed = parsedBefore(req);
      if (!hasWarned) process.emitWarning(parsed.detail, 'oncegate');
      hasWarned = true;
      return refuse(parsed);
    }
    if (isProblem(body)) return refuse(body);
    const exchange = await send(req, res, target, body, requestId);
    if (execution)
      return execution.conclude(
        exchange ?? { kind: 'not_sent', reason: 'no connection to the backend was free' },
      );
    const answer = exchange ? answerOfExchange(asReceived(exchange), 'forwarded') : overloaded();
    if ('problem' in answer) sendProblem(res, problemDocument(answer.problem, requestId));
    else if ('stream' in answer) sendStream(res, answer.stream, requestId);
    else writeResponse(res, answer.response, requestId);
  };

  const handler = (req: Request, res: ServerResponse, next: (error?: unknown) => void): void => {
    handle(req, res).catch((error: unknown) => {
      const execution = executionOf(req);
      // Nothing was sent: only `send` sends, and it does not throw.
      if (execution) execution.conclude({ kind: 'not_sent', reason: 'forward() could not send the request' });
      next(errorOf(error));
    });
  };
  return Object.assign(handler, { close: () => executor.destroy() });
}

function headersMaker({ authorization, replaceWith }: z.infer<typeof forwardOptions>) {
  const keyHeaders = idempotencyOptions.shape.headers.parse(undefined);
  const keep = (value: string) => (authorization === 'keep' ? value : undefined);
  return (req: Request, requestId: string): string[] => {
    // `idempotency` asks its option `merchant` only for a request with a key.
    const merchantCode = String(findContext(req)?.merchant?.code || req.merchant?.code || '');
    // The backend would take it for another merchant.
    if (merchantCode !== merchantCode.trim())
      throw new TypeError('forward: the merchant code must not begin or end with a space');
    const names = executionOf(req)?.keyHeaders ?? keyHeaders;
    const { fields: received, changed } = fieldsNow(req);
    const fields = forwardedHeaders(received, {
      requestId,
      merchantCode,
      client: findClientInExpress(req),
      secure: isEncrypted(req),
      authorization: keep,
      // A client must not take off what the application has set.
      keyHeaders: [...names, ...changed],
      keepUnderscore: [],
      unencoded: true,
      hops: req.headers[HOPS] as string | undefined,
    });
    if (replaceWith !== undefined && merchantCode !== '') fields.push('Authorization', replaceWith);
    return fields;
  };
}

/** The refusal of a request whose bytes a body parser has taken. It names the parser, if the request shows which one it was. */
function parsedBefore({ headers, body }: Request): Problem {
  const type = headers['content-type'] ?? '';
  let parser = /\bjson\b/i.test(type) ? 'express.json()' : 'A body parser';
  if (/urlencoded/i.test(type)) parser = 'express.urlencoded()';
  if (typeof body === 'string') parser = 'express.text()';
  if (Buffer.isBuffer(body)) parser = 'express.raw()';
  const detail = `${parser}, or a parser like it, has read or decompressed the body before forward(): place forward() before it. Nothing was sent.`;
  return problem('internal_error', detail);
}

/** The refusal of a request behind `transactional`: `forward` commits no transaction, so the key would be free after the request was sent. */
const inNoTransaction = (): Problem =>
  problem(
    'internal_error',
    'forward() cannot send a request in a transaction: place it behind an idempotency() without transactional. Nothing was sent.',
  );

/** The refusal as the response of a handler that has done nothing. */
const refused = ({ status, headers, body }: ProblemDocument): Exchange => ({
  kind: 'complete',
  response: { status, headers: Object.entries(headers).flat(), body: Buffer.from(body) },
  said: 'not_executed',
});

/** The bytes of the body, unless a parser has read them and only its result is there. */
async function rawBodyOf(req: Request, limits: { bodyBytes: number; bodyTimeoutMs: number }) {
  const found = await bodyOf(req, limits);
  if (found === 'gone' || isProblem(found)) return found;
  return found.isRaw ? found.bytes : undefined;
}
