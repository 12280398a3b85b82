import { IncomingMessage, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { endToEndHeaders } from '../backend/headers.ts';
import type { Exchange, Said } from '../lib/exchange.ts';
import { hasField } from '../requests/fields.ts';
import { keepReadable } from './kept-request.ts';

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

/** These change a response. */
const WRITERS = [
  ...['setHeader', 'setHeaders', 'appendHeader', 'removeHeader', 'addTrailers', 'flushHeaders'],
  ...['writeHead', 'write', 'end', 'writeEarlyHints', 'writeProcessing'],
];
const READERS = ['getHeader', 'getHeaders', 'getHeaderNames', 'getRawHeaderNames', 'hasHeader'];
const METHODS = [...WRITERS, ...READERS, 'destroy', 'cork', 'uncork'];
const PROPERTIES = [
  ...['statusCode', 'statusMessage', 'sendDate', 'headersSent', '_header', 'finished', 'writableEnded'],
  ...['writableLength', 'writableNeedDrain', 'destroyed', 'closed', '_closed'],
  // Without a socket, libraries wait for the events of the response and not for those of the merchant's connection.
  ...['socket', 'connection'],
];
/** Events of the merchant's connection. A handler must not see them before its own response has ended. */
const OF_THE_CONNECTION = ['finish', 'close', 'error'];
/** Node sets these on the real response when the merchant disconnects. */
const SET_BY_NODE = ['destroyed', '_closed', 'socket'];

type Bag = Record<string, unknown>;
type Listener = (...args: unknown[]) => void;
type LateEvent = [name: string, args: unknown[]];
/** `written`: called when an oversize response is sent. */
type Part = { chunk: Buffer; written?: (() => void) | undefined };

/**
 * Records the response of a handler, and holds it back until it is stored. The handler keeps its own response object, but
 * what it reads and writes there goes to a second response, which has no connection. So the handler also goes on when the
 * merchant disconnects: every write is accepted, and neither the request nor the response says that it was aborted.
 *
 * After {@link restore} the object is the real response again.
 */
export class Recording {
  /** Called once, when it is known how the execution ended. */
  readonly #done: (exchange: Exchange) => void;
  readonly #res: ServerResponse;
  readonly #options: RecordingOptions;
  readonly #held: ServerResponse;
  /** The descriptors of the response's own properties that the recording has replaced. */
  readonly #before = new Map<string, PropertyDescriptor | undefined>();
  /** The listeners of others than the handler, by event. */
  readonly #otherListeners: ReadonlyMap<string, readonly Listener[]>;
  #timer: NodeJS.Timeout;
  /** What Node has set on the real response meanwhile. */
  readonly #real: Bag = {};
  /** Destroys the request, if Node has tried to meanwhile. */
  #letGo: () => void = () => {};
  readonly #lateEvents: LateEvent[] = [];
  /** Called when the answer that {@link answerFirst} has written was sent. */
  #whenSent: (() => void) | undefined;
  readonly #body: Part[] = [];
  #bytes = 0;
  /** Made when the head was written: the header fields cannot change any more. */
  #fields: string[] | undefined;
  #isDone = false;
  #isHandlerDone = false;
  #isAnswered = false;
  #isLeft = false;
  /** Tells how the handler ends after the execution was abandoned. */
  #late: ((exchange: Exchange) => void) | undefined;
  /** Stands for an oversize response, until it has been sent. */
  #oversize: Readable | undefined;
  #said: Said = 'nothing';

  constructor(res: ServerResponse, options: RecordingOptions, done: (exchange: Exchange) => void) {
    this.#res = res;
    this.#options = options;
    this.#done = done;
    this.#otherListeners = new Map(
      OF_THE_CONNECTION.map((name) => [name, res.rawListeners(name) as Listener[]]),
    );
    this.#held = this.#heldResponse();
    this.#redirect(METHODS, PROPERTIES);
    this.#holdEvents();
    this.#letGo = keepReadable(res.req, () => this.#held.destroy());
    res.on('pipe', this.#onPipe);
    this.#timer = setTimeout(() => {
      this.#timer = setTimeout(() => this.#abandon(), options.abandonAfterMs - options.timeoutMs).unref();
      options.onTimeLimit();
    }, options.timeoutMs);
  }

  /** The merchant got another answer before the handler has ended. */
  get isAnswered(): boolean {
    return this.#isAnswered;
  }

  /** Answers the merchant while the handler goes on, which notices nothing: its response is still recorded. */
  answerFirst(write: () => void): void {
    this.#isAnswered = true;
    if (this.#real.destroyed) {
      // The merchant has disconnected.
      for (const [name, args] of this.#lateEvents) this.#tellOthers(name, args);
      return;
    }
    const res = this.#res;
    // Middleware behind this one, such as compression, may have wrapped these, and may hold a part of the body.
    const wrapped = Object.fromEntries(WRITERS.map((name) => [name, Reflect.get(res, name) as unknown]));
    this.#showReal();
    // Node would throw away what the handler has not read of the request when this answer has been sent.
    Object.assign(res.req, { _consumed: true });
    write();
    // A middleware in front may end the answer later. It needs the real response until then.
    this.#dropWrites();
    Object.assign(res, wrapped);
    this.#holdEvents();
    const holdAgain = () => {
      this.#redirect(METHODS, PROPERTIES);
      Object.assign(res, wrapped);
    };
    if (res.writableEnded) holdAgain();
    else this.#whenSent = holdAgain;
  }

  /** The execution has ended, and the merchant gets nothing of it. What the handler still writes of an oversize response is dropped. */
  leave(): void {
    if (this.#isHandlerDone) this.restore();
    else if (this.#oversize) {
      this.#isLeft = true;
      this.#oversize.destroy();
      for (const { written } of this.#body.splice(0)) if (written) process.nextTick(written);
      this.#res.emit('drain');
    }
  }

  /** Ends the recording with the result of a handler that writes no response. A middleware before it may have said `unknown`. */
  conclude(exchange: Exchange): void {
    if (this.#isDone && exchange.kind === 'oversize') exchange.body.destroy();
    this.#isHandlerDone = true;
    if (this.#said !== 'unknown' || exchange.kind === 'unknown') this.#end(exchange);
    else if (exchange.kind === 'not_sent') this.#end({ ...exchange, kind: 'unknown', timedOut: false });
    else this.#end({ ...exchange, said: 'unknown' });
  }

  /**
   * What the handler says of its execution.
   *
   * @throws {Error} if it is too late to say so
   */
  say(said: Exclude<Said, 'nothing'>): void {
    if (this.#isDone) throw new Error('the response has ended: what became of the key is decided');
    // Once it cannot be known, it stays so.
    if (this.#said !== 'unknown') this.#said = said;
  }

  /** Makes the object the real response again, as it was before the handler ran. Emits the events that were held back. */
  restore(): void {
    this.#showReal();
    this.#letGo();
    const lateEvents = this.#lateEvents.splice(0);
    if (this.#isAnswered) {
      for (const [name, args] of [['finish', []] satisfies LateEvent, ...lateEvents])
        this.#tellHandler(name, args);
      return;
    }
    if (this.#isHandlerDone && this.#res.destroyed) this.#tellHandler('finish', []);
    for (const [name, args] of lateEvents)
      if (name !== 'error' || this.#res.listenerCount(name) > 0) this.#res.emit(name, ...args);
  }

  #showReal(): void {
    for (const [name, descriptor] of this.#before) {
      delete (this.#res as unknown as Bag)[name];
      if (descriptor) Object.defineProperty(this.#res, name, descriptor);
    }
    this.#before.clear();
    Object.assign(this.#res, this.#real);
  }

  /** After an answer that is not the handler's own: what the handler still writes is dropped. */
  ignoreHandler(): void {
    if (this.#isHandlerDone) return;
    if (this.#res.destroyed) this.#redirect(METHODS, PROPERTIES);
    else this.#dropWrites();
  }

  /** What the handler writes does not reach the real response. */
  #dropWrites(): void {
    const res = this.#res;
    const { writeHead, statusCode } = res;
    // A middleware in front that ends the response later, for example after it has saved a session.
    this.#replace('_implicitHeader', { value: () => writeHead.call(res, statusCode), writable: true });
    this.#redirect(WRITERS, ['statusCode', 'statusMessage']);
  }

  /** Is this the oversize response that the handler writes? */
  isOversize(body: Readable): boolean {
    return body === this.#oversize;
  }

  /** Sends what the handler has written of its oversize response. From here the handler writes to the real response. */
  stream(writeHead: () => void): void {
    if (this.#real.destroyed) {
      this.leave();
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
      this.#end({ kind: 'unknown', reason: 'the handler destroyed its response', timedOut: false });
      return this.#res;
    };
    // Nothing is sent before the response is stored.
    held.writeEarlyHints = () => {};
    held.writeProcessing = () => {};
    return held;
  }

  #writeHead(...args: unknown[]): ServerResponse {
    ServerResponse.prototype.writeHead.apply(this.#held, args as [number]);
    return this.#res;
  }

  /** By the method of the response, which another middleware may have replaced to change the header fields in time. */
  #needHead(): void {
    if (!this.#held.headersSent) this.#res.writeHead(this.#res.statusCode);
  }

  #write(...args: unknown[]): boolean {
    const { chunk, callback } = bodyArguments(args);
    if (chunk === undefined) throw new TypeError('a chunk must be a string, a Buffer or a Uint8Array');
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
    if (this.#isDone && !this.#late) {
      if (this.#isLeft) this.restore();
      return this.#res;
    }
    const body = isBodiless(this.#held)
      ? Buffer.alloc(0)
      : Buffer.concat(this.#body.map(({ chunk }) => chunk));
    const response = { status: this.#held.statusCode, headers: this.#headers(), body };
    this.#end({ kind: 'complete', response, said: this.#said });
    return this.#res;
  }

  /** False: the handler should wait for `drain`. */
  #add(chunk: Buffer, callback?: () => void): boolean {
    this.#bytes += chunk.length;
    // After the end of the recording nobody reads the body, except that of an oversize response.
    if (this.#isDone && !this.#late && (!this.#oversize || this.#oversize.destroyed)) {
      if (callback) process.nextTick(callback);
      return true;
    }
    this.#body.push({ chunk, written: this.#oversize ? callback : undefined });
    if (this.#oversize) return false;
    if (callback) process.nextTick(callback);
    const headers = this.#headers();
    if (this.#bytes + sizeOf(headers) <= this.#options.maxBytes) return true;
    this.#oversize = new Readable({ read() {} });
    const status = this.#held.statusCode;
    this.#end({ kind: 'oversize', status, headers, body: this.#oversize, said: this.#said });
    return false;
  }

  /** A late end is still told. */
  #abandon(): void {
    const { promise: late, resolve } = Promise.withResolvers<Exchange>();
    const reason = `the handler did not end its response within ${this.#options.abandonAfterMs} ms`;
    this.#end({ kind: 'unknown', reason, timedOut: true, late });
    this.#late = (exchange) => {
      this.#late = undefined;
      resolve(exchange);
      this.leave();
    };
  }

  #end(exchange: Exchange): void {
    if (this.#isDone) {
      this.#late?.(exchange);
      return;
    }
    this.#isDone = true;
    clearTimeout(this.#timer);
    this.#res.off('pipe', this.#onPipe);
    this.#done(exchange);
  }

  /** The end-to-end header fields, names and values in turn. Call it after the head was written. */
  #headers(): string[] {
    if (this.#fields) return this.#fields;
    const held = this.#held;
    const fields = rawNames(held).flatMap((name) =>
      [held.getHeader(name)].flat().flatMap((value) => [name, String(value)]),
    );
    // Node would add the date of each replay.
    if (held.sendDate && !hasField(fields, 'date')) fields.push('Date', new Date().toUTCString());
    this.#fields = endToEndHeaders(fields);
    return this.#fields;
  }

  #holdEvents(): void {
    const res = this.#res;
    const { emit } = res;
    this.#replace('emit', {
      value: (name: string, ...args: unknown[]): boolean => {
        const isHeld = this.#isAnswered
          ? OF_THE_CONNECTION.includes(name)
          : ['close', 'error'].includes(name);
        if (!isHeld) return emit.call(res, name, ...args);
        if (name !== 'finish') this.#lateEvents.push([name, args]);
        if (this.#isAnswered) this.#tellOthers(name, args);
        return true;
      },
      writable: true,
    });
  }

  /** The merchant's answer was sent, which is not the handler's. */
  #tellOthers(name: string, args: unknown[]): void {
    for (const listener of this.#otherListeners.get(name) ?? []) listener.apply(this.#res, args);
    this.#whenSent?.();
    this.#whenSent = undefined;
  }

  /** For the handler its response has ended well, whatever the merchant got: a `pipeline` must not fail. */
  #tellHandler(name: string, args: unknown[]): void {
    for (const listener of this.#res.rawListeners(name) as Listener[])
      if (!this.#otherListeners.get(name)?.includes(listener)) listener.apply(this.#res, args);
  }

  /** Redirects these members of the response to the one that has no connection. */
  #redirect(methods: readonly string[], properties: readonly string[]): void {
    const res = this.#res;
    const held = this.#held as unknown as Bag & Record<string, (...args: unknown[]) => unknown>;
    for (const name of methods) {
      const value = (...args: unknown[]) => {
        const result = held[name]?.(...args);
        return (result as unknown) === held ? res : result;
      };
      this.#replace(name, { value, writable: true });
    }
    for (const name of properties) {
      const set = (value: unknown) => {
        const bag: Bag = SET_BY_NODE.includes(name) ? this.#real : held;
        bag[name] = value;
      };
      this.#replace(name, { get: () => held[name], set });
    }
  }

  #replace(name: string, descriptor: PropertyDescriptor): void {
    if (!this.#before.has(name)) this.#before.set(name, Object.getOwnPropertyDescriptor(this.#res, name));
    Object.defineProperty(this.#res, name, { ...descriptor, configurable: true });
  }
}

/** The names of the header fields as they were written. Node's types lack this method. */
const rawNames = (res: ServerResponse): string[] =>
  (res as unknown as { getRawHeaderNames(): string[] }).getRawHeaderNames();

const isBodiless = ({ req, statusCode }: ServerResponse): boolean =>
  req.method === 'HEAD' || statusCode === 204 || statusCode === 304;

const sizeOf = (headers: readonly string[]): number =>
  headers.reduce((bytes, text) => bytes + text.length, 0);

/** The arguments of `write` and `end`: (chunk?, encoding?, callback?). */
function bodyArguments(args: unknown[]) {
  const callback = args.find((arg) => typeof arg === 'function') as ((error?: Error) => void) | undefined;
  const [chunk, encoding] = args.filter((arg) => typeof arg !== 'function');
  return { callback, chunk: bytesOf(chunk, encoding) };
}

function bytesOf(chunk: unknown, encoding: unknown): Buffer | undefined {
  if (typeof chunk === 'string')
    return Buffer.from(chunk, (encoding as BufferEncoding | undefined) ?? 'utf8');
  // A copy: the handler may use its buffer again.
  return chunk instanceof Uint8Array ? Buffer.from(chunk) : undefined;
}
