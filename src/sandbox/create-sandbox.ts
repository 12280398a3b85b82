import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type Backend, Delays, handle } from './backend.ts';
import { NO_FAULTS, parseFaults } from './faults.ts';
import { SandboxRequests } from './request.ts';
import { SandboxLedger } from './sandbox-ledger.ts';

export interface SandboxOptions {
  /** Default 127.0.0.1. */
  readonly host?: string | undefined;
  /** Default 9000; 0 selects a free port. */
  readonly port?: number | undefined;
  /** File of the ledger; default `:memory:`. */
  readonly databasePath?: string | undefined;
  /** What X-Sandbox-Fault would say, for requests with an idempotency key and without that header; default: no faults. */
  readonly usualFaults?: string | undefined;
  /** Enables GET /v1/transactions?merchant=&key= for requests with this bearer token. */
  readonly lookupToken?: string | undefined;
  /** Takes over the socket of each WebSocket handshake. Default: handshakes are ordinary requests. */
  readonly onUpgrade?: ((request: IncomingMessage, socket: Duplex, head: Buffer) => void) | undefined;
}

export interface Sandbox {
  /** The address, without a trailing slash. */
  readonly url: string;
  readonly port: number;
  /** Not usable after close(). */
  readonly ledger: SandboxLedger;
  readonly requests: SandboxRequests;
  /** From now on the fault `delay` does not hold back requests with this idempotency key. Those that wait are executed at once. */
  endDelays(key: string): void;
  /** Ends all connections, even those with a running request, and closes the ledger. */
  close(): Promise<void>;
}

/**
 * Starts the reference backend: a payments service without any idempotency. It imports nothing from the gateway, so its
 * ledger is independent evidence of how often something was executed.
 *
 * @throws {Error} with a message of one line if the port or the ledger's file cannot be used, or if `usualFaults` is not
 * a list of faults
 */
export async function createSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const { host = '127.0.0.1', port = 9000, databasePath = ':memory:', onUpgrade } = options;
  const usualFaults = options.usualFaults === undefined ? NO_FAULTS : parseFaults(options.usualFaults);
  if (typeof usualFaults === 'string') throw new Error(usualFaults);
  const ledger = new SandboxLedger(databasePath);
  const backend: Backend = {
    ledger,
    requests: new SandboxRequests(),
    usualFaults,
    lookupToken: options.lookupToken,
    delays: new Delays(),
  };
  const server = serverOf(backend, onUpgrade);
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  const boundPort = await listen(server, host, port).catch((error: unknown) => {
    ledger.close();
    throw error;
  });
  const end = async (): Promise<void> => {
    const closed = new Promise((resolve) => server.close(resolve));
    // Upgraded ones too, which Node's `closeAllConnections` does not close.
    for (const socket of sockets) socket.destroy();
    await closed;
    ledger.close();
  };
  let ended: Promise<void> | undefined;
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${boundPort}`,
    port: boundPort,
    ledger,
    requests: backend.requests,
    endDelays: (key) => backend.delays.end(key),
    close() {
      ended ??= end();
      return ended;
    },
  };
}

/** The limit is larger than the gateway's default, so that tests reach the gateway's limit first. */
const MAX_HEADER_BYTES = 65_536;

function serverOf(backend: Backend, onUpgrade: SandboxOptions['onUpgrade']): Server {
  const server = createServer({
    maxHeaderSize: MAX_HEADER_BYTES,
    // Other upgrades are ignored: curl offers HTTP/2 (h2c).
    shouldUpgradeCallback: ({ headers }) => onUpgrade !== undefined && headers.upgrade === 'websocket',
  });
  server.on('request', (request, response) => void serve(request, response, backend));
  if (onUpgrade)
    server.on('upgrade', (request, socket, head) => {
      backend.requests.add(request);
      onUpgrade(request, socket, head);
    });
  return server;
}

async function serve(request: IncomingMessage, response: ServerResponse, backend: Backend): Promise<void> {
  try {
    await handle(request, response, backend);
  } catch (error) {
    // The client has disconnected, or the sandbox is being closed, or has failed itself.
    if (request.socket.destroyed || response.headersSent) response.destroy();
    else response.writeHead(500).end(String(error));
  }
}

/** Resolves to the port, also if `port` is 0. */
async function listen(server: Server, host: string, port: number): Promise<number> {
  server.listen(port, host);
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}
