import { IncomingMessage, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { isUint8Array } from 'node:util/types';
import { endToEndHeaders } from '../backend/headers.ts';
import type { BackendResponse, Exchange, Said } from '../lib/exchange.ts';
import { hasField, namesOf, valuesOf, without } from '../requests/fields.ts';
import { RedirectedResponse } from './redirected-response.ts';

export interface RecordingOptions {
  /** A larger response, header fields included, is streamed to the merchant and not stored. */
  maxBytes: number;
  /** How long the merchant waits. */
  timeoutMs: number;
  /** Time for the handler to end its response. */
  abandonAfterMs: number;
  /** Called when the merchant has waited for `timeoutMs`. */
  onTimeLimit(): void;
  /** Called when the handler pipes the response of another server into its own. */
  onProxy(): void;
}

/** `written`: called when an oversize response is sent. */
type Part = { chunk: Buffer; written?: (() => void) | undefined };

/**
 * Records the response of a handler, and holds it back until it is stored. The handler keeps its own response object, but
 * what it reads and writes there goes to a second response ({@link RedirectedResponse}), until {@link restore}.
 *
 * 1. The recording ends once: {@link endWith} is called when the handler ends or destroys its response, when the response becomes too
 *    large, when another part knows the result ({@link conclude}), or at last by {@link #abandon}.
 * 2. The merchant gets an answer. The recorded response and any other one: {@link restore}, then {@link ignoreHandler}. An oversize
 *    response: {@link stream}. None, because it got one before: {@link discard}.
 */
export class Recording {
  /** Called once, when it is known how the execution ended. */
  readonly #done: (exchange: Exchange) => void;
  readonly #res: ServerResponse;
  readonly #options: RecordingOptions;
  readonly #held: ServerResponse;
  /** The handler's response object. */
  readonly redirected: RedirectedResponse;
  #timer: NodeJS.Timeout;
  readonly #body: Part[] = [];
  #bytes = 0;
  /** Made when the head was written: the header fields cannot change any more. */
  #fields: string[] | undefined;
  /** The status when the head was written. As in Node, a later change has no effect: it could free the key. */
  #status = 0;
  #isDone = false;
  #isHandlerDone = false;
  #isDiscarded = false;
  /** Tells how the handler ends after the execution was abandoned. */
  #late: ((exchange: Exchange) => void) | undefined;
  /** Stands for an oversize response, until it has been sent. */
  #oversize: Readable | undefined;
  #said: Said = 'nothing';
  #isSending = false;

  constructor(res: ServerResponse, options: RecordingOptions, done: (exchange: Exchange) => void) {
    this.#res = res;
    this.#options = options;
    this.#done = done;
    this.#held = this.#heldResponse();
    this.redirected = new RedirectedResponse(res, this.#held);
    res.on('pipe', this.#onPipe);
    this.#timer = setTimeout(() => {
      this.#timer = setTimeout(() => this.#abandon(), options.abandonAfterMs - options.timeoutMs).unref();
      options.onTimeLimit();
    }, options.timeoutMs);
  }

  /**
   * Ends the recording: this is what became of the execution. What the handler still writes is dropped, except the rest of an oversize
   * response. A later call counts only after {@link #abandon}, as the late end of the handler.
   */
  endWith(exchange: Exchange): void {
    if (this.#isDone) {
      this.#late?.(exchange);
      return;
    }
    this.#isDone = true;
    clearTimeout(this.#timer);
    this.#res.off('pipe', this.#onPipe);
    this.#done(exchange);
  }

  /** The merchant does not get this response. Drops what the handler still writes of an oversize one. */
  discard(): void {
    if (this.#isHandlerDone) this.restore();
    else if (this.#oversize) {
      this.#isDiscarded = true;
      this.#oversize.destroy();
      for (const { written } of this.#body.splice(0)) if (written) process.nextTick(written);
      this.#res.emit('drain');
    }
  }

  /**
   * A response with this status, these header fields and this body. Adds the fields that are set on the handler's response, unless
   * `fields` has their names. Leaves out the hop-by-hop fields, and Content-Length and Content-Encoding of either.
   *
   * @param fields names and values in turn
   */
  responseOf(status: number, fields: readonly string[], body: Buffer): BackendResponse {
    const others = without(this.#setFields(), namesOf(fields));
    const headers = without(endToEndHeaders([...others, ...fields]), OF_ANOTHER_BODY);
    return { status, headers, body };
  }

  /**
   * The handler sends the request to a backend, and will {@link conclude}. If another middleware answers before, that answer says
   * nothing of what the backend does.
   */
  sends(): void {
    this.#isSending = true;
  }

  /** Ends the recording with the result of a handler that writes no response: with `unknown` if a middleware before it has said so. */
  conclude(exchange: Exchange): void {
    if (this.#isDone && exchange.kind === 'oversize') exchange.body.destroy();
    this.#isHandlerDone = true;
    if (this.#said !== 'unknown' || exchange.kind === 'unknown') this.endWith(exchange);
    else if (exchange.kind === 'not_sent') this.endWith({ ...exchange, kind: 'unknown', timedOut: false });
    else this.endWith({ ...exchange, said: 'unknown' });
  }

  /**
   * What the handler says of its execution.
   *
   * @throws {Error} if it is too late to say so
   */
  say(said: Exclude<Said, 'nothing'>): void {
    if (this.#isDone) throw new Error('the response has ended: what became of the key is decided');
    // Once a handler has said `unknown`, nothing that it says later counts.
    if (this.#said !== 'unknown') this.#said = said;
  }

  /** What a response says of the execution: `unknown` once the handler sends to a backend. */
  get #saidByResponse(): Said {
    return this.#isSending ? 'unknown' : this.#said;
  }

  /** Makes the object the real response again. */
  restore(): void {
    this.redirected.restore(this.#isHandlerDone);
  }

  /** After an answer that is not the handler's own: what the handler still writes is dropped. */
  ignoreHandler(): void {
    if (!this.#isHandlerDone) this.redirected.ignore();
  }

  /** Whether this is the oversize response that the handler writes. */
  isOversize(body: Readable): boolean {
    return body === this.#oversize;
  }

  /** Sends what the handler has written of its oversize response. From here the handler writes to the real response. */
  stream(writeHead: () => void): void {
    if (this.redirected.isGone) {
      this.discard();
      return;
    }
    const res = this.#res;
    const parts = this.#body.splice(0);
    const end = () => this.#oversize?.destroy();
    // Middleware behind this one, such as compression, may have wrapped these, and may hold a part of the body.
    const wrapped = { write: res.write, end: res.end };
    this.restore();
    res.once('close', end).once('finish', end);
    writeHead();
    for (const { chunk, written } of parts) res.write(chunk, () => written?.());
    if (this.#isHandlerDone) {
      res.end();
      return;
    }
    Object.assign(this.#held, { write: res.write.bind(res), end: res.end.bind(res) });
    Object.assign(res, wrapped);
    if (!res.writableNeedDrain) res.emit('drain');
  }

  #onPipe = (source: unknown): void => {
    if (source instanceof IncomingMessage && source.statusCode !== null) this.#options.onProxy();
  };

  /** A response without a connection. It keeps the status and the header fields, and passes the body to the recording. */
  #heldResponse(): ServerResponse {
    const { req, statusCode, statusMessage, sendDate } = this.#res;
    const held = Object.assign(new ServerResponse(req), { statusCode, statusMessage, sendDate });
    for (const name of rawNames(this.#res))
      held.setHeader(name, this.#res.getHeader(name) as string | string[]);
    // Node keeps the header fields of `writeHead` only after a first call of `setHeader`.
    held.setHeader('Oncegate', '').removeHeader('Oncegate');
    held.writeHead = (...args: unknown[]) => this.#writeHead(...args);
    held.flushHeaders = () => this.#needHead();
    held.write = (...args: unknown[]) => this.#write(...args);
    held.end = (...args: unknown[]) => this.#endResponse(...args);
    held.destroy = () => {
      // After the end of the response this closes the connection. The response goes first.
      if (this.#isHandlerDone) return this.#res;
      this.endWith({ kind: 'unknown', reason: 'the handler destroyed its response', timedOut: false });
      return this.#res;
    };
    // Nothing is sent before the response is stored. A handler may wait for the callback.
    const drop = (...args: unknown[]) => {
      const callback = callbackOf(args);
      if (callback) process.nextTick(callback);
    };
    Object.assign(held, { writeEarlyHints: drop, writeProcessing: drop });
    return held;
  }

  #writeHead(...args: unknown[]): ServerResponse {
    ServerResponse.prototype.writeHead.apply(this.#held, args as [number]);
    this.#status = this.#held.statusCode;
    return this.#res;
  }

  /** Makes the head, by the method of the response, which another middleware may have replaced to change the header fields in time. */
  #needHead(): void {
    if (!this.#held.headersSent) this.#res.writeHead(this.#res.statusCode);
  }

  #write(...args: unknown[]): boolean {
    const { chunk, callback } = bodyArguments(args);
    if (chunk === undefined) throw new TypeError(NO_BYTES);
    if (this.#isHandlerDone) {
      callback?.(Object.assign(new Error('write after end'), { code: 'ERR_STREAM_WRITE_AFTER_END' }));
      return false;
    }
    this.#needHead();
    return this.#add(chunk, callback);
  }

  #endResponse(...args: unknown[]): ServerResponse {
    if (this.#isHandlerDone) return this.#res;
    const { chunk, callback } = bodyArguments(args);
    if (callback) {
      if (this.#res.writableFinished) process.nextTick(callback);
      else this.#res.once('finish', () => callback());
    }
    this.#needHead();
    if (chunk) this.#add(chunk);
    this.#isHandlerDone = true;
    this.#held.finished = true;
    // The execution has its result already, and nothing waits for the handler.
    if (this.#isDone && !this.#late) {
      if (this.#isDiscarded) this.restore();
      return this.#res;
    }
    const status = this.#status;
    const isBodiless = this.#res.req.method === 'HEAD' || status === 204 || status === 304;
    const body = isBodiless ? Buffer.alloc(0) : Buffer.concat(this.#body.map(({ chunk }) => chunk));
    const response = { status, headers: this.#headers(), body };
    // A handler that passes on an answer may have got only a part of it. Then the length that it declares is another one.
    const declared = isBodiless ? undefined : valuesOf(response.headers, 'content-length')[0];
    if (declared === undefined || Number(declared) === body.length)
      this.endWith({ kind: 'complete', response, said: this.#saidByResponse });
    else {
      const reason = `the handler wrote ${body.length} bytes, and its Content-Length is ${declared}`;
      this.endWith({ kind: 'unknown', reason, timedOut: false });
    }
    return this.#res;
  }

  /** True when what the handler writes is dropped: the recording has ended, the handler is not late, and no oversize response is open. */
  get #isUnread(): boolean {
    return this.#isDone && !this.#late && (!this.#oversize || this.#oversize.destroyed);
  }

  /** Returns false if the handler should wait for `drain`. */
  #add(chunk: Buffer, callback?: () => void): boolean {
    this.#bytes += chunk.length;
    if (this.#isUnread) {
      if (callback) process.nextTick(callback);
      return true;
    }
    this.#body.push({ chunk, written: this.#oversize ? callback : undefined });
    if (this.#oversize) return false;
    if (callback) process.nextTick(callback);
    const headers = this.#headers();
    if (this.#bytes + sizeOf(headers) <= this.#options.maxBytes) return true;
    this.#oversize = new Readable({ read() {} });
    const status = this.#status;
    this.endWith({ kind: 'oversize', status, headers, body: this.#oversize, said: this.#saidByResponse });
    return false;
  }

  /** Ends the recording as `unknown`. `late` resolves if the handler ends afterwards. */
  #abandon(): void {
    const { promise: late, resolve } = Promise.withResolvers<Exchange>();
    const reason = `the handler did not end its response within ${this.#options.abandonAfterMs} ms`;
    this.endWith({ kind: 'unknown', reason, timedOut: true, late });
    this.#late = (exchange) => {
      this.#late = undefined;
      resolve(exchange);
      this.discard();
    };
  }

  /** The end-to-end header fields, names and values in turn. Call it after the head was written. */
  #headers(): string[] {
    this.#fields ??= endToEndHeaders(this.#setFields());
    return this.#fields;
  }

  #setFields(): string[] {
    const held = this.#held;
    const fields = rawNames(held).flatMap((name) =>
      [held.getHeader(name)].flat().flatMap((value) => [name, String(value)]),
    );
    // Node would add the date of each replay.
    if (held.sendDate && !hasField(fields, 'date')) fields.push('Date', new Date().toUTCString());
    return fields;
  }
}

/** They describe a body that the handler wrote, or got from another server. With them no client could read the body of `responseOf`. */
const OF_ANOTHER_BODY = ['content-length', 'content-encoding'];

/** The names of the header fields as they were written. Node's types lack this method. */
const rawNames = (res: ServerResponse): string[] =>
  (res as unknown as { getRawHeaderNames(): string[] }).getRawHeaderNames();

const sizeOf = (headers: readonly string[]): number =>
  headers.reduce((bytes, text) => bytes + text.length, 0);

/** The arguments of `write` and `end`: (chunk?, encoding?, callback?). */
function bodyArguments(args: unknown[]) {
  const [chunk, encoding] = args.filter((arg) => typeof arg !== 'function');
  return { callback: callbackOf(args), chunk: bytesOf(chunk, encoding) };
}

const callbackOf = (args: unknown[]) =>
  args.find((arg) => typeof arg === 'function') as ((error?: Error) => void) | undefined;

const NO_BYTES = 'a chunk must be a string, a Buffer or a Uint8Array';

function bytesOf(chunk: unknown, encoding: unknown): Buffer | undefined {
  if (typeof chunk === 'string')
    return Buffer.from(chunk, (encoding as BufferEncoding | undefined) ?? 'utf8');
  // A copy: the handler may use its buffer again.
  if (isUint8Array(chunk)) return Buffer.from(chunk);
  // As Node does. Without this, an empty body would be stored.
  if (chunk) throw new TypeError(NO_BYTES);
  return undefined;
}
