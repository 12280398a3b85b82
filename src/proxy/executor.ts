import { Readable } from 'node:stream';
import { buildConnector, type Dispatcher, Pool } from 'undici';
import type { Clock } from '../kernel/clock.ts';
import { endToEndHeaders } from './headers.ts';
import type { UpstreamOptions } from './options.ts';

/** One request to the backend, whole in memory. */
export interface UpstreamRequest {
  method: string;
  /** Path and query, as received. */
  target: string;
  /** Names and values in turn, without Host and framing. */
  headers: string[];
  body: Buffer;
}

/** How it ended, by phase. The same shape as the idempotency engine's `Exchange`. */
export type UpstreamResult =
  | { kind: 'complete'; response: { status: number; headers: string[]; body: Buffer } }
  | { kind: 'oversize'; status: number; headers: string[]; body: Readable }
  | { kind: 'not_sent'; reason: string }
  | { kind: 'unknown'; reason: string; timedOut: boolean };

/** Marks failures of the connector: TCP, DNS, TLS. No byte of a request had been sent. */
class NotConnected extends Error {
  override readonly name = 'NotConnected';
}

/** Whoever wanted the request sent must not have it sent any more. */
class MayNotStart extends Error {
  override readonly name = 'MayNotStart';
}

/** How one request is sent, where it is not as usual. */
export interface Sending {
  /** Asked before a connection is looked for, and again right before the first byte is written. */
  mayStart?: () => boolean;
  /** Instead of `responseTimeoutMs`. */
  timeoutMs?: number;
}

const TOO_LATE = 'the lease had lapsed before the request could be sent';

/** The request's time was over. */
class DeadlinePassed extends Error {
  override readonly name = 'DeadlinePassed';
}

/**
 * Sends requests to the backend, each exactly once: it never retries, and never gives up because a merchant left.
 * Responses up to `maxResponseBytes` are held in memory; of larger ones the rest streams.
 */
export class Executor {
  readonly #pool: Pool;
  readonly #options: UpstreamOptions;
  readonly #maxResponseBytes: number;
  readonly #clock: Clock;

  constructor(options: UpstreamOptions, maxResponseBytes: number, clock: Clock) {
    this.#options = options;
    this.#maxResponseBytes = maxResponseBytes;
    this.#clock = clock;
    const connect = buildConnector({ timeout: options.connectTimeoutMs, allowH2: false });
    this.#pool = new Pool(options.url, {
      connections: options.maxConnections,
      pipelining: 1,
      keepAliveTimeout: options.keepAliveMs,
      keepAliveMaxTimeout: options.keepAliveMs,
      // Our own total deadline comes first; past `maxResponseBytes` a streamed body still must not stand still.
      headersTimeout: 0,
      bodyTimeout: options.responseTimeoutMs,
      connect: (to, done) =>
        connect(to, (error, socket) =>
          error ? done(new NotConnected(reasonOf(error)), null) : done(null, socket),
        ),
    });
  }

  /** Never throws. `elapsedMs`: from the call to the complete answer, or to its failure. */
  async send(
    request: UpstreamRequest,
    { mayStart = () => true, timeoutMs = this.#options.responseTimeoutMs }: Sending = {},
  ): Promise<UpstreamResult & { elapsedMs: number }> {
    if (!mayStart()) return { kind: 'not_sent', reason: TOO_LATE, elapsedMs: 0 };
    const startedMs = this.#clock.monotonicMs();
    const result = await new Promise<UpstreamResult>((resolve) => {
      const exchange = new Exchange(this.#maxResponseBytes, timeoutMs, mayStart, resolve);
      try {
        this.#pool.dispatch(
          {
            path: request.target,
            method: request.method as Dispatcher.HttpMethod,
            headers: request.headers,
            body: request.body,
          },
          exchange,
        );
      } catch (error) {
        exchange.onResponseError(undefined, error as Error);
      }
    });
    return { ...result, elapsedMs: this.#clock.monotonicMs() - startedMs };
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
 * Follows one request. What matters is `#sent`: undici calls `onRequestStart` right before the first byte is written,
 * so that whatever fails before it was surely not sent, and whatever fails after it may have been executed.
 */
class Exchange implements Dispatcher.DispatchHandler {
  readonly #maxBytes: number;
  readonly #mayStart: () => boolean;
  readonly #resolve: (result: UpstreamResult) => void;
  readonly #deadline: NodeJS.Timeout;
  #controller: Dispatcher.DispatchController | undefined;
  #sent = false;
  #ended = false;
  #status = 0;
  #headers: string[] = [];
  #chunks: Buffer[] = [];
  #bytes = 0;
  #rest: Readable | undefined;

  constructor(
    maxBytes: number,
    timeoutMs: number,
    mayStart: () => boolean,
    resolve: (result: UpstreamResult) => void,
  ) {
    this.#maxBytes = maxBytes;
    this.#mayStart = mayStart;
    this.#resolve = resolve;
    this.#deadline = setTimeout(() => this.#pastDeadline(timeoutMs), timeoutMs);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    // Answered as not sent while it queued for a connection: then it must not be sent any more.
    if (this.#ended) {
      controller.abort(new DeadlinePassed());
      return;
    }
    // This process may have stood still while the request queued, and somebody else have sent it.
    if (!this.#mayStart()) {
      this.#end({ kind: 'not_sent', reason: TOO_LATE });
      controller.abort(new MayNotStart());
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
      if (!this.#rest.push(chunk)) controller.pause();
      return;
    }
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes > this.#maxBytes) this.#stream(controller);
  }

  onResponseEnd(): void {
    if (this.#rest) {
      this.#rest.push(null);
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

  /** Too large to hold: what came and what still comes goes through a stream, at the reader's pace. */
  #stream(controller: Dispatcher.DispatchController): void {
    const rest = new Readable({
      read: () => controller.resume(),
      // A reader who leaves ends the connection: the outcome is known by now.
      destroy: (error, done) => {
        controller.abort(error ?? new DeadlinePassed());
        done(error);
      },
    });
    this.#rest = rest;
    rest.on('error', () => {});
    for (const chunk of this.#chunks) rest.push(chunk);
    this.#chunks = [];
    this.#end({ kind: 'oversize', status: this.#status, headers: this.#headers, body: rest });
  }

  #pastDeadline(timeoutMs: number): void {
    if (!this.#controller) {
      this.#end({ kind: 'not_sent', reason: `no connection was free within ${timeoutMs} ms` });
      return;
    }
    // A process that stood still finds its timers due before it reads its sockets: the answer may be there already.
    setImmediate(() => setImmediate(() => this.#ended || this.#controller?.abort(new DeadlinePassed())));
  }

  #end(result: UpstreamResult): void {
    this.#ended = true;
    clearTimeout(this.#deadline);
    this.#resolve(result);
  }
}

/** A code where there is one: it names the phase, and never holds a part of the request. */
function reasonOf(error: Error): string {
  const { code } = error as NodeJS.ErrnoException;
  return error instanceof NotConnected ? error.message : (code ?? error.name);
}
