import { buildConnector, type Dispatcher, Pool } from 'undici';
import type { ClientTls } from '../lib/certificate.ts';
import { afterReading, type Clock } from '../lib/clock.ts';
import type { Exchange } from '../lib/exchange.ts';
import { hasField, valuesOf } from '../requests/fields.ts';
import { endToEndHeaders, METHODS_WITH_BODY } from './headers.ts';
import { OversizeBody, OversizeStreams, StreamCut } from './oversize.ts';
import type { UpstreamOptions } from './upstream-options.ts';

/** One request to the backend, with its whole body in memory. */
export interface UpstreamRequest {
  method: string;
  /** Path and query, as received. */
  target: string;
  /** Names and values in turn. undici adds Host and Content-Length. */
  headers: string[];
  body: Buffer;
}

export interface SendOptions {
  /** The last-moment fence. Asked before a connection is opened, and again right before the first byte is written. Default: always true. */
  maySend?: () => boolean;
  /** Called right before the first byte is written: from here on the request may be executed. */
  sends?: (() => void) | undefined;
  /** Called with the result, at once when it is known. */
  ended?: (result: Exchange & { elapsedMs: number }) => void;
  /** Time to the complete response, and between two chunks of an oversize one. Milliseconds; default `responseTimeoutMs`. */
  timeoutMs?: number;
}

const CUT = 'only the end of the connection showed where the response ends';
const TOO_LATE = 'the lease had lapsed before the request could be sent';

/** DNS, TCP or TLS failed: no byte of a request was sent. */
class NotConnected extends Error {
  override readonly name = 'NotConnected';
}

/** The time for the response is over, or the lease has lapsed before the first byte of the request. */
class DeadlinePassed extends Error {
  override readonly name = 'DeadlinePassed';
}

/**
 * Sends requests to the backend, each at most once: it never retries, and it knows nothing of merchants, so that a merchant
 * who disconnects cannot stop an execution. Responses up to `maxResponseBytes` are held in memory; larger ones are streamed
 * (see oversize.ts).
 *
 * Callers take a slot first (see slots.ts). Then a connection is free for each request, and none queues inside undici.
 */
export class Executor {
  readonly #pool: Pool;
  readonly #streams: OversizeStreams;
  readonly #options: UpstreamOptions;
  readonly #maxResponseBytes: number;
  readonly #clock: Clock;
  /**
   * undici reports the end of a response after a reset too. The end is orderly only within the 'end' event of its socket. Events run one
   * after the other, so one flag is enough for all sockets.
   */
  readonly #connection = { isEnding: false };

  /** @param tls for an https backend. Default: it must have a certificate of a well-known authority */
  constructor(options: UpstreamOptions, maxResponseBytes: number, clock: Clock, tls?: ClientTls) {
    this.#options = options;
    this.#maxResponseBytes = maxResponseBytes;
    this.#clock = clock;
    this.#streams = new OversizeStreams(options.maxConnections);
    const connectorWith = () =>
      buildConnector({ timeout: options.connectTimeoutMs, allowH2: false, ...tls?.options });
    let connect = connectorWith();
    tls?.certificate.onChange(() => {
      connect = connectorWith();
    });
    this.#pool = new Pool(options.url, {
      connections: options.maxConnections,
      pipelining: 1,
      keepAliveTimeout: options.keepAliveMs,
      keepAliveMaxTimeout: options.keepAliveMs,
      // undici's timers are off: ResponseReader has a deadline for a response, and OversizeBody one for each chunk.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: (to, done) =>
        connect(to, (error, socket) => {
          if (error) return done(new NotConnected(reasonOf(error)), null);
          socket.on('end', () => {
            this.#connection.isEnding = true;
          });
          // undici adds its own 'end' listener here, between the two.
          done(null, socket);
          socket.on('end', () => {
            this.#connection.isEnding = false;
          });
        }),
    });
  }

  /** Never throws. `elapsedMs`: from this call to the complete response, or to the failure. */
  send(
    request: UpstreamRequest,
    { maySend = () => true, timeoutMs = this.#options.responseTimeoutMs, sends, ended }: SendOptions = {},
  ): Promise<Exchange & { elapsedMs: number }> {
    const startedMs = this.#clock.monotonicMs();
    return new Promise((resolve) => {
      const end = (exchange: Exchange) => {
        const result = Object.assign(exchange, { elapsedMs: this.#clock.monotonicMs() - startedMs });
        resolve(result);
        ended?.(result);
      };
      if (!maySend()) return end({ kind: 'not_sent', reason: TOO_LATE });
      const rules = {
        method: request.method,
        maxBytes: this.#maxResponseBytes,
        timeoutMs,
        maySend,
        sends,
        connection: this.#connection,
        trustsEnd: this.#options.endOfConnection === 'trusted',
      };
      const reader = new ResponseReader(rules, this.#streams, end);
      try {
        const { target, headers, body } = request;
        const method = request.method as Dispatcher.HttpMethod;
        const options = { path: target, method, headers, body };
        const mustClose = body.length > 0 && !METHODS_WITH_BODY.includes(method);
        this.#pool.dispatch(mustClose ? { ...options, reset: true } : options, reader);
      } catch (error) {
        reader.onResponseError(undefined, error as Error);
      }
    });
  }

  /** Closes all connections at once. Requests that were sent end as `unknown`. */
  async destroy(): Promise<void> {
    await this.#pool.destroy();
  }
}

interface ReadRules {
  /** The request's method. */
  method: string;
  maxBytes: number;
  timeoutMs: number;
  maySend: () => boolean;
  sends: (() => void) | undefined;
  /** `isEnding`: a socket emits 'end' at this moment. */
  connection: { readonly isEnding: boolean };
  /** An orderly end of the connection is the end of the response: {@link UpstreamOptions}. */
  trustsEnd: boolean;
}

/**
 * Receives undici's events of one request. undici calls `onRequestStart` right before it writes the first byte: a failure
 * before that call means that nothing was sent; after it, the request may have been executed.
 */
class ResponseReader implements Dispatcher.DispatchHandler {
  readonly #rules: ReadRules;
  readonly #streams: OversizeStreams;
  readonly #resolve: (result: Exchange) => void;
  readonly #deadline: NodeJS.Timeout;
  #controller: Dispatcher.DispatchController | undefined;
  #sent = false;
  #ended = false;
  #status = 0;
  #headers: string[] = [];
  #hasOwnEnd = false;
  #chunks: Buffer[] = [];
  #bytes = 0;
  #oversize: OversizeBody | undefined;

  constructor(rules: ReadRules, streams: OversizeStreams, resolve: (result: Exchange) => void) {
    this.#rules = rules;
    this.#streams = streams;
    this.#resolve = resolve;
    this.#deadline = setTimeout(() => this.#onDeadline(), rules.timeoutMs);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    // The deadline passed while undici connected, and the caller has its `not_sent` already.
    if (this.#ended) {
      controller.abort(new DeadlinePassed());
      return;
    }
    // This process may have been paused while undici connected, and another process may own the key by now.
    if (!this.#rules.maySend()) {
      this.#end({ kind: 'not_sent', reason: TOO_LATE });
      controller.abort(new DeadlinePassed());
      return;
    }
    this.#controller = controller;
    this.#sent = true;
    this.#rules.sends?.();
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number): void {
    if (status < 200) return;
    this.#status = status;
    const raw = (controller.rawHeaders ?? []) as (Buffer | string)[];
    const headers = raw.map((text) => text.toString('latin1'));
    this.#hasOwnEnd = hasOwnEnd(this.#rules.method, status, headers);
    this.#headers = endToEndHeaders(headers);
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#oversize) {
      this.#oversize.receive(chunk);
      return;
    }
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes > this.#rules.maxBytes) this.#beginStream(controller);
  }

  onResponseEnd(): void {
    const isOrderly = this.#hasOwnEnd || this.#rules.connection.isEnding;
    if (this.#oversize) {
      if (isOrderly) this.#oversize.receivedAll();
      else this.#oversize.destroy(new StreamCut(CUT));
      return;
    }
    const body = this.#chunks.length === 1 ? (this.#chunks[0] as Buffer) : Buffer.concat(this.#chunks);
    const isWhole = this.#hasOwnEnd || this.#rules.trustsEnd || isWholeJson(this.#headers, body);
    const response = { status: this.#status, headers: this.#headers, body };
    if (isOrderly && isWhole) this.#end({ kind: 'complete', response });
    else this.#end({ kind: 'unknown', reason: CUT, timedOut: false, ...(isOrderly && { response }) });
  }

  onResponseError(_controller: unknown, error: Error): void {
    if (this.#oversize) {
      this.#oversize.destroy(error);
      return;
    }
    const reason = reasonOf(error);
    if (!this.#sent) this.#end({ kind: 'not_sent', reason });
    else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });
  }

  /** The response is too large for the memory: from here the caller reads it as a stream, at its own pace. */
  #beginStream(controller: Dispatcher.DispatchController): void {
    const oversize = new OversizeBody(controller, this.#streams, this.#rules.timeoutMs);
    this.#oversize = oversize;
    for (const chunk of this.#chunks) oversize.receive(chunk);
    this.#chunks = [];
    this.#end({ kind: 'oversize', status: this.#status, headers: this.#headers, body: oversize });
    // Last, because this may cut the new stream at once, and the exchange must have its result by then.
    this.#streams.begin(oversize);
  }

  #onDeadline(): void {
    if (!this.#controller) {
      this.#end({ kind: 'not_sent', reason: `no connection within ${this.#rules.timeoutMs} ms` });
      return;
    }
    afterReading(() => this.#ended || this.#controller?.abort(new DeadlinePassed()));
  }

  /** Ends the exchange once: undici also reports an error when a request that has ended is aborted. */
  #end(result: Exchange): void {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#deadline);
    this.#resolve(result);
  }
}

/**
 * Whether the response itself shows where it ends: it has no body, or a length, or chunks. Otherwise it ends with the connection, and a
 * response that was cut looks the same.
 *
 * @param headers as received: names and values in turn
 */
function hasOwnEnd(method: string, status: number, headers: readonly string[]): boolean {
  if (method === 'HEAD' || status === 204 || status === 304) return true;
  const codings = valuesOf(headers, 'transfer-encoding').join(',');
  // The merchant could not read another coding: this field describes one connection, and is not passed on.
  if (codings !== '') return /^[ \t]*chunked[ \t]*$/i.test(codings);
  return hasField(headers, 'content-length');
}

/**
 * Whether a body that ends with its connection is whole: it is one JSON object or array. If either is cut, the rest is not valid JSON; a
 * number that is cut can still be valid.
 */
function isWholeJson(headers: readonly string[], body: Buffer): boolean {
  const [type = '', another] = valuesOf(headers, 'content-type');
  if (another !== undefined || !/^application\/(?:[^\s;]+\+)?json[ \t]*(?:;|$)/i.test(type)) return false;
  if (hasField(headers, 'content-encoding')) return false;
  try {
    const value: unknown = JSON.parse(body.toString());
    return typeof value === 'object' && value !== null;
  } catch {
    return false;
  }
}

/** The error's code if it has one, because messages may quote parts of the request. */
function reasonOf(error: Error): string {
  const { code } = error as NodeJS.ErrnoException;
  return error instanceof NotConnected ? error.message : (code ?? error.name);
}
