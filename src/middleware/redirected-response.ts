import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

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

/**
 * The response object of a handler while it is recorded: what the handler reads and writes there goes to a second response, which
 * has no connection. So the handler also goes on when the merchant disconnects: every write is accepted, and neither the request
 * nor the response says that it was aborted.
 *
 * After {@link restore} the object is the real response again.
 */
export class RedirectedResponse {
  readonly #res: ServerResponse;
  readonly #held: ServerResponse;
  /** The descriptors of the response's own properties that were replaced. */
  readonly #before = new Map<string, PropertyDescriptor | undefined>();
  /** The listeners by event, without those of the handler. */
  readonly #otherListeners: ReadonlyMap<string, readonly Listener[]>;
  /** What Node has set on the real response meanwhile. */
  readonly #real: Bag = {};
  /** Destroys the request, if Node has tried to meanwhile. */
  readonly #letGo: () => void;
  readonly #lateEvents: LateEvent[] = [];
  /** Called when the answer that {@link answerFirst} has written was sent. */
  #whenSent: (() => void) | undefined;
  #isAnswered = false;

  /** @param held the second response */
  constructor(res: ServerResponse, held: ServerResponse) {
    this.#res = res;
    this.#held = held;
    this.#otherListeners = new Map(
      OF_THE_CONNECTION.map((name) => [name, res.rawListeners(name) as Listener[]]),
    );
    this.#redirect(METHODS, PROPERTIES);
    this.#holdEvents();
    this.#letGo = keepReadable(res.req, () => held.destroy());
  }

  /** The merchant got another answer before the handler has ended. */
  get isAnswered(): boolean {
    return this.#isAnswered;
  }

  /** The merchant has disconnected. */
  get isGone(): boolean {
    return this.#real.destroyed === true;
  }

  /** Answers the merchant. The handler continues and notices nothing: its response is still recorded. */
  answerFirst(write: () => void): void {
    this.#isAnswered = true;
    if (this.isGone) {
      for (const [name, args] of this.#lateEvents) this.#tellOthers(name, args);
      return;
    }
    const res = this.#res;
    // Middleware behind this one, such as compression, may have wrapped these, and may hold a part of the body.
    const wrapped = Object.fromEntries(WRITERS.map((name) => [name, Reflect.get(res, name) as unknown]));
    this.#showReal();
    // Node would throw away what the handler has not read of the request when this answer has been sent.
    Object.assign(res.req, { _consuming: true });
    write();
    // A middleware in front may end the answer later, and writes to the real response until then. It also reads there until the head is made.
    const isHeadMade = res.headersSent;
    this.#dropWrites();
    if (isHeadMade) this.#redirect(READERS, ['headersSent']);
    Object.assign(res, wrapped);
    this.#holdEvents();
    const holdAgain = () => {
      // Undoes `#dropWrites`: the handler's own middleware, such as a session's, makes the head of the second response.
      Reflect.deleteProperty(res, '_implicitHeader');
      this.#redirect(METHODS, PROPERTIES);
      Object.assign(res, wrapped);
    };
    if (res.writableEnded) holdAgain();
    else this.#whenSent = holdAgain;
  }

  /** Makes the object the real response again, as it was before the handler ran. Emits the events that were held back. */
  restore(isHandlerDone: boolean): void {
    this.#showReal();
    this.#letGo();
    const lateEvents = this.#lateEvents.splice(0);
    if (this.#isAnswered) {
      for (const [name, args] of [['finish', []] satisfies LateEvent, ...lateEvents])
        this.#tellHandler(name, args);
      return;
    }
    if (isHandlerDone && this.#res.destroyed) this.#tellHandler('finish', []);
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

  /** What the handler still writes is dropped, and if the handler fails later, Express cannot close the connection. */
  ignore(): void {
    const { req } = this.#res;
    // Calls that would close this socket are ignored.
    req.socket = openSocket(req.socket, () => {});
    if (this.#res.destroyed) this.#redirect(METHODS, PROPERTIES);
    else this.#dropWrites();
  }

  /** What the handler writes does not reach the real response. */
  #dropWrites(): void {
    const res = this.#res;
    const { writeHead, statusCode } = res;
    // For a middleware in front that ends the response later, for example after it has saved a session.
    this.#replace('_implicitHeader', { value: () => writeHead.call(res, statusCode), writable: true });
    this.#redirect(WRITERS, ['statusCode', 'statusMessage']);
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

  /** Tells the others that the merchant's answer was sent. While they run, they see the real response, and not the handler's. */
  #tellOthers(name: string, args: unknown[]): void {
    const res = this.#res;
    const redirected = [...this.#before.keys()].map(
      (key) => [key, Object.getOwnPropertyDescriptor(res, key)] as const,
    );
    this.#showReal();
    try {
      for (const listener of this.#otherListeners.get(name) ?? []) listener.apply(res, args);
    } finally {
      for (const [key, descriptor] of redirected) if (descriptor) this.#replace(key, descriptor);
    }
    this.#whenSent?.();
    this.#whenSent = undefined;
  }

  /** Tells the handler that its response has ended well, whatever the merchant got: a `pipeline` must not fail. */
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

/**
 * Keeps a request readable while a handler runs. Node destroys it when the merchant disconnects: then its body could no longer
 * be read, and body parsers take it for empty when its socket is closed.
 *
 * @param close called when the handler or Express closes the merchant's connection
 * @returns a function that ends this, and destroys the request if Node has tried to meanwhile
 */
function keepReadable(req: IncomingMessage, close: () => void): () => void {
  const { destroy: destroyNow, socket } = req;
  let late: [Error?] | undefined;
  const destroy = (...args: [Error?]) => {
    // Node does so at the end of the body, and iterators and pipelines wait for the event `close`.
    if (req.readableEnded) return destroyNow.apply(req, args);
    late = args;
    return req;
  };
  Object.defineProperty(req, 'destroy', { value: destroy, configurable: true, writable: true });
  const value = openSocket(socket, close);
  Object.defineProperty(req, 'socket', { value, configurable: true, writable: true });
  let isKept = true;
  return () => {
    if (!isKept) return;
    isKept = false;
    req.socket = socket;
    if (req.destroy === destroy) delete (req as unknown as Record<string, unknown>).destroy;
    if (late) req.destroy(...late);
  };
}

const CLOSERS = ['destroy', 'destroySoon', 'resetAndDestroy', 'end'];

/**
 * The merchant's socket as the handler sees it: it never looks closed. Express closes it when a handler fails in the middle of
 * its response.
 */
function openSocket(socket: Socket, close: () => void): Socket {
  const get = (of: Socket, name: string | symbol) => {
    if (name === 'readable' || name === 'writable') return true;
    if (name === 'destroyed' || name === 'closed') return false;
    if (CLOSERS.includes(name as string)) return close;
    const value = Reflect.get(of, name) as unknown;
    return typeof value === 'function' ? value.bind(of) : value;
  };
  return new Proxy(socket, { get });
}
