import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Passthrough } from '../backend/passthrough.ts';
import type { Authenticator } from '../keys/authenticate.ts';
import type { KeySource } from '../keys/key-source.ts';
import { OpenConnections } from '../keys/open-connections.ts';
import type { Clock } from '../lib/clock.ts';
import { contextOf } from '../lib/context.ts';
import { endSoon } from '../lib/problem.ts';
import type { Application } from './http-server.ts';

/**
 * WebSocket upgrades. A handshake gets a response object and passes the same middleware as every other request. Then the
 * merchant's socket is connected to the backend's.
 */
export class Upgrades {
  readonly #passthrough: Passthrough;
  /** The socket of each handshake, and the bytes that followed its head. */
  readonly #handshakes = new WeakMap<IncomingMessage, { socket: Socket; head: Buffer }>();
  readonly #open = new Set<Socket>();
  readonly #authenticator: Authenticator;
  readonly #keys: KeySource;
  readonly #connections: OpenConnections;

  constructor(passthrough: Passthrough, authenticator: Authenticator, keys: KeySource, clock: Clock) {
    this.#passthrough = passthrough;
    this.#authenticator = authenticator;
    this.#keys = keys;
    this.#connections = new OpenConnections(keys, clock);
  }

  /** Passes a handshake through the middleware. */
  handle(app: Application, req: IncomingMessage, socket: Socket, head: Buffer): void {
    socket.on('error', () => {});
    this.#handshakes.set(req, { socket, head });
    const res = new app.Response(req);
    res.shouldKeepAlive = false;
    res.assignSocket(socket);
    // Node's server no longer manages this connection, so it must be closed here after a refusal.
    res.once('finish', () => endSoon(socket));
    app.handle(req, res);
  }

  /** Passes an accepted handshake to the backend. Returns false if the request is not a handshake. */
  pass(req: IncomingMessage, res: ServerResponse): boolean {
    const handshake = this.#handshakes.get(req);
    if (!handshake) return false;
    const { socket, head } = handshake;
    const context = contextOf(req);
    context.outcome = 'upgraded';
    context.passedThrough = 'connecting';
    context.isUpgrade = true;
    context.spans?.send();
    res.detachSocket(socket);
    this.#open.add(socket);
    socket.once('close', () => {
      this.#open.delete(socket);
      // The response has lost its socket, so Node emits no `close` for it. The log line and the metrics need that event.
      res.emit('close');
    });
    // A merchant who does not close its side would keep the connection open for ever.
    socket.once('finish', () => endSoon(socket));
    // On a public path there is no secret key.
    if (context.merchant) {
      const remove = this.#addConnection(req, () => socket.destroy());
      socket.once('close', remove);
    }
    if (!socket.destroyed) this.#passthrough.upgrade(req, socket, head);
    return true;
  }

  /** Closes all upgraded connections at once. */
  end(): void {
    for (const socket of this.#open) socket.destroy();
  }

  /** Calls `end` when the request's secret key is revoked. The function that it returns stops that. */
  #addConnection({ rawHeaders }: IncomingMessage, end: () => void): () => void {
    const authentication = this.#authenticator.authenticate(rawHeaders);
    // A source without a list does not keep secret keys. The request has this one, and only its use renews it.
    const renew = this.#keys.ask && (() => void this.#authenticator.authenticate(rawHeaders));
    if (authentication.kind === 'merchant') return this.#connections.add(authentication.key, end, renew);
    end();
    return () => {};
  }
}
