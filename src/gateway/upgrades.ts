import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { contextOf } from '../kernel/context.ts';
import type { Passthrough } from '../upstream/passthrough.ts';
import type { App } from './app.ts';
import { endSoon } from './http-server.ts';

/**
 * WebSockets. A handshake gets a response object and takes the path of every other request; at its end the socket is handed
 * to the backend's.
 */
export class Upgrades {
  readonly #passthrough: Passthrough;
  /** Handshakes that are on their path. */
  readonly #handshakes = new WeakMap<IncomingMessage, { socket: Socket; head: Buffer }>();
  readonly #open = new Set<Socket>();
  readonly #openSession: (req: IncomingMessage, end: () => void) => () => void;

  /** @param openSession calls `end` when the request's secret key is revoked; returns what to call when the socket has closed */
  constructor(passthrough: Passthrough, openSession: (req: IncomingMessage, end: () => void) => () => void) {
    this.#passthrough = passthrough;
    this.#openSession = openSession;
  }

  /** Starts the path of a handshake. */
  handle(app: App, req: IncomingMessage, socket: Socket, head: Buffer): void {
    socket.on('error', () => {});
    this.#handshakes.set(req, { socket, head });
    const res = new app.Response(req);
    res.shouldKeepAlive = false;
    res.assignSocket(socket);
    // The server has let go of the connection, so a refusal has to end it.
    res.once('finish', () => endSoon(socket));
    app.handle(req, res);
  }

  /** Hands a handshake that was let in to the backend. False: the request is none. */
  pass(req: IncomingMessage, res: ServerResponse): boolean {
    const handshake = this.#handshakes.get(req);
    if (!handshake) return false;
    const { socket, head } = handshake;
    const context = contextOf(req);
    context.outcome = 'upgraded';
    context.passedThrough = 'connecting';
    context.isUpgrade = true;
    res.detachSocket(socket);
    // The request ends with its connection.
    socket.once('close', () => res.emit('close'));
    this.#open.add(socket);
    socket.once('close', () => this.#open.delete(socket));
    // A merchant who does not close would keep the connection for good.
    socket.once('finish', () => endSoon(socket));
    socket.once(
      'close',
      this.#openSession(req, () => socket.destroy()),
    );
    if (!socket.destroyed) this.#passthrough.upgrade(req, socket, head);
    return true;
  }

  /** Ends all of them at once. */
  end(): void {
    for (const socket of this.#open) socket.destroy();
  }
}
