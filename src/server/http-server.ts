import { randomUUID } from 'node:crypto';
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  STATUS_CODES,
} from 'node:http';
import type { Duplex } from 'node:stream';
import { type Problem, problem, problemBody, problemHeaders } from '../kernel/problem.ts';

export interface HttpServerOptions {
  /** All header fields of a request together. */
  headerBytes: number;
  /** Time for a request's head to arrive. */
  headerTimeoutMs: number;
  /** Answers requests; those that wait for `100 Continue` too. */
  onRequest: RequestListener;
  /** Told of each connection that was answered because what came was no request. */
  onMalformed(refusal: Problem): void;
  /** Answers WebSocket handshakes: the only upgrades that are taken as such. */
  onUpgrade(req: IncomingMessage, socket: Duplex, head: Buffer): void;
}

/** The merchants' server. Malformed HTTP is answered and its connection closed. */
export function createHttpServer(options: HttpServerOptions): Server {
  const server = createServer(
    {
      maxHeaderSize: options.headerBytes,
      headersTimeout: options.headerTimeoutMs,
      // Longer than the idle time of usual balancers, so that it is they who close idle connections.
      keepAliveTimeout: 65_000,
      // Any other upgrade (curl offers h2c by itself) is an ordinary request, and must not slip past the path.
      shouldUpgradeCallback: (req) =>
        req.method === 'GET' && req.headers.upgrade?.toLowerCase() === 'websocket',
    },
    options.onRequest,
  );
  // Without this listener Node would invite the body before anybody was authenticated.
  server.on('checkContinue', options.onRequest);
  server.on('upgrade', options.onUpgrade);
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    if (error.code === 'ECONNRESET' || !socket.writable) socket.destroy();
    else {
      const refusal = malformed(error.code);
      options.onMalformed(refusal);
      refuseOnSocket(socket, refusal, randomUUID());
    }
  });
  return server;
}

function malformed(code = ''): Problem {
  if (code === 'HPE_HEADER_OVERFLOW')
    return problem('invalid_request', 'The header fields are too large.', { status: 431 });
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
}
