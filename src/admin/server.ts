import { createServer, type RequestListener, type Server } from 'node:http';
import type { Duplex } from 'node:stream';
import { sendProblemOnSocket } from '../lib/problem.ts';
import type { AdminProblemCode } from '../lib/problem-table.ts';
import { adminProblem } from './problems.ts';
import { HEADERS } from './security-headers.ts';

/** Time for a request's head, and for a whole request, to arrive. */
const HEAD_MS = 15_000;
const REQUEST_MS = 60_000;
/** Each takes one of the process' open files, which merchants' connections need too. A browser opens up to six. */
const MAX_CONNECTIONS = 1000;

/** The HTTP server of the admin port. What is not valid HTTP is answered with a problem document too. */
export function createAdminServer(application: RequestListener): Server {
  // Node's own refusal of a request without Host has no problem document.
  const server = createServer({ requireHostHeader: false }, application);
  server.headersTimeout = HEAD_MS;
  server.requestTimeout = REQUEST_MS;
  server.maxConnections = MAX_CONNECTIONS;
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT') socket.destroy();
    else if (error.code === 'HPE_HEADER_OVERFLOW')
      refuseOnSocket(socket, 'too_large', 'The header fields are too large.');
    else refuseOnSocket(socket, 'invalid', 'The request is not valid HTTP/1.1.');
  });
  // Node's own 417 has no problem document. An expectation may be ignored.
  server.on('checkExpectation', application);
  server.on('connect', (_req, socket) => refuseOnSocket(socket, 'invalid', 'This port is no proxy.'));
  return server;
}

function refuseOnSocket(socket: Duplex, code: AdminProblemCode, detail: string): void {
  const { headers, ...problem } = adminProblem(code, detail);
  sendProblemOnSocket(socket, { ...problem, headers: { ...headers, ...HEADERS } });
}
