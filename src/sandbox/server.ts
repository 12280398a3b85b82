import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type Backend, handle } from './backend.ts';
import { FAULT_HEADER } from './faults.ts';
import { errorReply, type Reply } from './reply.ts';
import { pathOf } from './target.ts';
import { echoWebSocket, WEBSOCKET_PATH } from './websocket.ts';

export interface RequestLogEntry {
  readonly method: string;
  readonly path: string;
  /** Null when no answer was begun. */
  readonly status: number | null;
  readonly faults: string | null;
  readonly durationMs: number;
  /** Set when the sandbox itself failed. */
  readonly error?: string;
}

export interface ServerSettings {
  readonly keepAliveTimeoutMs?: number;
  readonly log?: (entry: RequestLogEntry) => void;
}

/** Wide, so that it is never this backend that limits the headers. */
const MAX_HEADER_BYTES = 65_536;

/** The HTTP server in front of the backend, not yet listening. */
export function serverOf(backend: Backend, { keepAliveTimeoutMs, log }: ServerSettings): Server {
  const idle =
    keepAliveTimeoutMs === undefined
      ? {}
      : { keepAliveTimeout: keepAliveTimeoutMs, keepAliveTimeoutBuffer: 0 };
  const server = createServer({
    ...idle,
    maxHeaderSize: MAX_HEADER_BYTES,
    // Every other request that asks for an upgrade (curl does, for h2c) is served as if it had not.
    shouldUpgradeCallback: (request) => pathOf(request) === WEBSOCKET_PATH,
  });
  server.on('request', (request, response) => void serve(request, response, backend, log));
  server.on('upgrade', (request, socket, head) => upgrade(request, socket, head, backend));
  return server;
}

async function serve(
  request: IncomingMessage,
  response: ServerResponse,
  backend: Backend,
  log: ServerSettings['log'],
): Promise<void> {
  const startedMs = performance.now();
  let error: string | undefined;
  response.on('close', () => log?.(entryOf(request, response, performance.now() - startedMs, error)));
  try {
    await handle(request, response, backend);
  } catch (cause) {
    // A client that has left, or close(): there is nobody to tell.
    if (request.socket.destroyed) return;
    error = cause instanceof Error ? cause.message : String(cause);
    answerFailure(response, error);
  }
}

function answerFailure(response: ServerResponse, message: string): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const { status, headers, body } = errorReply('internal_error', message);
  response.writeHead(status, [...headers, 'Content-Length', String(body.length)]);
  response.end(body);
}

function entryOf(
  request: IncomingMessage,
  response: ServerResponse,
  durationMs: number,
  error?: string,
): RequestLogEntry {
  return {
    method: request.method ?? '',
    path: pathOf(request),
    status: response.headersSent ? response.statusCode : null,
    faults: request.headers[FAULT_HEADER.toLowerCase()]?.toString() ?? null,
    durationMs: Math.round(durationMs),
    ...(error === undefined ? {} : { error }),
  };
}

function upgrade(request: IncomingMessage, socket: Duplex, head: Buffer, backend: Backend): void {
  backend.requests.recordUpgrade(request);
  const asksForFaults = request.headers[FAULT_HEADER.toLowerCase()] !== undefined;
  if (backend.faultsEnabled && asksForFaults) {
    socket.end(rawReply(errorReply('invalid_fault', 'an upgrade takes no faults')));
  } else {
    echoWebSocket(request, socket, head);
  }
}

function rawReply({ status, headers, body }: Reply): string {
  const lines = [
    `HTTP/1.1 ${status} Refused`,
    `${headers[0]}: ${headers[1]}`,
    `Content-Length: ${body.length}`,
  ];
  return `${lines.join('\r\n')}\r\nConnection: close\r\n\r\n${body}`;
}

/** Resolves with the port that was taken. */
export async function listen(server: Server, host: string, port: number): Promise<number> {
  try {
    server.listen(port, host);
    await once(server, 'listening');
  } catch (error) {
    throw explained(error as NodeJS.ErrnoException, host, port);
  }
  return (server.address() as AddressInfo).port;
}

function explained(error: NodeJS.ErrnoException, host: string, port: number): Error {
  const reason = error.code === 'EADDRINUSE' ? 'the port is in use' : error.message;
  const explanation = new Error(`sandbox: cannot listen on ${host}:${port}: ${reason}`, { cause: error });
  return Object.assign(explanation, error.code === undefined ? {} : { code: error.code });
}

/** Node's closeAllConnections leaves upgraded sockets alone, so the sockets are counted here. */
export function trackSockets(server: Server): ReadonlySet<Socket> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  return sockets;
}

export async function endServer(server: Server, sockets: ReadonlySet<Socket>): Promise<void> {
  await new Promise<void>((resolve) => {
    server.close(() => resolve());
    for (const socket of sockets) socket.destroy();
  });
}
