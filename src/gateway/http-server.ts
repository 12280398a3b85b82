import { randomUUID } from 'node:crypto';
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import type { Duplex } from 'node:stream';
import { hasBody } from '../kernel/context.ts';
import { type Problem, problem, problemBody, problemHeaders, sendProblem } from '../kernel/problem.ts';
import { MAX_HEADER_LINES } from './admission.ts';
import { Answering, answerHalfClosed } from './answering.ts';
import type { App } from './app.ts';

export interface HttpServerOptions {
  /** All header fields of a request together. */
  headerBytes: number;
  /** Open connections, WebSockets included; one more is closed as soon as it is accepted. */
  connections: number;
  /** Time for a request's head to arrive. */
  headerTimeoutMs: number;
  /** Time for the body of a request that belongs to an operation to arrive; its reader keeps this limit. */
  bodyTimeoutMs: number;
  /** Time for an answer to be taken once all of it is there, and for some of an answer that is being streamed. */
  answerTimeoutMs: number;
  /** Answers requests; those that wait for `100 Continue` too. */
  app: App;
  /** Called for each connection that was refused before its request had a context. */
  onMalformed(refusal: Problem): void;
  /** Called for each connection that was closed because `connections` others are open. */
  onConnectionRefused(): void;
  /** Answers WebSocket handshakes: the only upgrades that are taken as such. */
  onUpgrade(req: IncomingMessage, socket: Duplex, head: Buffer): void;
}

/** Time for a whole request to arrive, one that is passed through included. */
const WHOLE_REQUEST_MS = 300_000;

/** The merchant has gone, perhaps in the middle of a request. */
const LEFT = new Set(['ECONNRESET', 'EPIPE', 'HPE_INVALID_EOF_STATE']);

/** A server, and a way to make every answer that is still to come the last of its connection. */
export interface HttpServer {
  server: Server;
  endConnectionsAfterAnswers(): void;
}

/** The merchants' server. Malformed HTTP is answered and its connection closed. */
export function createHttpServer(options: HttpServerOptions): HttpServer {
  const answering = new Answering();
  /** A request behind one after which the connection closes is dropped: its answer could not be sent. */
  const take = (req: IncomingMessage, res: ServerResponse): boolean => {
    if (!req.socket.writable || answering.closes(req.socket)) return false;
    answering.begin(req.socket, res);
    return true;
  };
  const onRequest: RequestListener = (req, res) => {
    if (take(req, res)) options.app.handle(req, res);
  };
  const server = createServer(
    {
      IncomingMessage: options.app.Request,
      ServerResponse: options.app.Response,
      maxHeaderSize: options.headerBytes,
      // Node would answer without a problem document, and once more when the connection closes.
      requireHostHeader: false,
      headersTimeout: options.headerTimeoutMs,
      // Node's own limit for head and body together must not undercut those that were asked for.
      requestTimeout: Math.max(WHOLE_REQUEST_MS, options.headerTimeoutMs + options.bodyTimeoutMs),
      // Node looks for late heads only this often, by default every 30 s.
      connectionsCheckingInterval: Math.min(1000, Math.ceil(options.headerTimeoutMs / 2)),
      // Longer than the idle time of usual balancers, so that it is they who close idle connections.
      keepAliveTimeout: 65_000,
      // Any other upgrade (curl offers h2c by itself) is an ordinary request, and must not slip past the path.
      // Nor may one that is sent ahead take a connection on which answers are owed.
      shouldUpgradeCallback: (req) =>
        req.method === 'GET' &&
        req.headers.upgrade?.toLowerCase() === 'websocket' &&
        !hasBody(req) &&
        !answering.busy(req.socket),
    },
    onRequest,
  );
  // One line more than a request may have shows that there were too many.
  server.maxHeadersCount = MAX_HEADER_LINES + 1;
  server.maxConnections = options.connections;
  server.on('drop', options.onConnectionRefused);
  answerHalfClosed(server, answering);
  // A client that does not read would keep a place among limits.inFlight for each answer, without any credentials.
  const untaken = setInterval(() => answering.endUntaken(), options.answerTimeoutMs).unref();
  server.once('close', () => clearInterval(untaken));
  // Without this listener Node would invite the body before the merchant is authenticated.
  server.on('checkContinue', onRequest);
  // Node's own answer has no request id.
  server.on('checkExpectation', (req, res) => {
    if (!take(req, res)) return;
    const refusal = problem('invalid_request', 'The expectation is not supported.', { status: 417 });
    options.onMalformed(refusal);
    sendProblem(res, refusal, randomUUID());
  });
  server.on('upgrade', options.onUpgrade);
  server.on('connect', (_req, socket) => {
    const refusal = problem('invalid_target', 'This is no proxy for other hosts.');
    options.onMalformed(refusal);
    refuseOnSocket(socket, refusal, randomUUID());
  });
  const endAfter = (owed: ServerResponse, socket: Duplex): void => {
    owed.once('close', () => {
      const next = answering.next(socket);
      if (next) endAfter(next, socket);
      else endSoon(socket);
    });
  };
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    if (LEFT.has(error.code ?? '') || !socket.writable) {
      socket.destroy();
      return;
    }
    const owed = answering.next(socket);
    if (owed) {
      // A refusal now would be read as the answer to a request before the garbage.
      endAfter(owed, socket);
      return;
    }
    const refusal = malformed(error.code);
    options.onMalformed(refusal);
    refuseOnSocket(socket, refusal, randomUUID());
  });
  return { server, endConnectionsAfterAnswers: () => answering.makeLast() };
}

function malformed(code = ''): Problem {
  if (code === 'HPE_HEADER_OVERFLOW')
    return problem('invalid_request', 'The header fields are too large or too many.', { status: 431 });
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT')
    return problem('request_timeout', 'The request did not arrive in time.');
  return problem('invalid_request', 'The request is not valid HTTP/1.1.');
}

/** Answers where there is no response object, and closes the connection. */
export function refuseOnSocket(socket: Duplex, refusal: Problem, requestId: string): void {
  if (!socket.writable) return;
  const body = problemBody(refusal, requestId);
  const headers = [...problemHeaders(refusal, requestId, Buffer.byteLength(body)), 'Connection', 'close'];
  let head = `HTTP/1.1 ${refusal.status} ${STATUS_CODES[refusal.status]}\r\n`;
  for (let i = 0; i < headers.length; i += 2) head += `${headers[i]}: ${headers[i + 1]}\r\n`;
  socket.end(`${head}\r\n${body}`);
  endSoon(socket);
}

/** Time for the last bytes to be read; a connection that is closed on unread ones is reset, and they are lost. */
const LINGER_MS = 500;

/** Ends a connection whether or not the other side does. */
export function endSoon(socket: Duplex): void {
  socket.end();
  socket.resume();
  const timer = setTimeout(() => socket.destroy(), LINGER_MS);
  socket.once('close', () => clearTimeout(timer));
}
