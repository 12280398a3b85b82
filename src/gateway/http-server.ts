import { constants, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerOptions,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import type { Config } from '../config/schema.ts';
import type { WatchedCertificate } from '../lib/certificate.ts';
import { hasBody } from '../lib/context.ts';
import {
  endSoon,
  type Problem,
  problem,
  problemDocument,
  sendProblem,
  sendProblemOnSocket,
} from '../lib/problem.ts';
import type { Emit, Told } from '../telemetry/emit.ts';
import { MAX_HEADER_LINES } from './admission.ts';
import { OpenResponses } from './open-responses.ts';

/**
 * The limits that the HTTP server enforces. `bodyTimeoutMs` only raises Node's own limit: `takeBody` enforces it for bodies that are
 * read into memory.
 */
export type ServerLimits = Pick<
  Config['limits'],
  'headerBytes' | 'connections' | 'headerTimeoutMs' | 'bodyTimeoutMs' | 'answerTimeoutMs'
>;

/** The public application, and the classes that its HTTP server must use for requests and responses. */
export interface Application {
  handle(req: IncomingMessage, res: ServerResponse): void;
  Request: typeof IncomingMessage;
  Response: typeof ServerResponse;
}

export interface ListenerTls {
  certificate: WatchedCertificate;
  minVersion: 'TLSv1.2' | 'TLSv1.3';
  /** Time for a client to complete the handshake. Then its connection is closed. Milliseconds. */
  handshakeTimeoutMs: number;
}

export interface HttpServerOptions {
  limits: ServerLimits;
  /** Default: the server speaks plain HTTP. */
  tls?: ListenerTls | undefined;
  /** Handles all requests, including those that expect `100 Continue`. */
  app: Application;
  emit: Emit;
  /** Handles WebSocket handshakes. Every other upgrade is an ordinary request. */
  onUpgrade(req: IncomingMessage, socket: Duplex, head: Buffer): void;
}

/** Time for a complete request to arrive, streamed ones included. */
const WHOLE_REQUEST_MS = 300_000;

/** Errors of a client that has disconnected, perhaps in the middle of a request. */
const DISCONNECTED = new Set(['ECONNRESET', 'EPIPE', 'HPE_INVALID_EOF_STATE']);

/** The parser got bytes while it was paused, and has dropped them. It would go on behind them, within another request. */
const LOST_BYTES = new Set(['HPE_PAUSED']);

export interface HttpServer {
  server: Server;
  /** Makes every open response close its connection, unless its head was sent. */
  endKeepAlive(): void;
  /** Accepts nothing more, and closes every connection at once. */
  closeAll(): void;
  /**
   * Replaces the limits. `headerBytes` holds for connections that are opened later. Node looks for late heads as often as
   * the limits at the start required, so a shorter `headerTimeoutMs` is kept to within a second.
   */
  limit(limits: ServerLimits): void;
}

/** Creates the HTTP server for merchants. It answers malformed HTTP, and closes the connection. */
export function createHttpServer(options: HttpServerOptions): HttpServer {
  const responses = new OpenResponses();
  /** Returns false if the request must be dropped, because an earlier response closes the connection or has closed it. */
  const accept = (req: IncomingMessage, res: ServerResponse): boolean => {
    if (!req.socket.writable || responses.willClose(req.socket)) return false;
    responses.begin(req.socket, res);
    return true;
  };
  const onRequest: RequestListener = (req, res) => {
    if (accept(req, res)) options.app.handle(req, res);
  };
  const http: ServerOptions = {
    IncomingMessage: options.app.Request,
    ServerResponse: options.app.Response,
    // Node's own refusal has no problem document, and Node would answer again when the connection closes.
    requireHostHeader: false,
    // How often Node looks for heads that are late. Its default is every 30 s.
    connectionsCheckingInterval: Math.min(1000, Math.ceil(options.limits.headerTimeoutMs / 2)),
    // Longer than the idle timeout of common load balancers, so that the balancer closes idle connections first.
    keepAliveTimeout: 65_000,
    // Any other upgrade (curl offers h2c by default) is an ordinary request, and must not bypass the middleware.
    // A handshake must not take over a connection that an unanswered or a dropped request occupies.
    shouldUpgradeCallback: (req) =>
      req.method === 'GET' &&
      req.headers.upgrade?.toLowerCase() === 'websocket' &&
      !hasBody(req) &&
      req.socket.writable &&
      !responses.busy(req.socket),
  };
  const server = options.tls
    ? createTlsServer(options.tls, http, onRequest, options.emit)
    : createServer(http, onRequest);
  // One line more than a request may have, so that `checkHead` sees that there are too many.
  server.maxHeadersCount = MAX_HEADER_LINES + 1;
  server.on('drop', () => options.emit('connectionsRefused', {}));
  // Clients that do not read their responses could exhaust limits.inFlight, without any credentials.
  let closeUnread: NodeJS.Timeout | undefined;
  let closeEveryMs: number | undefined;
  /** Node reads these members for each connection, so they can be changed at any time. */
  const limit = (limits: ServerLimits): void => {
    const { headerBytes, connections, headerTimeoutMs, bodyTimeoutMs, answerTimeoutMs } = limits;
    // Node's types lack this member.
    Object.assign(server, { maxHeaderSize: headerBytes });
    server.headersTimeout = headerTimeoutMs;
    // Node's limit for head and body together must not be shorter than the configured ones.
    server.requestTimeout = Math.max(WHOLE_REQUEST_MS, headerTimeoutMs + bodyTimeoutMs);
    server.maxConnections = connections;
    // Each start of the interval gives clients more time, so only another length starts it again.
    if (answerTimeoutMs === closeEveryMs) return;
    closeEveryMs = answerTimeoutMs;
    clearInterval(closeUnread);
    closeUnread = setInterval(() => responses.closeUnread(), closeEveryMs).unref();
  };
  limit(options.limits);
  server.once('close', () => clearInterval(closeUnread));
  // Without this listener, Node would send `100 Continue` before the merchant is authenticated.
  server.on('checkContinue', onRequest);
  // Node's own 417 has no request id.
  server.on('checkExpectation', (req, res) => {
    if (!accept(req, res)) return;
    const refusal = problem('invalid_request', 'The expectation is not supported.', { status: 417 });
    options.emit('malformed_request', { outcome: refusal.code });
    sendProblem(res, problemDocument(refusal, randomUUID()));
  });
  server.on('upgrade', options.onUpgrade);
  /** Lets the responses to earlier requests be sent, then closes the connection. */
  const endAfter = (owed: ServerResponse, socket: Duplex): void => {
    owed.once('close', () => {
      const next = responses.firstOwed(socket);
      if (next) endAfter(next, socket);
      else endSoon(socket);
    });
  };
  server.on('connect', (_req, socket) => {
    const owed = responses.firstOwed(socket);
    if (owed) {
      // Node has removed its own listeners. The client would read a refusal now as the response to an earlier request.
      socket.on('error', () => {}).resume();
      endAfter(owed, socket);
      return;
    }
    const refusal = problem('invalid_target', 'This gateway is not a forward proxy.');
    options.emit('malformed_request', { outcome: refusal.code });
    sendProblemOnSocket(socket, problemDocument(refusal, randomUUID()));
  });
  /** Connections with malformed bytes that are closed after the responses to earlier requests. */
  const ending = new WeakSet<Duplex>();
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    if (DISCONNECTED.has(error.code ?? '') || LOST_BYTES.has(error.code ?? '') || !socket.writable) {
      socket.destroy();
      return;
    }
    // Node reports each further packet. A listener for each of them would block the process when the response is closed.
    if (ending.has(socket)) return;
    const owed = responses.firstOwed(socket);
    if (owed) {
      ending.add(socket);
      // The client would read a refusal now as the response to an earlier, valid request.
      endAfter(owed, socket);
      return;
    }
    const refusal = malformed(error.code);
    options.emit('malformed_request', { outcome: refusal.code });
    sendProblemOnSocket(socket, problemDocument(refusal, randomUUID()));
  });
  const closeAll = () => {
    server.close();
    responses.cutOff();
    server.closeAllConnections();
  };
  return { server, endKeepAlive: () => responses.endKeepAlive(), closeAll, limit };
}

/** Why a handshake failed. The client may also be a probe that only opens a connection. */
const REASONS: Record<string, Told<'handshake_failed'>['reason']> = {
  ECONNRESET: 'disconnected',
  EPIPE: 'disconnected',
  ERR_TLS_HANDSHAKE_TIMEOUT: 'timeout',
};

/**
 * An HTTPS server that behaves like `http.createServer(options)` behind the handshake. A new version of the certificate is
 * used from the next handshake on; open connections keep theirs.
 */
function createTlsServer(
  { certificate, minVersion, handshakeTimeoutMs }: ListenerTls,
  options: ServerOptions,
  onRequest: RequestListener,
  emit: Emit,
): Server {
  const secureOptions = {
    minVersion,
    // ADR 26 says why there are no session tickets.
    secureOptions: constants.SSL_OP_NO_TICKET | constants.SSL_OP_NO_RENEGOTIATION,
  };
  const server = createHttpsServer(
    {
      ...options,
      ...secureOptions,
      ...certificate.files,
      ALPNProtocols: ['http/1.1'],
      handshakeTimeout: handshakeTimeoutMs,
    },
    onRequest,
  );
  certificate.onChange((files) => server.setSecureContext({ ...secureOptions, ...files }));
  server.on('secureConnection', (socket: TLSSocket) => {
    // Any data listener makes Node read the socket as a stream, and no longer directly into its parser. When answers pile up, Node
    // pauses the socket and its parser. A TLS socket still delivers decrypted bytes, the paused parser drops them, and it later
    // reads on in the middle of a request.
    socket.on('data', () => {});
  });
  // Node's own listener reports a failed handshake as malformed HTTP, which would be answered in clear text or never.
  server.removeAllListeners('tlsClientError');
  server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
    socket.destroy();
    const reason = REASONS[error.code ?? ''] ?? 'refused';
    emit('handshake_failed', { reason, code: error.code ?? error.name });
  });
  return server;
}

function malformed(code = ''): Problem {
  if (code === 'HPE_HEADER_OVERFLOW')
    return problem('invalid_request', 'The header fields are too large or too many.', { status: 431 });
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT')
    return problem('request_timeout', 'The request did not arrive in time.');
  return problem('invalid_request', 'The request is not valid HTTP/1.1.');
}

/**
 * How many connections may wait to be accepted (the operating system may allow fewer). It drops each further connection,
 * whose client then tries again only a second later.
 */
const BACKLOG = 4096;

/** Resolves to the port. @throws the operating system's error if the port cannot be used */
export async function listen(server: Server, host: string, port: number): Promise<number> {
  server.listen({ port, host, backlog: BACKLOG });
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** The gateway cannot serve what it has inherited. The message is for the operator. */
export class SocketRefused extends Error {
  override readonly name = 'SocketRefused';
}

/** The first of the file descriptors that are passed. */
const FIRST_FD = 3;

/**
 * The file descriptor of the listening socket that systemd, or another program, has opened for this process (sd_listen_fds(3)).
 *
 * @throws {SocketRefused} if there are several
 */
export function inheritedSocket({ LISTEN_PID, LISTEN_FDS }: NodeJS.ProcessEnv): number | undefined {
  const count = Number(LISTEN_FDS);
  // The sockets are not for every process that inherits the environment.
  if (Number(LISTEN_PID) !== process.pid || !(count >= 1)) return undefined;
  if (count === 1) return FIRST_FD;
  throw new SocketRefused(
    `LISTEN_FDS=${count}: the gateway serves one inherited socket; leave one ListenStream= in the socket unit`,
  );
}

/**
 * Serves an inherited socket. Other processes may serve it too; each connection goes to the one that accepts it first.
 *
 * @returns the port
 * @throws {SocketRefused} if it is no listening TCP socket
 */
export async function listenOn(server: Server, fd: number): Promise<number> {
  const refused = new SocketRefused(
    `LISTEN_FDS=1: the inherited file descriptor ${fd} is not a listening TCP socket; a socket unit needs ListenStream= with a port, and Accept=no`,
  );
  server.listen({ fd, backlog: BACKLOG });
  await once(server, 'listening').catch(() => {
    throw refused;
  });
  const address = server.address();
  // A Unix socket has no port.
  if (address === null || typeof address === 'string') throw refused;
  return address.port;
}
