import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type Backend, handle } from './backend.ts';
import { echoWebSocket, WEBSOCKET_PATH } from './echo.ts';
import { FAULT_HEADER } from './faults.ts';
import { errorReply, type Reply } from './reply.ts';
import { pathOf } from './request.ts';

export interface RequestLogEntry {
  readonly method: string;
  readonly path: string;
  /** Null if no response was sent. */
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

/** Larger than the gateway's default, so that the limit of the gateway is the one that tests reach. */
const MAX_HEADER_BYTES = 65_536;

/** The HTTP server of the backend. It does not listen yet. */
export function createHttpServer(backend: Backend, { keepAliveTimeoutMs, log }: ServerSettings): Server {
  const idle =
    keepAliveTimeoutMs === undefined
      ? {}
      : { keepAliveTimeout: keepAliveTimeoutMs, keepAliveTimeoutBuffer: 0 };
  const server = createServer({
    ...idle,
    maxHeaderSize: MAX_HEADER_BYTES,
    // On other paths the Upgrade header is ignored: curl sends one to offer HTTP/2 (h2c).
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
    // The client has disconnected, or the sandbox is being closed.
    if (request.socket.destroyed) return;
    error = cause instanceof Error ? cause.message : String(cause);
    sendFailure(response, error);
  }
}

function sendFailure(response: ServerResponse, message: string): void {
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
    socket.end(rawReply(errorReply('invalid_fault', 'faults cannot be used with an upgrade')));
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

/** Resolves to the port, also if `port` is 0. */
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

/** Node's `closeAllConnections` does not close upgraded sockets, so all sockets are tracked here. */
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
