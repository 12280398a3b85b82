import { buildConnector, type Dispatcher, Pool } from 'undici';
import type { Clock } from '../kernel/clock.ts';
import type { Exchange } from '../kernel/exchange.ts';
import { endToEndHeaders } from './headers.ts';
import type { UpstreamOptions } from './options.ts';
import { OversizeBody, OversizeStreams } from './oversize.ts';

/** One request to the backend, whole in memory. */
export interface UpstreamRequest {
  method: string;
  /** Path and query, as received. */
  target: string;
  /** Names and values in turn, without Host and framing. */
  headers: string[];
  body: Buffer;
}

/** Marks failures of the connector: TCP, DNS, TLS. No byte of a request had been sent. */
class NotConnected extends Error {
  override readonly name = 'NotConnected';
}

/** The fence refused the request at the last moment. */
class MayNotSend extends Error {
  override readonly name = 'MayNotSend';
}

/** Options of one request. */
export interface Sending {
  /** Called before a connection is opened, and again right before the first byte is written. Default: always true. */
  maySend?: () => boolean;
  /** Time to the complete response, and between two chunks of an oversize one. Milliseconds; default `responseTimeoutMs`. */
  timeoutMs?: number;
}

const TOO_LATE = 'the lease had lapsed before the request could be sent';

/** The request's deadline has passed. */
class DeadlinePassed extends Error {
  override readonly name = 'DeadlinePassed';
}

/**
 * Sends requests to the backend, each at most once: it never retries, and never stops because a merchant has left.
 * Responses up to `maxResponseBytes` are held in memory; larger ones are streamed (see oversize.ts).
 *
 * Callers take a slot first (see slots.ts), so that a connection is free for each request and none queues in the pool.
 */
export class Executor {
  readonly #pool: Pool;
  readonly #streams: OversizeStreams;
  readonly #options: UpstreamOptions;
  readonly #maxResponseBytes: number;
  readonly #clock: Clock;

  constructor(options: UpstreamOptions, maxResponseBytes: number, clock: Clock) {
    this.#options = options;
    this.#maxResponseBytes = maxResponseBytes;
    this.#clock = clock;
    this.#streams = new OversizeStreams(options.maxConnections);
    const connect = buildConnector({ timeout: options.connectTimeoutMs, allowH2: false });
    this.#pool = new Pool(options.url, {
      connections: options.maxConnections,
      pipelining: 1,
      keepAliveTimeout: options.keepAliveMs,
      keepAliveMaxTimeout: options.keepAliveMs,
      // undici's timers are not needed: a response has our own deadline, and an oversize one must make progress.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: (to, done) =>
        connect(to, (error, socket) =>
          error ? done(new NotConnected(reasonOf(error)), null) : done(null, socket),
        ),
    });
  }

  /** Never throws. `elapsedMs`: from the call to the complete answer, or to its failure. */
  send(
    request: UpstreamRequest,
    { maySend = () => true, timeoutMs = this.#options.responseTimeoutMs }: Sending = {},
  ): Promise<Exchange & { elapsedMs: number }> {
    if (!maySend()) return Promise.resolve({ kind: 'not_sent', reason: TOO_LATE, elapsedMs: 0 });
    const startedMs = this.#clock.monotonicMs();
    return new Promise((resolve) => {
      const ended = (result: Exchange) =>
        resolve(Object.assign(result, { elapsedMs: this.#clock.monotonicMs() - startedMs }));
      const reader = new ResponseReader(this.#maxResponseBytes, this.#streams, timeoutMs, maySend, ended);
      try {
        this.#pool.dispatch(
          {
            path: request.target,
            method: request.method as Dispatcher.HttpMethod,
            headers: request.headers,
            body: request.body,
          },
          reader,
        );
      } catch (error) {
        reader.onResponseError(undefined, error as Error);
      }
    });
  }

  /** Ends idle connections, and waits for the others. */
  async close(): Promise<void> {
    await this.#pool.close();
  }

  /** Ends all connections at once. */
  async destroy(): Promise<void> {
    await this.#pool.destroy();
  }
}

/**
 * Follows one request. undici calls `onRequestStart` right before the first byte is written: a failure before that
 * means that nothing was sent, a failure after it that the request may have been executed.
 */
class ResponseReader implements Dispatcher.DispatchHandler {
  readonly #maxBytes: number;
  readonly #streams: OversizeStreams;
  readonly #timeoutMs: number;
  readonly #maySend: () => boolean;
  readonly #resolve: (result: Exchange) => void;
  readonly #deadline: NodeJS.Timeout;
  #controller: Dispatcher.DispatchController | undefined;
  #sent = false;
  #ended = false;
  #status = 0;
  #headers: string[] = [];
  #chunks: Buffer[] = [];
  #bytes = 0;
  #rest: OversizeBody | undefined;

  constructor(
    maxBytes: number,
    streams: OversizeStreams,
    timeoutMs: number,
    maySend: () => boolean,
    resolve: (result: Exchange) => void,
  ) {
    this.#maxBytes = maxBytes;
    this.#streams = streams;
    this.#timeoutMs = timeoutMs;
    this.#maySend = maySend;
    this.#resolve = resolve;
    this.#deadline = setTimeout(() => this.#pastDeadline(), timeoutMs);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    // Its deadline passed while it connected: it was answered as not sent.
    if (this.#ended) {
      controller.abort(new DeadlinePassed());
      return;
    }
    // This process may have been paused while it connected, and another one may own the key by now.
    if (!this.#maySend()) {
      this.#end({ kind: 'not_sent', reason: TOO_LATE });
      controller.abort(new MayNotSend());
      return;
    }
    this.#controller = controller;
    this.#sent = true;
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number): void {
    if (status < 200) return;
    this.#status = status;
    const raw = (controller.rawHeaders ?? []) as (Buffer | string)[];
    this.#headers = endToEndHeaders(raw.map((text) => text.toString('latin1')));
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#rest) {
      this.#rest.receive(chunk);
      return;
    }
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes > this.#maxBytes) this.#stream(controller);
  }

  onResponseEnd(): void {
    if (this.#rest) {
      this.#rest.receivedAll();
      return;
    }
    const body = this.#chunks.length === 1 ? (this.#chunks[0] as Buffer) : Buffer.concat(this.#chunks);
    this.#end({ kind: 'complete', response: { status: this.#status, headers: this.#headers, body } });
  }

  onResponseError(_controller: unknown, error: Error): void {
    if (this.#rest) {
      this.#rest.destroy(error);
      return;
    }
    const reason = reasonOf(error);
    if (!this.#sent) this.#end({ kind: 'not_sent', reason });
    else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });
  }

  /** The response is too large to hold: the reader gets a stream, at its own pace. */
  #stream(controller: Dispatcher.DispatchController): void {
    const rest = new OversizeBody(controller, this.#streams, this.#timeoutMs);
    this.#rest = rest;
    for (const chunk of this.#chunks) rest.receive(chunk);
    this.#chunks = [];
    this.#end({ kind: 'oversize', status: this.#status, headers: this.#headers, body: rest });
    // Not before the end of this exchange: a stream that is cut at once is no unknown outcome.
    this.#streams.begin(rest);
  }

  #pastDeadline(): void {
    if (!this.#controller) {
      this.#end({ kind: 'not_sent', reason: `no connection within ${this.#timeoutMs} ms` });
      return;
    }
    // After a pause timers run before sockets are read: the response may have arrived already.
    setImmediate(() => setImmediate(() => this.#ended || this.#controller?.abort(new DeadlinePassed())));
  }

  #end(result: Exchange): void {
    this.#ended = true;
    clearTimeout(this.#deadline);
    this.#resolve(result);
  }
}

/** The error's code if it has one, because messages may quote a part of the request. */
function reasonOf(error: Error): string {
  const { code } = error as NodeJS.ErrnoException;
  return error instanceof NotConnected ? error.message : (code ?? error.name);
}
