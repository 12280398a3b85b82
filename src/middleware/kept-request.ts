import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';

/**
 * Keeps a request readable while a handler runs. Node destroys it when the merchant disconnects: then its body could no longer
 * be read, and body parsers take it for empty when its socket is closed.
 *
 * @param close called when the handler or Express closes the merchant's connection
 * @returns ends this, and destroys the request if Node has tried to meanwhile
 */
export function keepReadable(req: IncomingMessage, close: () => void): () => void {
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
